"""What a sandboxed Python runs: it waits for one job on its standard input, bounds itself and becomes the job.

Its text is handed to a Python that knows nothing of Coterie. It imports little, so that it starts in a moment.
"""

import _signal  # what signal is made of, without what that takes to import
import builtins
import marshal
import os
import resource
import site
import sys


def receive(count: int) -> bytes:
    """Exactly so many bytes, and not one more: what follows is the job's own standard input."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            os._exit(0)  # whoever wanted a job run is gone
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def bound(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def confine(job: dict) -> None:
    if sys.platform == "linux":
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out all the same, this goes first
    bound(resource.RLIMIT_CORE, 0)
    bound(resource.RLIMIT_FSIZE, job["disk"])
    bound(resource.RLIMIT_CPU, job["cpu"])
    if job["processes"]:
        bound(resource.RLIMIT_NPROC, job["processes"])
    if job["alarm"]:
        _signal.alarm(job["alarm"])
    bound(resource.RLIMIT_AS, job["memory"])


def unpack(job: dict) -> None:
    for name, content in job["files"].items():
        os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)
    os.makedirs(job["cwd"], exist_ok=True)
    os.chdir(job["cwd"])


def become(code: str, path: str) -> None:
    """Run the code as a script. Its traceback begins with itself."""
    main = type(sys)("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv = [path]
    try:
        exec(compile(code, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # whatever it is, it is shown as Python shows it
        own = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(own), own)
        sys.exit(1)


def serve() -> None:
    site.setquit()  # -S leaves exit() and quit() out, which small programs use
    os.write(1, b"ready\n")
    job = marshal.loads(receive(int.from_bytes(receive(8), "big")))
    sys.path[:0] = [os.path.abspath(job["cwd"])]
    sys.path += job["packages"]
    script = os.path.abspath("script.py")
    job["files"].setdefault("script.py", job["code"].encode("utf-8", "replace"))  # where a traceback finds its lines
    unpack(job)
    confine(job)
    become(job["code"], script)


serve()
