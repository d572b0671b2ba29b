"""Goes back to an earlier checkpoint of a run. What was done after it is set aside, not lost and not mixed in."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path

from coterie.files import numbered_paths, read_rows, reporting_write_errors, write_atomic

ASIDE = "aside"  # in a run's folder
NUMBERED = {"checkpoints": "", "episodes": ".jsonl", "counterfactuals": ".jsonl"}  # what goes by a step's number


def set_aside(run: Path, done: int) -> Path | None:
    """Move what a run did after so many steps into aside/000020, from where nothing is read; None where there is none.

    The run's `latest` points at the checkpoint of that step when all else is done: who is killed before does it again.
    """
    later = [
        path for name, suffix in NUMBERED.items() for path in numbered_paths(run / name, suffix) if _step(path) > done
    ]
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["step"] > done]
    folder = None
    if later or rows:
        folder = _free(run / ASIDE / f"{done:06d}")
        write_atomic(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        with reporting_write_errors(folder):
            shutil.copy(run / "config.yaml", folder)
            _move(run, folder, [*later, *_pointers(run, done)])
    write_atomic(run / "latest", f"{done:06d}")
    return folder


def _pointers(run: Path, done: int) -> list[Path]:
    """`best` where it is a later step, and W&B's id: there, too, the other way on is another run."""
    best = run / "best"
    later = [best] if best.is_file() and int(best.read_text()) > done else []
    return later + [path for path in (run / "wandb-id",) if path.is_file()]


def _move(run: Path, folder: Path, paths: list[Path]) -> None:
    for path in paths:
        target = folder / path.relative_to(run)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)


def _step(path: Path) -> int:
    return int(path.name.split(".")[0])


def _free(folder: Path) -> Path:
    names = (folder if n == 1 else folder.with_name(f"{folder.name}-{n}") for n in count(1))
    return next(name for name in names if not name.exists())
