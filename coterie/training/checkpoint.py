"""Saves and restores a run. A checkpoint is complete or it is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from safetensors import SafetensorError

from coterie.errors import ModelError, UserError
from coterie.files import (
    SUMS,
    WriteFailed,
    atomic_folder,
    numbered_paths,
    remove_folder,
    reporting_write_errors,
    verify_checksums,
    write_atomic,
    write_checksums,
)
from coterie.models.store import read_tensors, write_tensors
from coterie.training.rewind import set_aside

if TYPE_CHECKING:
    from coterie.training.loop import Run


CRITIC = "critic"


class NoCheckpoint(UserError, FileNotFoundError):
    """A run's folder without the checkpoint that was asked for."""


class BadCheckpoint(UserError, ValueError):
    """A checkpoint that cannot be read."""


def save(run: Run, best: bool = False) -> Path:
    """Write checkpoints/000120 and point `latest` (or `best`) at it."""
    folder = run.folder / "checkpoints" / f"{run.step:06d}"
    if not run.processes.is_main:  # all hold the same; one writes it
        return folder
    if not folder.is_dir():
        with reporting_write_errors(folder), atomic_folder(folder) as beside:
            _fill(run, beside)
    _must_be_checkpoint(folder)
    write_atomic(run.folder / ("best" if best else "latest"), folder.name)
    _prune(run)
    return folder


def _fill(run: Run, folder: Path) -> None:
    try:
        for policy, learner in run.learners.items():
            learner.save(policy_folder(folder, policy))
        if run.critic is not None:
            (folder / CRITIC).mkdir()
            run.critic.save(folder / CRITIC)
        write_tensors(_state(run), folder / "state.pt")
    except SafetensorError as error:  # how it tells of a full disk
        raise WriteFailed(f"{folder.with_name(f'{run.step:06d}')} could not be written: {error}") from error
    write_checksums(folder)


def _must_be_checkpoint(folder: Path) -> None:
    if not (folder / SUMS).is_file():
        raise BadCheckpoint(f"{folder} is no checkpoint: there is no {SUMS} in it; move it away, then resume the run")


def find(run_folder: Path, which: str = "latest") -> Path:
    """The folder of `latest`, `best` or a step number. Where `latest` was lost or not written yet, it is the newest
    checkpoint there is."""
    pointer, there = run_folder / which, [path.name for path in numbered_paths(run_folder / "checkpoints")]
    name = f"{int(which):06d}" if which.isdigit() else pointer.read_text().strip() if pointer.is_file() else None
    if which == "latest" and not pointer.is_file() and there:
        name = there[-1]
    folder = run_folder / "checkpoints" / name if name else None
    if folder is None or not folder.is_dir():
        raise NoCheckpoint(f"{run_folder}: no checkpoint {which!r}; there is {', '.join(there) or 'none'}")
    return folder


def latest(run_folder: Path) -> Path | None:
    """What a run goes on from, if it has saved anything yet."""
    there = numbered_paths(run_folder / "checkpoints")
    for folder in there:
        _must_be_checkpoint(folder)
    return find(run_folder) if there or (run_folder / "latest").is_file() else None


def restore(run: Run, folder: Path) -> None:
    """Put a run back to where the checkpoint was taken."""
    try:
        _restore(run, folder)
    except ModelError as error:
        others = ", ".join(path.name for path in numbered_paths(folder.parent) if path.name != folder.name) or "none"
        raise BadCheckpoint(
            f"{str(error).rstrip('.')}. Other checkpoints of this run: {others}. "
            f"`coterie train --resume {run.folder} --checkpoint N` goes on from another one."
        ) from error


def _restore(run: Run, folder: Path) -> None:
    verify_checksums(folder)
    state = read_tensors(folder / "state.pt")
    run.step, run.best, run.tasks.drawn = state["step"], state["best"], state["drawn"]
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
    """Go on from the latest checkpoint, or from the start where none was written yet. `which`: go back to this one;
    the folder in which what was done after it is set aside, if there is any."""
    aside = None
    if (saved := latest(run.folder) if which is None else find(run.folder, which)) is not None:
        restore(run, saved)
    run.processes.barrier()  # until all have read it
    if run.processes.is_main and which is not None:
        aside = set_aside(run.folder, run.step)
    run.processes.barrier()
    if which is not None and not (run.folder / "best").is_file():
        run.best = None  # the next evaluation is the best of this way on
    if run.processes.is_main:
        _forget_later(run)
    _recall_evaluation(run, run.log.resume(run.step, run.evaluation_due))
    return aside


def _recall_evaluation(run: Run, rows: Sequence[Mapping[str, float]]) -> None:
    """What was measured after the checkpoint's step, once it was saved: it need not be measured again."""
    rewards = [row["eval/reward"] for row in rows if row["step"] == run.step and "eval/reward" in row]
    for reward in run.processes.broadcast(rewards):
        run.evaluated_at = run.step
        if run.best is None or reward > run.best:
            run.best = reward
            if run.keeps_best:
                save(run, best=True)


def _forget_later(run: Run) -> None:
    """What was saved after the step that the run goes on from."""
    for path in numbered_paths(run.folder / "checkpoints"):
        if int(path.name) > run.step:
            remove_folder(path)  # of a run that was killed before it could point at it
    if (run.folder / "best").is_file() and not (run.folder / "checkpoints" / _pointed(run, "best")).is_dir():
        (run.folder / "best").unlink()  # it was of a step that the run now comes to again


def policy_folder(folder: Path, policy: str) -> Path:
    return folder / "policies" / quote(policy, safe=" ")


def _pointed(run: Run, pointer: str) -> str:
    return (run.folder / pointer).read_text().strip()


def _state(run: Run) -> dict[str, object]:
    version, internal, gauss = run.rng.getstate()
    return {
        "step": run.step,
        "best": run.best,
        "drawn": run.tasks.drawn,
        "memory": run.memory,
        "rng": (version, list(internal), gauss),
        "learners": {policy: learner.state() for policy, learner in run.learners.items()},
    }


def _prune(run: Run) -> None:
    """Keep the last few, and those that `latest` and `best` point at."""
    pointed = {_pointed(run, name) for name in ("latest", "best") if (run.folder / name).is_file()}
    there = numbered_paths(run.folder / "checkpoints")
    for path in there[: -run.config.checkpoint.keep]:
        if path.name not in pointed:
            remove_folder(path)
