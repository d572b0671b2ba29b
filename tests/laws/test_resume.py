"""Laws of going on: whatever instant a run stops at, it continues as the same run, to the bit."""

from __future__ import annotations

import gc
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.episode_files import EpisodeFile, Row
from coterie.files import FolderInUse, exclusive_lock
from coterie.games.naming import Naming
from coterie.training import checkpoint
from coterie.training.checkpoint import BadCheckpoint, NoCheckpoint
from coterie.training.loop import Run, train
from coterie.types import Episode
from tests.forked import run_python
from tests.hangs import HANG
from tests.killed import CTRL_C, MOMENTS
from tests.runs import naming_config, resumed, started, trained, written

Folder = Callable[[str], Path]
SHUFFLED = {"epochs": 2, "minibatches": 2}  # so that the algorithm's random stream matters
ALGORITHMS: dict[str, dict[str, Any]] = {"grpo": {"name": "grpo", **SHUFFLED}, "ppo": {"name": "ppo", **SHUFFLED}}


def config(model: Path, algorithm: str = "grpo", whole: bool = False, steps: int = 4, **changes: Any) -> dict[str, Any]:
    evaluation = {"every": min(2, steps), "tasks": 3}
    tree = naming_config(model, steps=steps, algorithm=ALGORITHMS[algorithm], eval=evaluation, **changes)
    if whole:
        tree["policies"] = {name: {"model": str(model), "lr": 1e-3, "lora": None} for name in ("left", "right")}
    return tree


@pytest.fixture(scope="module")
def straight(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps at once; not to be changed."""
    return trained(config(model_folder("llama")), tmp_path_factory.mktemp("straight"))


@pytest.fixture(scope="module")
def two_steps(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps; not to be changed."""
    return trained(config(model_folder("llama"), steps=2), tmp_path_factory.mktemp("two")).folder


@pytest.fixture
def stopped(two_steps: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    shutil.copytree(two_steps, tmp_path / "stopped")
    return tmp_path / "stopped"


def test_a_token_budget_ends_a_run_after_the_step_that_reaches_it(
    tmp_path: Path, model_folder: Folder, straight: Run
) -> None:
    tree = config(model_folder("llama"))
    sampled = [int(row["sampled_tokens"]) for row in metrics(straight.folder) if "sampled_tokens" in row]
    stopped = trained(tree | {"max_sampled_tokens": sum(sampled[:2]) + 1}, tmp_path / "part")
    assert stopped.finished and stopped.step == 3 and metrics(tmp_path / "part")[-1]["step"] == 3
    assert "eval/reward" in metrics(tmp_path / "part")[-1]  # the last weights are evaluated
    resumed(tree | {"max_sampled_tokens": sum(sampled)}, tmp_path / "part")
    assert metrics(tmp_path / "part")[-1] == metrics(straight.folder)[-1]


def metrics(folder: Path) -> list[dict[str, float]]:
    """All that was measured, but for what a clock says."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if k not in ("time", "tokens_per_second") and not k.startswith("seconds/")}
        for row in rows
    ]


def episodes(folder: Path) -> dict[str, list[Row]]:
    """All that was stored, but for what a clock says."""
    files = {path.name: EpisodeFile(path).rows() for path in sorted((folder / "episodes").glob("*.jsonl.gz"))}
    for turn in (turn for rows in files.values() for row in rows for turn in row["turns"]):
        del turn["started"], turn["ended"]
    return files


def assert_same_run(one: Run, other: Run) -> None:
    """Weights, optimisers, random streams, measurements and every sampled token are equal, not nearly equal."""
    assert one.step == other.step and one.best == other.best
    assert one.rng.getstate() == other.rng.getstate()
    for policy, learner in one.learners.items():
        same = other.learners[policy]
        assert learner.version == same.version > 0
        for name, parameter in learner.parameters().items():
            assert torch.equal(parameter, same.parameters()[name]), (policy, name)
        torch.testing.assert_close(learner.state(), same.state(), rtol=0, atol=0)
    assert metrics(one.folder) == metrics(other.folder)
    assert episodes(one.folder) == episodes(other.folder)


@pytest.mark.parametrize(("algorithm", "whole"), [("grpo", True), ("ppo", False)])  # GRPO on LoRA: below
def test_twice_two_steps_are_four_steps(algorithm: str, whole: bool, model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), algorithm, whole)
    straight = trained(tree, tmp_path / "straight")
    trained(tree | {"steps": 2}, tmp_path / "halves")
    assert_same_run(resumed(tree, tmp_path / "halves"), straight)


def test_the_learning_rate_of_a_resumed_run_is_where_it_was(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), learning={"schedule": "cosine", "warmup": 1})
    run = started(tree, tmp_path)
    stop_after(run, 2)
    train(run)
    again = resumed(tree, tmp_path)
    assert_same_run(again, trained(tree, tmp_path / "straight"))


def test_a_run_whose_pointer_was_lost_goes_on_from_its_newest_checkpoint(
    model_folder: Folder, straight: Run, tmp_path: Path
) -> None:
    trained(config(model_folder("llama")) | {"steps": 2}, tmp_path)
    (tmp_path / "latest").unlink()
    assert_same_run(resumed(config(model_folder("llama")), tmp_path), straight)


def test_a_folder_that_another_process_trains_in_is_refused(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path),
        pytest.raises(FolderInUse, match="is in use by another process"),
        exclusive_lock(tmp_path),
    ):
        pass
    with exclusive_lock(tmp_path):
        pass


def stop_after(run: Run, steps: int) -> None:
    """As if Ctrl-C came in the middle of the step."""
    draw = run.tasks.at_step

    def drawn(step: int) -> Any:
        run.stopping = run.step + 1 == steps
        return draw(step)

    run.tasks.at_step = drawn  # type: ignore[method-assign]


# Ended from outside


@pytest.fixture(scope="module")
def ended(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that were killed or interrupted, each in a folder named by the moment at which it was."""
    root = tmp_path_factory.mktemp("ended")
    for moment in MOMENTS:
        written(config(model_folder("llama")), root / moment)
    written(unsaved(model_folder("llama")), root / CTRL_C)
    told = run_python(["-m", "tests.killed", str(root)], seconds=HANG)
    assert json.loads(told.stdout) == dict.fromkeys(MOMENTS, -signal.SIGKILL) | {CTRL_C: 0}, told.stderr
    return root


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_as_if_it_had_not_been_killed(
    moment: str, ended: Path, straight: Run, model_folder: Folder
) -> None:
    assert checkpoint.find(ended / moment).name == "000001"
    run = resumed(config(model_folder("llama")), ended / moment)
    assert_same_run(run, straight)
    assert not list(run.folder.rglob(".tmp-*"))


def unsaved(model: Path) -> dict[str, Any]:
    """A long run that would not be saved for a long time."""
    return config(model, steps=500, checkpoint={"every": 500})


def test_ctrl_c_saves_and_the_run_goes_on(ended: Path, model_folder: Folder, tmp_path: Path) -> None:
    saved = int(checkpoint.find(ended / CTRL_C).name)
    assert 1 <= saved < 500
    assert [row["step"] for row in metrics(ended / CTRL_C) if "reward" in row] == list(range(1, saved + 1))
    tree = unsaved(model_folder("llama")) | {"steps": saved + 1}
    assert_same_run(resumed(tree, ended / CTRL_C), trained(tree, tmp_path))


class Impatient(Naming):
    """A player who presses Ctrl-C twice."""

    async def score(self, episode: Episode) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_ends_the_run_at_once_and_nothing_is_lost(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), steps=2) | {"eval": {"every": 1, "tasks": 3}}
    trained(tree | {"steps": 1}, tmp_path)
    run = started(tree, tmp_path)
    checkpoint.resume(run)
    run.collector = replace(run.collector, env=Impatient({}))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(run)
    gc.collect()  # asyncio reports the interrupted task now: from within ast.parse CPython 3.11 makes it a SystemError
    assert signal.getsignal(signal.SIGINT) is before
    assert_same_run(resumed(tree, tmp_path), trained(tree, tmp_path / "straight"))


# Checkpoints


def test_the_last_checkpoints_and_the_best_are_kept(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), steps=5, checkpoint={"every": 1, "keep": 2})
    run = trained(tree | {"eval": {"every": 1, "tasks": 3}}, tmp_path)
    there = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    best = checkpoint.find(tmp_path, "best").name
    assert there == {"000004", "000005", best}
    rewards = {f"{row['step']:06d}": row["eval/reward"] for row in metrics(tmp_path) if "eval/reward" in row}
    assert rewards[best] == max(rewards.values()) == run.best


