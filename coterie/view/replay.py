"""The advantages of a run's turns under another algorithm: runs `coterie replay` in a subprocess, so that the viewer
does not import torch. It loads the run's own code, so `coterie view` allows it only with `--replay`."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from coterie.episode_files import Row
from coterie.view.run_folder import RunFolder

SECONDS = 300.0  # for a replay
MOST = 100  # turns that are listed
LONGEST = 2000  # characters of an error
CHANGE = re.compile(r"(algorithm|credit)[\w.\"]*=[^\x00]*")  # not reward, which would run graders


async def replayed(run: RunFolder, changes: Sequence[str]) -> Row:
    """How the advantages of a run's turns change, the largest change first."""
    for change in changes:
        if not CHANGE.fullmatch(change):
            raise ValueError(f"{change!r}: expected algorithm=… or credit=…, such as algorithm=rloo")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "changes.jsonl"
        await _run("replay", str(run.path), *changes, "--most", "0", "--out", str(out))
        return await asyncio.to_thread(_summary, run, out)


async def _run(*words: str) -> None:
    quiet, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "coterie", *words, stdin=quiet, stdout=quiet, stderr=pipe
    )
    try:
        _, error = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        raise ValueError(f"the replay took more than {SECONDS:g} s") from None
    finally:
        if process.returncode is None:  # too slow, or the reader has left
            process.kill()
    if process.returncode:
        raise ValueError(error.decode(errors="replace").strip()[-LONGEST:])


def _summary(run: RunFolder, out: Path) -> Row:
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    pairs = [(row["advantage"] or 0.0, row["advantage now"] or 0.0) for row in rows]
    changed = sorted(zip(rows, pairs, strict=True), key=lambda one: -abs(one[1][1] - one[1][0]))
    listed = [row | {"line": _line(run, row)} for row, (was, now) in changed[:MOST] if abs(now - was) > 1e-6]
    moved = sum(abs(now - was) > 1e-6 for was, now in pairs)
    return {"turns": len(rows), "changed": moved, "flipped": sum(was * now < 0 for was, now in pairs), "rows": listed}


def _line(run: RunFolder, row: Row) -> int | None:
    index = run.file("episodes", row["step"]).index
    return next((line for line, entry in enumerate(index) if entry["id"] == row["episode"]), None)
