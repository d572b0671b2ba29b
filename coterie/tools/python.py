"""The tool that runs Python."""

from __future__ import annotations

from dataclasses import replace

from coterie.sandbox import Limits, RunResult, shared
from coterie.tools.tool import Tool


def python_tool(seconds: float = 10.0) -> Tool:
    """A tool `python` that runs code in the sandbox, each call in a process of its own."""
    limits = replace(Limits(), seconds=seconds, output=32 << 10)

    async def python(code: str) -> str:
        """Run a Python program and return what it prints. Nothing is kept between calls.

        code: the whole program; print what you want to see
        """
        return shown(await shared().run(code, limits=limits), seconds)

    return Tool(python, "python")


def shown(ran: RunResult, seconds: float) -> str:
    """What a program printed, and how it ended if not well; for a model to read."""
    endings = {
        "timeout": f"Timeout: it took more than {seconds:g} s",
        "output": "TooMuchOutput: it printed too much and was stopped",
        "memory": "OutOfMemory: it wanted more memory than it may have",
        "processes": "TooManyProcesses: it wanted more processes than it may have",
        "killed": f"Killed: it ended with exit code {ran.exit_code}",
    }
    said = [ran.stdout.rstrip(), ran.stderr.rstrip(), endings.get(ran.status, "")]
    return "\n".join(part for part in said if part) or "(it printed nothing; use print to see a value)"
