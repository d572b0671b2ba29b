"""Laws of several processes and devices: however many there are, it is the same run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.config import ConfigError
from coterie.episode_files import EpisodeFile
from coterie.learners.distributed import Processes
from coterie.training.loop import Run
from coterie.training.placement import check_devices
from coterie.types import Batch
from tests.forked import run_python
from tests.hangs import HANG
from tests.runs import naming_config, resumed, started, trained, written
from tests.several import WAYS

Folder = Callable[[str], Path]
Weights = Mapping[str, torch.Tensor]
ROOT = Path(__file__).parents[2]
STEPS, LR = 3, 1e-3


def config(model: Path) -> dict[str, Any]:
    """All that is shared out: values and reference log-probs that are read, minibatches, held-out tasks; a whole
    model and an adapter that learn."""
    ppo = {"name": "ppo", "kl": 0.05, "epochs": 2, "minibatches": 2}
    tree = naming_config(model, steps=STEPS, tasks_per_step=3, algorithm=ppo, eval={"every": 2, "tasks": 3})
    for policy in tree["policies"].values():
        policy["lr"] = LR  # other sums round otherwise, and fast learning would blow that up
    tree["policies"]["left"] |= {"lora": None}
    return tree


@pytest.fixture(scope="module")
def alone(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run in this one process."""
    return trained(config(model_folder("llama")), tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def together(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs in two processes, each in a folder named by how it went."""
    root = tmp_path_factory.mktemp("together")
    for way in WAYS:
        written(config(model_folder("llama")), root / way)
    told = run_python(["-m", "tests.several", str(root)], seconds=HANG)
    lost = [2, -signal.SIGKILL]
    assert json.loads(told.stdout) == {"straight": [[0, 0]], "left alone": [lost, [0, 0]], "left for good": [lost]}
    return root


def weights(folder: Path, rank: int) -> dict[str, dict[str, torch.Tensor]]:
    return torch.load(folder / f"weights-{rank}.pt")


def tokens(folder: Path) -> list[Any]:
    episodes = [row for path in sorted((folder / "episodes").glob("*")) for row in EpisodeFile(path).rows()]
    return [(e["id"], e["reward"], [turn["response_ids"] for turn in e["turns"]]) for e in episodes]


def measured(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clock = ("time", "tokens_per_second", "cluster/idle_seconds")
    return [{k: v for k, v in row.items() if k not in clock and not k.startswith("seconds/")} for row in rows]


def test_two_processes_learn_what_one_does(together: Path, alone: Run, model_folder: Folder, tmp_path: Path) -> None:
    """To rounding: sums of float32 in another order differ in their last bits. Adam divides a gradient by its own size,
    so a weight whose gradient is nothing but rounding may move anywhere within LR; all together they differ by less
    than 1e-4 of the way that they have gone (2e-5 was seen)."""
    two, fresh = together / "straight", started(config(model_folder("llama")), tmp_path)
    for policy, theirs in weights(two, 0).items():
        assert_close(theirs, *(run.learners[policy].parameters() for run in (alone, fresh)))
    assert tokens(two) == tokens(alone.folder) and len(tokens(two)) == STEPS * 12
    for theirs_now, ours in zip(measured(two), measured(alone.folder), strict=True):
        assert theirs_now == pytest.approx(ours, rel=1e-3, abs=1e-4)


def assert_close(theirs: Weights, ours: Weights, before: Weights) -> None:
    off, way = (torch.cat([(theirs[n] - p[n]).flatten() for n in theirs]).detach() for p in (ours, before))
    assert off.norm() < 1e-4 * way.norm() and off.abs().max() < LR


def test_one_process_goes_on_where_two_were(together: Path, alone: Run, model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"))
    fresh, again = started(tree, tmp_path), resumed(tree, together / "left for good")
    for policy, learner in again.learners.items():
        assert_close(learner.parameters(), *(run.learners[policy].parameters() for run in (alone, fresh)))
    assert tokens(again.folder) == tokens(alone.folder)


@pytest.mark.parametrize("way", ["straight", "left alone"])
def test_both_processes_hold_the_same_weights_to_the_bit(way: str, together: Path) -> None:
    torch.testing.assert_close(weights(together / way, 0), weights(together / way, 1), rtol=0, atol=0)


def test_a_run_of_two_processes_is_resumed_to_the_bit(together: Path) -> None:
    straight, again = together / "straight", together / "left alone"
    torch.testing.assert_close(weights(again, 0), weights(straight, 0), rtol=0, atol=0)
    assert tokens(again) == tokens(straight) and measured(again) == measured(straight)


def test_two_processes_leave_one_run_behind(together: Path, alone: Run) -> None:
    folder, one = together / "straight", alone.folder
    there = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "tfevents" not in path.name}
    assert there - {Path("weights-0.pt"), Path("weights-1.pt")} == {
        path.relative_to(one) for path in one.rglob("*") if path.is_file() and "tfevents" not in path.name
    }
    assert len(list(folder.glob("tensorboard/*"))) == 1


def test_when_a_process_dies_the_other_ends_and_says_so(together: Path) -> None:
    assert "another process of this run has ended" in (together / "left alone" / "complaint").read_text()


# Shares


def batch_of(lengths: list[int]) -> Batch:
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    columns = {name: row for name in Batch.__dataclass_fields__ if name != "roles"}
    return Batch(**columns, roles=())


@pytest.mark.parametrize("lengths", [[5, 1, 9, 2, 2, 7], [100, 1, 1, 1], [3], [1] * 40])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_row_is_one_process_s(lengths: list[int], size: int) -> None:
    batch = batch_of(lengths)
    shares = [batch.row[Processes(rank, size).shard_rows(batch)].tolist() for rank in range(size)]
    assert [row for share in shares for row in share] == batch.row.tolist()
    assert all(not set(a) & set(b) for a, b in pairwise(shares))
    fair = len(batch) / size
    assert all(len(share) <= fair + max(lengths) for share in shares)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 24])
def test_every_episode_is_played_by_one_process(count: int, size: int) -> None:
    things = list(range(count))
    shares = [things[Processes(rank, size).shard(count)] for rank in range(size)]
    assert [thing for share in shares for thing in share] == things
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# Devices


def placed(model: Folder, folder: Path, left: str, right: str) -> Run:
    """Two models, each on a device of its own."""
    tree = naming_config(model("llama"), steps=2)
    tree["policies"]["left"] |= {"device": left}
    tree["policies"]["right"] |= {"device": right, "model": str(model("qwen2"))}
    return trained(tree, folder)


def assert_placed(run: Run, *devices: str) -> None:
    for learner, device in zip(run.learners.values(), devices, strict=True):
        assert learner.base.device == torch.device(device) and learner.version == 2
        probe = torch.zeros(1).to(device)  # what was on the CPU stays there, whatever number that is given
        assert all(parameter.device == probe.device for parameter in learner.parameters().values())


def test_policies_on_different_models_may_be_on_different_devices(model_folder: Folder, tmp_path: Path) -> None:
    run = placed(model_folder, tmp_path / "two", "cpu", "cpu:0")
    assert_placed(run, "cpu", "cpu:0")
    same = placed(model_folder, tmp_path / "one", "cpu", "cpu")
    assert tokens(run.folder) == tokens(same.folder)


@pytest.mark.gpu
def test_one_policy_may_be_on_the_cpu_and_another_on_a_gpu(model_folder: Folder, tmp_path: Path) -> None:
    assert_placed(placed(model_folder, tmp_path, "cpu", "cuda:0"), "cpu", "cuda:0")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_policies_may_be_on_two_gpus(model_folder: Folder, tmp_path: Path) -> None:
    assert_placed(placed(model_folder, tmp_path, "cuda:0", "cuda:1"), "cuda:0", "cuda:1")


def test_a_critic_is_where_the_policies_on_its_model_are(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), algorithm="mappo")
    for policy in tree["policies"].values():
        policy["device"] = "cpu:0"
    run = started(tree, tmp_path)
    bases = {id(learner.base) for learner in run.learners.values()}
    bases |= {id(judge.learner.base) for judge in run.critic.critics.values()}  # type: ignore[union-attr]
    assert len(bases) == 1 and run.learners["left"].base.device == torch.device("cpu:0")


def test_a_device_that_is_not_there_is_named_before_a_model_loads(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(tmp_path / "no such model")
    for policy in tree["policies"].values():
        policy["device"] = "cuda:99"
    with pytest.raises(ConfigError, match=r"policies.left.device: cuda:99 does not exist; this machine has \d+ GPUs"):
        started(tree, tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"engine": {"name": "vllm"}}, "engine.name: vllm is not supported under torchrun"),
        (
            {"policies": {"left": {"device": "cpu"}, "right": {"device": "cpu"}}},
            "left.device: not supported under torchrun",
        ),
    ],
)
def test_what_several_processes_cannot_do_is_said(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    config_of_two = written(naming_config(tmp_path, **changes), tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        check_devices(config_of_two, Processes(0, 2))


# The command


def torchrun(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`torchrun --nproc-per-node 2 -m coterie …`"""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "coterie"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    told = [*command, *map(str, arguments)]
    return subprocess.run(told, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG)


@pytest.mark.slow
def test_the_command_trains_and_goes_on_under_torchrun(model_folder: Folder, tmp_path: Path) -> None:
    written(naming_config(model_folder("llama"), name="two", steps=2), tmp_path)
    trained_ = torchrun("train", tmp_path / "config-as-given.yaml", "--out", tmp_path, "--examples", "1")
    assert trained_.returncode == 0, trained_.stderr
    assert trained_.stdout.count("after 2 steps") == 1, "one of them talks"
    resumed = torchrun("train", "--resume", tmp_path / "two", "steps=3")
    assert resumed.returncode == 0, resumed.stderr
    assert [row["step"] for row in measured(tmp_path / "two")] == [1, 2, 3, 3]
    assert not (tmp_path / "two-2").exists()


@pytest.mark.slow
def test_a_mistake_in_a_config_ends_all_processes_with_its_text(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), name="two")
    tree["policies"]["left"] |= {"device": "cpu"}
    tree["policies"]["right"] |= {"device": "cpu"}
    written(tree, tmp_path)
    told = torchrun("train", tmp_path / "config-as-given.yaml", "--out", tmp_path)
    assert told.returncode != 0 and "not supported under torchrun: each process has one device" in told.stderr
