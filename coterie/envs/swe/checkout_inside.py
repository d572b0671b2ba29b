"""What a job runs to test a project: one command. Its own exit code is 0 only if the command passed.

Its text is handed to a Python that knows nothing of Coterie. unittest and pytest run in a child, which imports the
project; this process never does, and no process can look into it. The child reports the tests that passed, and may lie:
it holds no secret. Whether its tests are the real ones or altered ones, which nothing honest passes, no process in the
sandbox is told; `checkout` compares both runs.
"""

import sys

sys.path.pop(0)  # the project's folder: a json.py of its own must not run here

import ctypes
import json
import os
import shlex
import subprocess
import threading

SET_DUMPABLE = 4  # prctl's number for it


def hide() -> None:
    """Let no process of the same user read this one's memory or files."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def watched(words: list[str]) -> tuple[list[str], str, list[str]] | None:
    """Options of Python, the module that runs tests, and its arguments; None where something else runs."""
    if words[0] == "pytest":
        return [], "pytest", words[1:]
    if words[0] in ("python", "python3") and "-m" in words:
        options, (module, *rest) = words[1 : words.index("-m")], words[words.index("-m") + 1 :]
        if module in ("unittest", "pytest") and all(option.startswith("-") for option in options):
            return options, module, rest
    return None


def reported(options: list[str], module: str, arguments: list[str], runner: str) -> tuple[bool, list[str]]:
    """Run tests in a child: whether all is said to have passed, and the places of tests that are said to."""
    told, tell = os.pipe()
    request = json.dumps({"module": module, "arguments": arguments, "path": sys.path})
    child = subprocess.Popen(
        [sys.executable, *options, "-I", "-c", runner, str(tell), request],
        pass_fds=(tell,),
        stdin=subprocess.DEVNULL,
        env=environment(),
    )
    os.close(tell)
    heard = bytearray()
    listener = threading.Thread(target=listen, args=(told, heard), daemon=True)
    listener.start()
    code = child.wait()
    listener.join(1.0)  # what the tests started may live on and hold the other end
    lines = bytes(heard).decode("utf-8", "replace").split("\n")
    return code == 0 and "done" in lines, sorted({line for line in lines if "::" in line})


def other(words: list[str]) -> tuple[bool, None]:
    """Any other command says nothing of its tests."""
    words[:1] = [sys.executable] if words[0] in ("python", "python3") else words[:1]
    return subprocess.run(words, stdin=subprocess.DEVNULL, env=environment()).returncode == 0, None


def listen(told: int, heard: bytearray) -> None:
    while part := os.read(told, 1 << 16):
        heard += part


def environment() -> dict[str, str]:
    """For what the tests start themselves: the project and the packages that jobs may import."""
    folders = [os.getcwd(), *(folder for folder in sys.path if folder)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def main() -> None:
    hide()
    request = json.load(sys.stdin)
    words = shlex.split(request["command"])
    found = watched(words)
    done, places = other(words) if found is None else reported(*found, request["runner"])
    print(f"\n{request['token']}{json.dumps(places)}", flush=True)  # nobody else can begin a line so
    sys.exit(not done)


main()
