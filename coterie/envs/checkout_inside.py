"""What a job runs to test a project: one command. Its own exit code is 0 only if the tests were seen to pass.

Its text is handed to a Python that knows nothing of Coterie. unittest and pytest run in a child, which proves with a
secret that it came to the end of the tests: a program that prints "OK" and leaves with exit code 0 does not know it.
"""

import sys

sys.path.pop(0)  # the project's folder: a json.py of its own must not run here

import json
import os
import shlex
import subprocess

SECRET = 32  # bytes


def watched(words: list[str]) -> tuple[list[str], str, list[str]] | None:
    """Options of Python, the module that runs tests, and its arguments; None where something else runs."""
    if words[0] == "pytest":
        return [], "pytest", words[1:]
    if words[0] in ("python", "python3") and "-m" in words:
        options, (module, *rest) = words[1 : words.index("-m")], words[words.index("-m") + 1 :]
        if module in ("unittest", "pytest") and all(option.startswith("-") for option in options):
            return options, module, rest
    return None


def tested(options: list[str], module: str, arguments: list[str], runner: str) -> bool:
    """Run tests in a child and wait for its secret."""
    told, tell = os.pipe()
    given, give = os.pipe()
    secret = os.urandom(SECRET)
    child = subprocess.Popen(
        [sys.executable, *options, "-I", "-c", runner, str(given), str(tell)],
        pass_fds=(given, tell),
        stdin=subprocess.DEVNULL,
        env=environment(),
    )
    os.close(given)
    with open(give, "w") as pipe:
        json.dump({"secret": secret.hex(), "module": module, "arguments": arguments, "path": sys.path}, pipe)
    code = child.wait()
    os.set_blocking(told, False)  # what the tests started may live on and hold the other end
    try:
        return code == 0 and os.read(told, 2 * SECRET) == secret
    except BlockingIOError:
        return False


def environment() -> dict[str, str]:
    """For what the tests start themselves: the project and the packages that jobs may import."""
    folders = [os.getcwd(), *(folder for folder in sys.path if folder)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def main() -> None:
    request = json.load(sys.stdin)
    words = shlex.split(request["command"])
    found = watched(words)
    if found is not None:
        sys.exit(not tested(*found, request["runner"]))
    words[:1] = [sys.executable] if words[0] in ("python", "python3") else words[:1]
    sys.exit(subprocess.run(words, stdin=subprocess.DEVNULL, env=environment()).returncode)


main()
