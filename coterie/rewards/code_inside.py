"""Runs in the sandbox: tries a program on tests and reports, test by test, what came of each.

Expected results of calls and of standard output never come here, so no program can look them up. What is printed
while functions are called goes nowhere: only records that bear the caller's token count.
"""

# Modules of which others are made: json, signal, collections and contextlib take half as long to import as Python
# takes to start, and every program would pay for it.
import _signal as signal
import io
import marshal
import os
import sys
from _collections_abc import Callable
from _json import encode_basestring_ascii as quoted
from types import CodeType

MOST = 4 << 20  # bytes of a program's output that are looked at
SHOWN = 2000  # letters of a value or an error


class Overtime(BaseException):
    """A test took too long. Not an Exception, which many programs catch."""


class Timer:
    """Interrupts what runs under it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, *_: object) -> None:
        raise Overtime(f"took more than {self.seconds:g} s")

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def reporter() -> Callable:
    out, token = os.dup(1), request["token"]

    def report(**record: object) -> None:
        line = memoryview(f"{token} {encoded(record)}\n".encode())
        while line:
            line = line[os.write(out, line) :]

    return report


def encoded(value: object) -> str:
    """A value as JSON. Tuples, sets and the like are lists; what JSON has no word for is shown as text."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value).replace("inf", "Infinity").replace("nan", "NaN")
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(str(name))}:{encoded(part)}" for name, part in value.items()) + "}"
    try:
        parts = list(value)  # type: ignore[call-overload]
    except TypeError:
        return quoted(shown(value))
    return "[" + ",".join(map(encoded, parts)) + "]"


def told(error: BaseException) -> str:
    """An error with the line of the program it comes from."""
    line, at = None, error.__traceback__
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code.co_filename == "program.py" else line
        at = at.tb_next
    name = "timeout" if isinstance(error, Overtime) else type(error).__name__
    try:
        text = f"{name}: {error}"
    except BaseException:  # its own words may fail too
        text = name
    return text[:SHOWN] + (f" (line {line} of the program)" if line else "")


def shown(value: object) -> str:
    try:
        return repr(value)[:SHOWN]
    except BaseException as error:  # a class of the program's own may not be showable
        return f"<{type(value).__name__}, which cannot be shown: {told(error)}>"


def defined() -> tuple[dict, dict]:
    """What is there before the program, and after it was run for its definitions."""
    before: dict = {"__name__": "program"}
    with timer:
        exec(compile(request["before"], "before.py", "exec", dont_inherit=True), before)
        space = dict(before)
        exec(compile(request["program"], "program.py", "exec", dont_inherit=True), space)
    return before, space


def on_calls(report: Callable) -> None:
    """Call a function, or a method of the class Solution, with each list of arguments."""
    before, space = defined()
    name = request["function"]
    # A name that was there before is no work of the program's.
    own = space.get(name) if space.get(name) is not before.get(name) else None
    for number, arguments in enumerate(request["inputs"]):
        try:
            with timer:
                function = own or getattr(space["Solution"](), name)
                report(test=number, value=function(*arguments))
        except BaseException as error:  # whatever a program raises, even SystemExit, is that test's
            report(test=number, error=told(error))


def on_checks(report: Callable) -> None:
    """Run test code in which each assert was made a call of `__check__`."""
    _, space = defined()

    def check(number: int, got: Callable, *expected: Callable) -> None:
        try:
            with timer:
                value = got()
                wanted = expected[0]() if expected else True
                passed = bool(value == wanted) and not boasts(value, wanted) if expected else bool(value)
                report(test=number, passed=passed, got=shown(value), expected=shown(wanted))
        except BaseException as error:
            report(test=number, passed=False, error=told(error))

    space["__check__"] = check
    exec(compile(request["script"], "tests.py", "exec", dont_inherit=True), space)
    report(done=True)


def boasts(value: object, wanted: object) -> bool:
    """Whether a value is equal only because a class of the program's own says so."""
    return own_equality(value) and not own_equality(wanted)


def own_equality(value: object) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)) and type(value).__module__ != "program":
        return any(own_equality(part) for part in value)
    if type(value) is dict:
        return any(own_equality(part) for part in value.values())
    return any("__eq__" in vars(kind) for kind in type(value).__mro__ if kind.__module__ == "program")


def on_stdin(report: Callable) -> None:
    """Run the whole program anew for each input."""
    program = compile(request["before"] + request["program"], "program.py", "exec", dont_inherit=True)
    for number, text in enumerate(request["inputs"]):
        with open("stdin", "w+b", 0) as given, open("stdout", "w+b", 0) as out, open("stderr", "w+b", 0) as err:
            given.write(text.encode())
            given.seek(0)
            child = os.fork()
            if child == 0:
                as_script(program, [given, out, err])
            error = waited(child)
            said, words = (os.pread(file.fileno(), MOST, 0).decode("utf-8", "replace") for file in (out, err))
        report(test=number, stdout=said, error=error and (words.strip()[-SHOWN:] or error))


def as_script(program: CodeType, pipes: list) -> None:
    """Be the program. SystemExit goes through, so that threads and exit functions come to their end."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setsid()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    try:
        exec(program, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        own = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(own), own)
        raise SystemExit(1) from None
    raise SystemExit(0)


def waited(child: int) -> str | None:
    """How a program ended, if not well."""
    try:
        with timer:
            status = os.waitpid(child, 0)[1]
    except Overtime as error:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"timeout: {error}"
    finally:
        try:  # noqa: SIM105
            os.killpg(child, signal.SIGKILL)  # what it left running
        except ProcessLookupError:
            pass
    code = os.waitstatus_to_exitcode(status)
    return f"ended with exit code {code}" if code else None


request = marshal.loads(sys.stdin.buffer.read())
sys.setrecursionlimit(20_000)
timer = Timer(request["seconds"])
report = reporter()
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
try:
    {"calls": on_calls, "checks": on_checks, "stdin": on_stdin}[request["kind"]](report)
except (SystemExit, KeyboardInterrupt):
    raise
except BaseException as error:  # it could not be defined, or test code failed outside of a test
    report(broken=told(error))
