"""The tool `python`, a code interpreter in the sandbox."""

from __future__ import annotations

from dataclasses import replace

from coterie.sandbox import Limits, RunResult, shared
from coterie.tools.tool import Tool


def python_tool(seconds: float = 10.0) -> Tool:
    """A tool that runs a program in the sandbox; calls share no state."""
    limits = replace(Limits(), seconds=seconds, output=32 << 10)

    async def python(code: str) -> str:
        """Run a Python program and return what it prints. Nothing is kept between calls.

        code: the whole program; print what you want to see
        """
        return shown(await shared().run(code, limits=limits), seconds)

    return Tool(python, "python")


def shown(ran: RunResult, seconds: float) -> str:
    """The text that the model gets: a program's output, and its error if it failed."""
    endings = {
        "timeout": f"Timeout: it took more than {seconds:g} s",
        "output": "TooMuchOutput: it printed too much and was stopped",
        "memory": "OutOfMemory: it exceeded its memory limit",
        "processes": "TooManyProcesses: it exceeded its limit of processes",
        "killed": f"Killed: it ended with exit code {ran.exit_code}",
    }
    parts = [ran.stdout.rstrip(), ran.stderr.rstrip(), endings.get(ran.status, "")]
    return "\n".join(part for part in parts if part) or "(it printed nothing; use print to see a value)"
