"""Runs in the sandbox: executes one test command of a project. Exits with 0 only if the command passed.

Sent as source text to a Python that does not have Coterie installed. unittest and pytest run in a child process
(`test_runner`), which imports the project; this process never does, and is not ptraceable. The child reports the tests
that passed and may forge that report, so it holds no secret: no process in the sandbox knows whether its tests are the
real ones or mutated ones, which no honest change passes. `checkout` compares both runs.
"""

import sys

sys.path.pop(0)  # the project's folder: its json.py must not be imported here

import ctypes
import json
import os
import shlex
import subprocess
import threading

PR_SET_DUMPABLE = 4


def forbid_ptrace() -> None:
    """Keep other processes of the same user from reading this one's memory and files."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def parse_command(words: list[str]) -> tuple[list[str], str, list[str]] | None:
    """Split a test command into Python's options, `unittest` or `pytest`, and its arguments; None for any other."""
    if words[0] == "pytest":
        return [], "pytest", words[1:]
    if words[0] in ("python", "python3") and "-m" in words:
        options, (module, *rest) = words[1 : words.index("-m")], words[words.index("-m") + 1 :]
        if module in ("unittest", "pytest") and all(option.startswith("-") for option in options):
            return options, module, rest
    return None


def run_tests(options: list[str], module: str, arguments: list[str], runner: str) -> tuple[bool, list[str]]:
    """Run tests in a child process: whether it reports that all passed, and the ids of tests it reports as passed."""
    reads, writes = os.pipe()
    request = json.dumps({"module": module, "arguments": arguments, "path": sys.path})
    command = [sys.executable, *options, "-I", "-c", runner, str(writes), request]
    child = subprocess.Popen(command, pass_fds=(writes,), stdin=subprocess.DEVNULL, env=environment())
    os.close(writes)
    report = bytearray()
    listener = threading.Thread(target=listen, args=(reads, report), daemon=True)
    listener.start()
    code = child.wait()
    listener.join(1.0)  # processes that the tests started may hold the pipe open
    lines = bytes(report).decode("utf-8", "replace").split("\n")
    return code == 0 and "done" in lines, sorted({line for line in lines if "::" in line})


def run_other(words: list[str]) -> tuple[bool, None]:
    """Any other command reports no tests."""
    words[:1] = [sys.executable] if words[0] in ("python", "python3") else words[:1]
    return subprocess.run(words, stdin=subprocess.DEVNULL, env=environment()).returncode == 0, None


def listen(reads: int, report: bytearray) -> None:
    while part := os.read(reads, 1 << 16):
        report += part


def environment() -> dict[str, str]:
    """For processes that the tests start: the project and the packages that jobs may import."""
    folders = [os.getcwd(), *(folder for folder in sys.path if folder)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def main() -> None:
    forbid_ptrace()
    request = json.load(sys.stdin)
    words = shlex.split(request["command"])
    found = parse_command(words)
    passed, test_ids = run_other(words) if found is None else run_tests(*found, request["runner"])
    print(f"\n{request['token']}{json.dumps(test_ids)}", flush=True)  # only this process knows the token
    sys.exit(not passed)


main()