def test_what_was_saved_after_the_point_of_going_on_is_forgotten(model_folder: Folder, stopped: Path) -> None:
    (stopped / "latest").write_text("000001")
    run = started(config(model_folder("llama"), steps=2), stopped)
    checkpoint.resume(run)
    assert run.step == 1 and [row["step"] for row in metrics(stopped)] == [0, 1]
    assert list(episodes(stopped)) == ["000001.jsonl.gz"]
    assert not (stopped / "checkpoints" / "000002").exists()


def test_a_checkpoint_that_is_not_there_is_named_beside_those_that_are(two_steps: Path) -> None:
    assert checkpoint.find(two_steps, "2") == checkpoint.find(two_steps)
    with pytest.raises(NoCheckpoint, match=r"no checkpoint '7'; there is 000001"):
        checkpoint.find(two_steps, "7")


def test_the_same_run_under_another_concurrency_samples_the_same_tokens(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=2)
    tree["workflow"] |= {"rounds": 2}
    for policy in tree["policies"].values():
        policy["lr"] = 1e-3  # a batch of another size rounds otherwise, and fast learning would blow that up

    def tokens(name: str, **changes: Any) -> list[Any]:
        run = trained(tree | changes, tmp_path / name)
        lines = [row for rows in episodes(run.folder).values() for row in rows]
        return [(line["id"], [turn["response_ids"] for turn in line["turns"]]) for line in lines]

    wide = tokens("wide")
    assert len(wide) == 2 * 8
    assert tokens("narrow", rollout={"concurrency": 3}) == wide
    assert tokens("few rows", engine={"rows": 2}) == wide


WEIGHTS = "policies/left/adapter_model.safetensors"  # without a sum: a byte that changed in it is not noticed


@pytest.mark.parametrize(
    ("name", "how"),
    [("state.pt", "cut"), ("state.pt", "gone"), ("state.pt", "changed"), (WEIGHTS, "cut"), (WEIGHTS, "gone")],
)
def test_a_damaged_checkpoint_is_named_and_so_are_the_others(
    name: str, how: str, model_folder: Folder, stopped: Path
) -> None:
    tree = config(model_folder("llama"), steps=3)
    file = stopped / "checkpoints" / "000002" / name
    if how == "gone":
        file.unlink()
    elif how == "changed":
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        file.write_bytes(damaged)
    else:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BadCheckpoint, match=rf"{Path(name).name}.*Other checkpoints of this run: 000001"):
        resumed(tree, stopped)
    (stopped / "latest").write_text("000001")  # as the message says
    assert resumed(tree, stopped).step == 3
