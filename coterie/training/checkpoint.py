"""Checkpoints: save, restore, resume and rewind a run. A checkpoint is written by an atomic rename."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from safetensors import SafetensorError

from coterie.episode_files import episode_paths, step_of
from coterie.errors import ModelError, UserError
from coterie.files import (
    SUMS,
    WriteFailed,
    atomic_folder,
    numbered_paths,
    read_rows,
    remove_folder,
    reporting_write_errors,
    verify_checksums,
    write_atomic,
    write_checksums,
)
from coterie.models.store import read_tensors, write_tensors

if TYPE_CHECKING:
    from coterie.training.loop import Run

CRITIC = "critic"
MODEL_HASHES = "model_hashes"  # key in a run's memory: the hashes of the verifiers that score it
REWOUND = "rewound"  # folder in a run's folder, for rewound steps
EPISODES = ("episodes", "counterfactuals", "eval")  # folders with a file per step


class NoCheckpoint(UserError, FileNotFoundError):
    """A run's folder does not have the requested checkpoint."""


class BadCheckpoint(UserError, ValueError):
    """A checkpoint that cannot be read."""


def save(run: Run, best: bool = False) -> Path:
    """Write checkpoints/000120 and point `latest` (or `best`) at it."""
    if not run.processes.is_main:  # all processes hold the same state
        return run.folder / "checkpoints" / f"{run.step:06d}"
    pointer = "best" if best else "latest"
    return write(run.folder, run.step, partial(_fill, run), pointer, run.config.checkpoint.keep)


def write(run_folder: Path, step: int, fill: Callable[[Path], None], pointer: str, keep: int) -> Path:
    """Write checkpoints/000120 with checksums by `fill(folder)`, unless it exists, and point `latest` or `best` at it.

    All but the last `keep` checkpoints, and those that are pointed at, are removed.
    """
    folder = run_folder / "checkpoints" / f"{step:06d}"
    if not folder.is_dir():
        with reporting_write_errors(folder), atomic_folder(folder) as temporary:
            try:
                fill(temporary)
            except SafetensorError as error:  # raised when the disk is full
                raise WriteFailed(f"{folder} could not be written: {error}") from error
            write_checksums(temporary)
    _require_checksums(folder)
    write_atomic(run_folder / pointer, folder.name)
    _prune(run_folder, keep)
    return folder


def _fill(run: Run, folder: Path) -> None:
    for policy, learner in run.learners.items():
        learner.save(policy_folder(folder, policy))
    if run.critic is not None:
        (folder / CRITIC).mkdir()
        run.critic.save(folder / CRITIC)
    write_tensors(_state(run), folder / "state.pt")
    run.log.flush()  # so that a run resumed here has the episodes of the steps before


def _require_checksums(folder: Path) -> None:
    if not (folder / SUMS).is_file():
        raise BadCheckpoint(f"{folder} is not a checkpoint: it has no {SUMS}; move it away, then resume the run")


def find(run_folder: Path, which: str = "latest") -> Path:
    """The folder of `latest`, `best` or a step number. Without a `latest` pointer it is the newest checkpoint."""
    pointer, saved = run_folder / which, [path.name for path in numbered_paths(run_folder / "checkpoints")]
    name = f"{int(which):06d}" if which.isdigit() else pointer.read_text().strip() if pointer.is_file() else None
    if which == "latest" and not pointer.is_file() and saved:
        name = saved[-1]
    folder = run_folder / "checkpoints" / name if name else None
    if folder is None or not folder.is_dir():
        raise NoCheckpoint(f"{run_folder}: no checkpoint {which!r}; there is {', '.join(saved) or 'none'}")
    return folder


def latest(run_folder: Path) -> Path | None:
    """The checkpoint that a run resumes from, or None if it has not saved any."""
    saved = numbered_paths(run_folder / "checkpoints")
    for folder in saved:
        _require_checksums(folder)
    return find(run_folder) if saved or (run_folder / "latest").is_file() else None


def restore(run: Run, folder: Path) -> None:
    """Load the state of a checkpoint into a run."""
    try:
        _restore(run, folder)
    except ModelError as error:
        others = ", ".join(path.name for path in numbered_paths(folder.parent) if path.name != folder.name) or "none"
        raise BadCheckpoint(
            f"{str(error).rstrip('.')}. Other checkpoints of this run: {others}. "
            f"`coterie train --resume {run.folder} --checkpoint N` resumes from another one."
        ) from error


def _restore(run: Run, folder: Path) -> None:
    verify_checksums(folder)
    state = read_tensors(folder / "state.pt")
    run.step, run.best, run.evaluated_at = state["step"], state["best"], None
    run.memory.clear()
    run.memory.update(state["memory"])
    version, internal, gauss = state["rng"]
    run.rng.setstate((version, tuple(internal), gauss))
    for policy, learner in run.learners.items():
        learner.load(policy_folder(folder, policy))
        learner.restore(state["learners"][policy])
        run.engine.weights_changed(policy, learner.version)
    if run.critic is not None:
        run.critic.load(folder / CRITIC)


