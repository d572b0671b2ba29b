"""Datasets whose answers are programs: run each in the sandbox, and use its value as the reference answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

from coterie.data.row import Row
from coterie.sandbox import Limits, RunResult, Sandbox, shared

PROGRAM = "program.py"
LIMITS = Limits(seconds=5.0, memory=512 << 20, output=64 << 10)
# Runs in the sandbox. What the program prints is kept apart from the result, which is the last line of stdout.
DRIVER = f"""
import contextlib, decimal, inspect, io, json, math, numbers, types

def number(value):
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, decimal.Decimal)):
        return {{"problem": f"its value is of type {{type(value).__name__}}, not a number"}}
    if not math.isfinite(value):
        return {{"problem": "its value is not finite"}}
    whole = value == int(value)
    return {{"value": str(int(value)) if whole else f"{{float(value):.10g}}"}}

def callable_without_arguments(function):
    empty, stars = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return all(p.default is not empty or p.kind in stars for p in parameters)

def value_of(source):
    names, printed = {{"__name__": "__main__"}}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "{PROGRAM}", "exec"), names)
        own = [f for f in names.values() if isinstance(f, types.FunctionType) and f.__code__.co_filename == "{PROGRAM}"]
        functions = [f for f in own if callable_without_arguments(f)]
        for name in ("result", "answer"):
            if name in names and not isinstance(names[name], types.FunctionType):
                return number(names[name])
        if functions:
            return number(functions[-1]())
    words = printed.getvalue().split()
    try:
        # A large integer is not exact as a float.
        return number(int(words[-1]) if words[-1].lstrip("+-").isdecimal() else float(words[-1]))
    except (IndexError, ValueError):
        return {{"problem": "it has no function without arguments, no `result`, and prints no number"}}

try:
    with open("{PROGRAM}", encoding="utf-8") as file:
        found = value_of(file.read())
except BaseException as error:
    found = {{"problem": f"it raises {{type(error).__name__}}"}}
print()
print(json.dumps(found))
"""
ENDINGS = {
    "timeout": f"it takes more than {LIMITS.seconds:g} s",
    "memory": "it needs too much memory",
    "processes": "it starts too many processes",
    "output": "it prints too much",
}


def run_programs(rows: Sequence[Row], column: str) -> list[Row | str]:
    """Run the program in `meta[column]` of each row; its value becomes the answer. A string says why there is none."""
    values = asyncio.run(_values([row.meta[column] for row in rows], shared()))
    return [
        f"{column}: {why}" if value is None else replace(row, answer=value)
        for row, (value, why) in zip(rows, values, strict=True)
    ]


async def _values(programs: Sequence[str], sandbox: Sandbox) -> list[tuple[str | None, str]]:
    return await asyncio.gather(*(_value(program, sandbox) for program in programs))


async def _value(program: str, sandbox: Sandbox) -> tuple[str | None, str]:
    """The value of a program, or None and why it has none."""
    return value_and_problem(await sandbox.run(DRIVER, files={PROGRAM: program}, limits=LIMITS))


def value_and_problem(ran: RunResult) -> tuple[str | None, str]:
    """Read the last line that the driver printed. The reasons name no values, so that they can be counted."""
    if ran.status in ENDINGS:
        return None, ENDINGS[ran.status]
    try:
        found = json.loads(ran.stdout.rstrip().rpartition("\n")[2])
        return (found["value"], "") if "value" in found else (None, str(found["problem"]))
    except (ValueError, TypeError, KeyError):
        return None, "it ends the process"
