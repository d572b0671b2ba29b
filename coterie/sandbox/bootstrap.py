"""Runs inside the sandbox: waits for one job on stdin, sets rlimits on itself, then executes the job.

Sent as source text to a Python that does not have Coterie installed. Imports little, so that it starts quickly.
"""

import _signal  # the C module behind signal, which imports enum
import builtins
import marshal
import os
import resource
import site
import sys


def receive(count: int) -> bytes:
    """Read exactly `count` bytes; what follows is the job's own stdin."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            os._exit(0)  # the parent is gone
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def set_rlimit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def apply_limits(job: dict) -> None:
    if sys.platform == "linux":
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the OOM killer takes this process first
    set_rlimit(resource.RLIMIT_CORE, 0)
    set_rlimit(resource.RLIMIT_FSIZE, job["disk"])
    set_rlimit(resource.RLIMIT_CPU, job["cpu"])
    if job["processes"]:
        set_rlimit(resource.RLIMIT_NPROC, job["processes"])
    if job["alarm"]:
        _signal.alarm(job["alarm"])
    set_rlimit(resource.RLIMIT_AS, job["memory"])


def write_files(job: dict) -> None:
    for name, content in job["files"].items():
        os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)
    os.makedirs(job["cwd"], exist_ok=True)
    os.chdir(job["cwd"])


def run_as_main(code: str, path: str) -> None:
    """Execute the code as `__main__`. Tracebacks start at the job's own frame."""
    main = type(sys)("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv = [path]
    try:
        exec(compile(code, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # print it as Python does
        own = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(own), own)
        sys.exit(1)


def serve() -> None:
    site.setquit()  # -S leaves out exit() and quit(), which small programs use
    os.write(1, b"ready\n")
    job = marshal.loads(receive(int.from_bytes(receive(8), "big")))
    sys.path[:0] = [os.path.abspath(job["cwd"])]
    sys.path += job["packages"]
    script = os.path.abspath("script.py")
    job["files"].setdefault("script.py", job["code"].encode("utf-8", "replace"))  # source lines for tracebacks
    write_files(job)
    apply_limits(job)
    run_as_main(job["code"], script)


serve()