def resume(run: Run, which: str | None = None) -> Path | None:
    """Resume from the latest checkpoint, or from the start if there is none. `which`: rewind to this one; returns the
    folder that the later steps were moved to, if there were any."""
    rewound = None
    opened = run.memory.get(MODEL_HASHES, {})
    if (saved := latest(run.folder) if which is None else find(run.folder, which)) is not None:
        restore(run, saved)
        _require_same_models(run, opened)
    run.processes.barrier()  # no process may change the folder until all have read the checkpoint
    if run.processes.is_main and which is not None:
        rewound = rewind(run.folder, run.step)
    run.processes.barrier()
    if which is not None and not (run.folder / "best").is_file():
        run.best = None  # the best evaluation was rewound
    if run.processes.is_main:
        remove_later(run.folder, run.step)
    _restore_evaluation(run, run.log.resume(run.step, run.evaluation_due))
    return rewound


def _require_same_models(run: Run, opened: Mapping[str, str]) -> None:
    """Raise if a verifier is not the one that scored the run before."""
    for part, saved in run.memory.get(MODEL_HASHES, {}).items():
        if opened.get(part, saved) != saved:
            raise BadCheckpoint(
                f"{part}: {run.folder} was trained with the verifier of hash {saved[:12]}, and now it has "
                f"{opened[part][:12]}; scores of two models are not comparable: bring the first one back"
            )


def _restore_evaluation(run: Run, rows: Sequence[Mapping[str, float]]) -> None:
    """Reuse an evaluation that was logged after the checkpoint was saved."""
    rewards = [row["eval/reward"] for row in rows if row["step"] == run.step and "eval/reward" in row]
    for reward in run.processes.broadcast(rewards):
        run.evaluated_at = run.step
        if run.best is None or reward > run.best:
            run.best = reward
            if run.keeps_best:
                save(run, best=True)


def remove_later(run_folder: Path, step: int) -> None:
    """Remove checkpoints after the step that a run resumes from."""
    for path in numbered_paths(run_folder / "checkpoints"):
        if int(path.name) > step:
            remove_folder(path)  # the run was killed before it wrote `latest`
    if (run_folder / "best").is_file() and not (run_folder / "checkpoints" / _pointed(run_folder, "best")).is_dir():
        (run_folder / "best").unlink()  # of a step that the run will repeat


def policy_folder(folder: Path, policy: str) -> Path:
    return folder / "policies" / quote(policy, safe=" ")


def critic_folder(folder: Path, critic: str) -> Path:
    return folder / CRITIC / quote(critic, safe=" ")


def _pointed(run_folder: Path, pointer: str) -> str:
    return (run_folder / pointer).read_text().strip()


def _state(run: Run) -> dict[str, object]:
    version, internal, gauss = run.rng.getstate()
    return {
        "step": run.step,
        "best": run.best,
        "memory": run.memory,
        "rng": (version, list(internal), gauss),
        "learners": {policy: learner.state() for policy, learner in run.learners.items()},
    }


def _prune(run_folder: Path, keep: int) -> None:
    """Keep the last `keep` checkpoints, and those that `latest` and `best` point at."""
    pointed = {_pointed(run_folder, name) for name in ("latest", "best") if (run_folder / name).is_file()}
    for path in numbered_paths(run_folder / "checkpoints")[:-keep]:
        if path.name not in pointed:
            remove_folder(path)


def rewind(folder: Path, done: int) -> Path | None:
    """Move the files of all steps after step `done` to rewound/000020, which nothing reads; None if there are none.

    `latest` is written last, so that a process killed before that repeats the rewind.
    """
    numbered = [path for name in EPISODES for path in episode_paths(folder / name)]
    later = [path for path in [*numbered_paths(folder / "checkpoints"), *numbered] if step_of(path) > done]
    rows = [row for row in read_rows(folder / "metrics.jsonl") if row["step"] > done]
    target = None
    if later or rows:
        target = _unused(folder / REWOUND / f"{done:06d}")
        write_atomic(target / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        with reporting_write_errors(target):
            shutil.copy(folder / "config.yaml", target)
            for path in [*later, *_rewound_pointers(folder, done)]:
                moved = target / path.relative_to(folder)
                moved.parent.mkdir(exist_ok=True)
                path.rename(moved)
    write_atomic(folder / "latest", f"{done:06d}")
    return target


def _rewound_pointers(folder: Path, done: int) -> list[Path]:
    """`best` if it points at a later step, and W&B's id: the continuation is another W&B run."""
    best, wandb = folder / "best", folder / "wandb-id"
    later = [best] if best.is_file() and int(best.read_text()) > done else []
    return later + ([wandb] if wandb.is_file() else [])


def _unused(folder: Path) -> Path:
    names = (folder if n == 1 else folder.with_name(f"{folder.name}-{n}") for n in count(1))
    return next(name for name in names if not name.exists())
