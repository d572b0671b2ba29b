"""Samples answers in processes that are killed at a chosen moment: `python -m tests.killed_generate FOLDER`.

FOLDER holds a config and a folder per moment, named by it. What each process ended with is printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from coterie import files
from coterie.cli import verifier_data
from coterie.rollout.collector import Collector
from coterie.verifier import generate
from tests.killed import die, on_call

MOMENTS = ("while sampling", "while a part is written", "before the parts are removed")


def arm(moment: str) -> None:
    """Lay the trap: it springs in the second part, or at the end."""
    if moment == MOMENTS[0]:
        collect = on_call(4, Collector.collect, die)
        Collector.collect = lambda *args: collect(*args)  # type: ignore[method-assign]
    elif moment == MOMENTS[1]:  # the plan, the first part, the second: written in part, not renamed
        files._fsync = on_call(5, files._fsync, die)
    else:
        generate.remove_folder = die


def ended(config: Path, folder: Path) -> int:
    """Sample in a child of this process; its exit code, or minus the signal that ended it."""
    process = os.fork()  # torch has computed nothing yet, so there are no threads to lose
    if process == 0:
        arm(folder.name)
        sample(config, folder / "answers.parquet")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def sample(config: Path, out: Path, **changes: Any) -> None:
    options: dict[str, Any] = {"episodes": 2, "tasks": None, "policies": [], "temperatures": [0.7, 1.0]}
    verifier_data.generate(config, [], None, out, **options | changes)


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = Path(sys.argv[1])
    sys.stdout = sys.stderr  # the progress of the children
    found = {folder.name: ended(given / "config.yaml", folder) for folder in sorted(given.iterdir()) if folder.is_dir()}
    print(json.dumps(found), file=sys.__stdout__)
