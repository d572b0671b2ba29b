"""Laws of a run on a cluster: however many workers there are and whichever of them die, it is the same run."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")

import ray

from coterie.cluster.collector import cut
from coterie.cluster.connection import CannotPlace, check_resources
from coterie.cluster.driver import Driver
from coterie.cluster.learners import RemoteLearner, own_jobs
from coterie.cluster.rollout_worker import RolloutWorker
from coterie.cluster.shipment import pack
from coterie.config import ConfigError
from coterie.config.conflicts import check_conflicts
from coterie.config.settings import Cluster, LearnerWorkers, RolloutWorkers
from coterie.errors import ModelError
from coterie.files import read_rows
from coterie.games import naming
from coterie.learners.batch import make_batches
from coterie.learners.distributed import Processes
from coterie.rollout.collector import new_episodes
from coterie.training.loop import Run
from coterie.types import Episode, Task
from tests.clusters import end_learner, end_player, on_fit, on_wait, raylets, started_on_cluster, trained_on_cluster
from tests.episodes import random_episodes
from tests.laws.test_parallel import LR, assert_close, measured, tokens
from tests.runs import naming_config, started, trained, written

Folder = Callable[[str], Path]
PPO = {"name": "ppo", "kl": 0.05, "epochs": 2, "minibatches": 2}


def config(model: Path) -> dict[str, Any]:
    """A whole model and an adapter that learn; values, reference log-probs, minibatches and evaluations."""
    tree = naming_config(model, steps=3, tasks_per_step=3, algorithm=PPO, eval={"every": 2, "tasks": 3})
    tree["policies"]["left"] |= {"lora": None}
    return tree


@pytest.fixture(scope="module")
def alone(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run in this one process."""
    return trained(config(model_folder("llama")), tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    with raylets(2) as cluster:
        yield cluster


def assert_same(weights: dict[str, Any], folder: Path, run: Run) -> None:
    expected = {policy: learner.weights() for policy, learner in run.learners.items()}
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)
    assert tokens(folder) == tokens(run.folder)
    for row, other in zip(measured(folder), measured(run.folder), strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-4)  # the sampler's log-probs round with its batches


def test_workers_that_die_change_no_bit(
    ray_cluster: Any, alone: Run, model_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rollout worker dies while it plays, then the learner in the update of the second step."""

    def prepare(driver: Any) -> None:
        end_player(driver, play=2)
        end_learner(driver, fit=6)
        on_fit(driver, 8, lambda: states.append(json.loads((tmp_path / "status.json").read_text())["state"]))

    tree, states = config(model_folder("llama")), list[str]()
    weights = trained_on_cluster(tree, tmp_path, prepare, rollout={"workers": 2}, chunk=4)
    assert_same(weights, tmp_path, alone)
    assert states == ["running"]  # after the learner was lost
    steps = [row for row in read_rows(tmp_path / "metrics.jsonl") if "sampled_tokens" in row]
    assert all(row["cluster/idle_seconds"] > 0 for row in steps)
    told = capsys.readouterr().err
    assert re.search(r"rollout worker \d \(process \d+ on .* GB after its start\) was lost: ", told)
    assert re.search(r"learner 0 \(process \d+ on (.|\n)*restarted from the checkpoint of step 1", told)


def test_a_chunk_played_alone_has_the_same_log_probs_after_any_other(
    ray_cluster: Any, model_folder: Folder, tmp_path: Path
) -> None:
    """To the bit: with `truncate` they are in the loss. Prompts of the two tasks share a prefix."""
    tree = naming_config(model_folder("llama"), algorithm={"name": "grpo", "truncate": 2.0})
    tree["env"]["prompt"] = "This is how all the prompts of this game begin, up to the number of the game: {n}."
    run = started(tree, tmp_path)
    plan, shipment = run.plan(0), pack(run.config, tmp_path)

    async def played(*tasks: Task) -> Any:
        worker = RolloutWorker()
        await worker.start(shipment, None, sets=1)
        for task in tasks:
            chunk = [(episode, {}) for episode in new_episodes([task], 4, plan.seed)]
            episodes = await worker.play(0, chunk, plan.players)
        return [turn.logprobs for episode in episodes for turn in episode["turns"]]

    first, second = plan.tasks
    assert asyncio.run(played(first, second)) == asyncio.run(played(second))


def test_an_error_of_a_worker_is_raised_in_the_driver(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    """No retry: it would occur again."""
    with (
        started_on_cluster(naming_config(model_folder("llama")), tmp_path) as (_, run),
        pytest.raises(ModelError, match=r"no adapter_model\.safetensors"),
    ):
        run.learners["left"].load(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "mappo"])
def test_sharded_learners_learn_what_one_does(
    kind: str, ray_cluster: Any, model_folder: Folder, tmp_path: Path
) -> None:
    """Also when one of them dies; MAPPO has a critic that is a whole model."""
    tree = config(model_folder("llama"))
    if kind == "mappo":
        critics = {"team": {"model": str(model_folder("llama")), "sees": "joint", "lora": None, "lr": LR}}
        tree |= {"algorithm": {"name": "mappo"}, "critics": critics}
    for policy in tree["policies"].values():
        policy["lr"] = LR  # see `test_parallel.config`
    one, fresh = trained(tree, tmp_path / "one"), started(tree, tmp_path / "fresh")
    learner = {"workers": 2, "shard": True}
    two = trained_on_cluster(tree, tmp_path / "two", lambda driver: end_learner(driver, fit=6, rank=1), learner=learner)
    for policy, weights in two.items():
        assert_close(weights, one.learners[policy].weights(), fresh.learners[policy].weights())
    assert tokens(tmp_path / "two") == tokens(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["sampler", "grader"])
def test_graders_play_the_same_episodes(
    dies: str, ray_cluster: Any, alone: Run, model_folder: Folder, tmp_path: Path
) -> None:
    """Two graders, one of which has lost a sampler, or is lost itself."""

    def prepare(driver: Driver) -> None:
        worker = driver.pool.workers[0]
        found = worker.actor.__ray_call__.remote(lambda grader: grader.places[1].pid)
        pid = ray.get(found) if dies == "sampler" else worker.place.pid  # type: ignore[union-attr]
        on_wait(driver, 2, lambda: os.kill(pid, signal.SIGKILL))

    tree, graders = config(model_folder("llama")), {"workers": 2, "cpus": 0.5}
    rollout = {"workers": 4, "cpus": 0.5}
    weights = trained_on_cluster(tree, tmp_path, prepare, rollout=rollout, graders=graders, chunk=4)
    assert_same(weights, tmp_path, alone)


# Chunks


@pytest.mark.parametrize("size", [1, 4, 5, 100])
def test_a_chunk_has_whole_groups_and_chunks_have_all_episodes(size: int) -> None:
    episodes = [Episode(f"{task}/{repeat}", Task(task, "", None), repeat) for task in "abcde" for repeat in range(4)]
    chunks = cut([(episode, {}) for episode in episodes], size)
    assert [episode for chunk in chunks for episode, _ in chunk] == episodes
    groups = [{episode.task.id for episode, _ in chunk} for chunk in chunks]
    assert sum(map(len, groups)) == 5 and all(len(chunk) >= size for chunk in chunks[:-1])


# Batches


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_rank_is_sent_its_rows_and_no_others(size: int) -> None:
    (batch,) = make_batches(random_episodes(0, 60), require_advantages=False).values()
    weights = torch.arange(len(batch)).float()
    learner = RemoteLearner(None, "policy", frozen=False)  # type: ignore[arg-type]
    parts = [own_jobs([(learner, batch, weights, None, None)], Processes(rank, size))[0] for rank in range(size)]  # type: ignore[list-item]
    assert torch.cat([part.tokens for _, part, *_ in parts]).equal(batch.tokens)
    assert torch.cat([own for _, _, own, *_ in parts]).equal(weights)
    sent = [len(pickle.dumps(part)) / len(batch) for part in parts]  # bytes per token of the whole batch
    assert all(part.row[0] == 0 for _, part, *_ in parts)
    assert max(sent) < 1.25 * 101 / size + 1 and sum(sent) < 110


# Resources


def settings(learners: tuple[int, float, float], players: tuple[int, float, float]) -> Cluster:
    keys = ("workers", "gpus", "cpus")
    learner, rollout = (dict(zip(keys, one, strict=True)) for one in (learners, players))
    return Cluster(learner=LearnerWorkers(**learner), rollout=RolloutWorkers(**rollout))  # type: ignore[arg-type]


NODES = [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}]


def test_a_worker_of_several_gpus_needs_them_on_one_node() -> None:
    parts = Cluster(rollout=RolloutWorkers(workers=1, gpus=1, tensor_parallel=4), learner=LearnerWorkers(gpus=0))
    check_resources(parts, NODES)
    with pytest.raises(CannotPlace, match="1 workers with 4 GPUs"):
        check_resources(parts, [{"CPU": 8.0, "GPU": 3.0}, {"CPU": 8.0, "GPU": 3.0}])


def test_what_fits_is_accepted() -> None:
    check_resources(settings((2, 2, 2), (3, 0, 4)), NODES)


@pytest.mark.parametrize(
    ("learners", "players", "key"),
    [
        ((1, 5, 1), (1, 0, 1), "cluster.learner: 1 workers with 5 GPUs"),  # more than any node has
        ((4, 1, 1), (1, 1, 1), "cluster.rollout: 1 workers with 1 GPUs"),  # the learners have all GPUs
        ((1, 0, 8), (2, 0, 5), "cluster.rollout: 2 workers with 0 GPUs and 5 CPUs each are asked for, but only 1 fit"),
    ],
)
def test_what_does_not_fit_is_named(learners: Any, players: Any, key: str) -> None:
    with pytest.raises(CannotPlace, match=key):
        check_resources(settings(learners, players), NODES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": {"ahead": 1}}, "cluster.ahead: needs algorithm.truncate"),
        ({"cluster": {"rollout": {"workers": 2, "least": 3}}}, "cluster.rollout.least: 3 is more than the 2 workers"),
        ({"cluster": {}, "device": "cpu"}, "policies.left.device: not supported on a cluster"),
        (
            {"cluster": {"rollout": {"workers": 5}, "graders": {"workers": 2}}},
            "cluster.graders.workers: cluster.rollout.workers must be a multiple of it, not 5",
        ),
        ({"cluster": {"learner": {"shard": True}}}, "cluster.learner.shard: needs cluster.learner.workers of 2"),
        (
            {"cluster": {"rollout": {"tensor_parallel": 2, "gpus": 1}}},
            "cluster.rollout.tensor_parallel: 2 needs engine.name: vllm; native has a model on one GPU",
        ),
        (
            {"cluster": {"rollout": {"tensor_parallel": 2}}, "engine": {"name": "vllm"}},
            "cluster.rollout.gpus: must be 1 with tensor_parallel",
        ),
    ],
)
def test_a_config_that_contradicts_its_cluster_is_told(
    changes: dict[str, Any], message: str, model_folder: Folder, tmp_path: Path
) -> None:
    tree = naming_config(model_folder("llama"), **changes)
    tree["policies"]["left"]["device"] = changes.get("device")
    with pytest.raises(ConfigError, match=message):
        check_conflicts(written(tree, tmp_path))


# The user's files


def test_what_a_worker_unpickles_is_of_the_users_own_class(
    model_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has a copy of the file elsewhere, and the module of that copy has the same name."""
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    source = Path(naming.__file__).read_text()
    (tmp_path / "mine.py").write_text(source)
    tree = naming_config(model_folder("llama"))
    tree["env"]["name"] = f"{tmp_path}/mine.py:Naming"
    config = written(tree, tmp_path)
    sent = pickle.dumps(config.env.instance)
    unpacked = pack(config, tmp_path / "run").unpack()
    copied = type(unpacked.env.instance)
    assert inspect.getsourcefile(copied) == str(tmp_path / "mine.py")  # data beside it is found
    assert type(pickle.loads(sent)) is copied and copied is not type(config.env.instance)


def test_a_cluster_without_ray_says_what_to_install(
    model_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.config.requirements.find_spec", lambda name: None)
    from coterie.cli.run import session

    tree = naming_config(model_folder("llama"), cluster={})
    text = r"cluster: ray is not installed; `pip install -e '\.\[ray\]'`"
    with pytest.raises(ConfigError, match=text), session(written(tree, tmp_path)):
        pass
