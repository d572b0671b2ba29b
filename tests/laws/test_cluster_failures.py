"""Runs of every kind on a cluster, and what happens when its processes end: rows of the table in docs/cluster.md."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")

import ray

from coterie.cluster.driver import Driver
from coterie.cluster.processes import ClusterFailed, LearnersLost
from coterie.episode_rows import read_episodes
from coterie.rollout.metrics import TooManyFailures
from coterie.training.loop import Run
from tests.clusters import end_learner, end_player, raylets, started_on_cluster, trained_on_cluster
from tests.laws.test_cluster import assert_same
from tests.laws.test_cluster import config as ppo
from tests.laws.test_parallel import assert_close, tokens
from tests.runs import naming_config, started, trained

pytestmark = pytest.mark.slow
Folder = Callable[[str], Path]


def grpo(model: Path) -> dict[str, Any]:
    return naming_config(model, steps=3)


def mappo(model: Path) -> dict[str, Any]:
    critics = {"team": {"model": str(model), "sees": "joint", "lora": {"rank": 2}}}
    return naming_config(model, steps=3, algorithm={"name": "mappo"}, critics=critics)


def opponents(model: Path) -> dict[str, Any]:
    pool = {"share": 0.6, "every": 1, "keep": 2}
    return naming_config(model, steps=4, opponents=pool, credit={"name": "difference"})


def qmix(model: Path) -> dict[str, Any]:
    return naming_config(model, steps=3, algorithm={"name": "qmix", "warmup": 1, "value_fits": 2})


RUNS = {"ppo": ppo, "grpo": grpo, "mappo": mappo, "opponents": opponents, "qmix": qmix}


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    with raylets(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Each run in this one process."""
    done: dict[str, Run] = {}

    def make(kind: str) -> Run:
        if kind not in done:
            done[kind] = trained(RUNS[kind](model_folder("llama")), tmp_path_factory.mktemp(kind))
        return done[kind]

    return make


@pytest.mark.parametrize(("workers", "chunk"), [(1, 100), (2, 1), (3, 8)])
@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_run_is_the_same_on_a_cluster(
    kind: str, workers: int, chunk: int, ray_cluster: Any, alone: Any, model_folder: Folder, tmp_path: Path
) -> None:
    tree = RUNS[kind](model_folder("llama"))
    weights = trained_on_cluster(tree, tmp_path, rollout={"workers": workers}, chunk=chunk)
    assert_same(weights, tmp_path, alone(kind))


def test_two_learners_learn_what_one_does(ray_cluster: Any, alone: Any, model_folder: Folder, tmp_path: Path) -> None:
    tree = ppo(model_folder("llama"))
    for policy in tree["policies"].values():
        policy["lr"] = 1e-3
    one, fresh = trained(tree, tmp_path / "one"), started(tree, tmp_path / "fresh")
    two = trained_on_cluster(tree, tmp_path / "two", learner={"workers": 2})
    for policy, weights in two.items():
        assert_close(weights, one.learners[policy].weights(), fresh.learners[policy].weights())
    assert tokens(tmp_path / "two") == tokens(tmp_path / "one")


ENDINGS: dict[str, Callable[[Driver], None]] = {
    "a rollout worker is killed": lambda driver: end_player(driver, play=3),
    "a rollout worker is stopped": lambda driver: end_player(driver, play=3, how=signal.SIGSTOP),
    "the learner is killed": lambda driver: end_learner(driver, fit=6),
    "the learner is stopped": lambda driver: end_learner(driver, fit=6, how=signal.SIGSTOP),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_whatever_ends_the_weights_are_the_same(
    ending: str,
    ray_cluster: Any,
    alone: Any,
    model_folder: Folder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = ppo(model_folder("llama")) | {"rollout": {"deadline": 10.0, "score_deadline": 1.0}}
    weights = trained_on_cluster(tree, tmp_path, ENDINGS[ending], rollout={"workers": 2}, chunk=4, patience=2.0)
    assert_same(weights, tmp_path, alone("ppo"))
    what = "rollout worker" if "rollout" in ending else "learner"
    why = "was lost: " if "killed" in ending else "did not answer in time and was ended"
    assert re.search(rf"{what} \d \(process \d+ on .*\) {why}", capsys.readouterr().err)


@pytest.mark.parametrize(("rank", "how"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_two_learners_go_on_after_one_of_them_is_lost(
    rank: int,
    how: signal.Signals,
    ray_cluster: Any,
    model_folder: Folder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree, two = ppo(model_folder("llama")), {"workers": 2}
    straight = trained_on_cluster(tree, tmp_path / "straight", learner=two)

    def prepare(driver: Driver) -> None:
        end_learner(driver, 6, rank, how)

    ended = trained_on_cluster(tree, tmp_path / "ended", prepare, learner=two, patience=2.0)
    torch.testing.assert_close(ended, straight, rtol=0, atol=0)
    assert f"learner {rank} (process" in capsys.readouterr().err


FATAL = """
import os, signal
from coterie.games.naming import OneByOne

class Fatal(OneByOne):
    async def run(self, task, team, world):
        if task.id == "train/0":
            {what}
        return await super().run(task, team, world)
"""


def with_workflow(tree: dict[str, Any], folder: Path, what: str) -> dict[str, Any]:
    """A config whose workflow does something in the episodes of one of the two tasks of each step."""
    (folder / "fatal.py").write_text(FATAL.format(what=what))
    name = {"name": f"{folder}/fatal.py:Fatal", "order": ["left", "right"]}
    return tree | {"workflow": name, "shuffle": False, "steps": 1, "eval": {"tasks": 0}}


def test_a_chunk_that_ends_three_workers_fails(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    tree = with_workflow(grpo(model_folder("llama")), tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    trained_on_cluster(tree, tmp_path / "run", rollout={"workers": 2}, chunk=4)
    episodes = read_episodes(tmp_path / "run" / "episodes" / "000001.jsonl.gz")
    assert [episode.error_kind for episode in episodes] == ["WorkerLost"] * 4 + [None] * 4
    assert "3 workers were lost while they played it; the last: rollout worker" in str(episodes[0].error)


def test_too_many_failed_episodes_stop_the_run(
    ray_cluster: Any, model_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in one process, and nothing is tried again."""
    tree = with_workflow(grpo(model_folder("llama")), tmp_path, "1 / 0") | {"rollout": {"max_failed": 0.25}}
    with pytest.raises(TooManyFailures, match="4 of 8 episodes failed"):
        trained_on_cluster(tree, tmp_path / "run")
    assert "was lost" not in capsys.readouterr().err


def test_learners_that_die_again_and_again_stop_the_run(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    def prepare(driver: Driver) -> None:
        for fit in (1, 2, 3):
            end_learner(driver, fit=fit)

    with pytest.raises(ClusterFailed, match=r"(?s)learner 0 \(process \d+ on .*lost 3 times after step 0"):
        trained_on_cluster(grpo(model_folder("llama")), tmp_path, prepare, restarts=2)


def test_weights_that_are_lost_are_not_taken_for_loaded(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    with started_on_cluster(grpo(model_folder("llama")), tmp_path) as (driver, _):
        pool = driver.pool
        pool.push("left", 1, ray.remote(max_retries=0)(lambda: os._exit(1)).remote())
        with pytest.raises(LearnersLost, match="the weights for rollout worker 0 are lost"):
            pool.wait_until_loaded()
        driver.push_and_wait("left")
        assert pool.workers[0].loaded == [pool.weights]


def test_twenty_kills_at_random_instants_change_no_bit(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    tree = ppo(model_folder("llama")) | {"steps": 12}
    straight = trained(tree, tmp_path / "straight")
    kills = 0

    def kill_some(driver: Driver, draw: random.Random) -> None:
        nonlocal kills
        while kills < 20:
            time.sleep(draw.uniform(0.2, 3.0))
            places = [worker.place for worker in list(driver.pool.workers)] + list(driver.group.places)
            pids = [place.pid for place in places if place is not None and os.path.exists(f"/proc/{place.pid}")]
            if pids:
                os.kill(draw.choice(pids), signal.SIGKILL)
                kills += 1

    def prepare(driver: Driver) -> None:
        threading.Thread(target=kill_some, args=(driver, random.Random(7)), daemon=True).start()

    weights = trained_on_cluster(tree, tmp_path / "run", prepare, rollout={"workers": 3}, chunk=4, restarts=100)
    assert kills == 20
    assert_same(weights, tmp_path / "run", straight)


def ahead(model: Path, steps: int = 5) -> dict[str, Any]:
    tree = grpo(model) | {"steps": steps, "algorithm": {"name": "grpo", "truncate": 2.0}}
    for policy in tree["policies"].values():
        policy["lr"] = 1e-3
    return tree


@pytest.mark.parametrize("whole", [False, True], ids=["adapters", "whole model"])
def test_a_run_ahead_depends_on_its_lag_alone(
    whole: bool, ray_cluster: Any, model_folder: Folder, tmp_path: Path
) -> None:
    """To the bit, where a worker plays one chunk at a time: on two workers, on three, resumed after two of its steps,
    and after a worker and the learner were killed. The prompts share a prefix, which a worker would cache."""

    def prepare(driver: Driver) -> None:
        end_player(driver, play=3)
        end_learner(driver, fit=4)

    tree = ahead(model_folder("llama")) | {"tasks_per_step": 3, "rollout": {"concurrency": 4}}
    tree["env"] |= {"prompt": "All prompts of this game begin with the same words, up to its number: {n}."}
    tree["policies"]["left"] |= {"lora": None} if whole else {}
    two = trained_on_cluster(tree, tmp_path / "two", rollout={"workers": 2}, ahead=2, chunk=4)
    three = trained_on_cluster(tree, tmp_path / "three", rollout={"workers": 3}, ahead=2, chunk=4)
    trained_on_cluster(tree | {"steps": 2}, tmp_path / "resumed", ahead=2, chunk=4)
    resumed = trained_on_cluster(tree, tmp_path / "resumed", ahead=2, chunk=4)
    killed = trained_on_cluster(tree, tmp_path / "killed", prepare, rollout={"workers": 2}, ahead=2, chunk=4)
    for name, other in {"three": three, "resumed": resumed, "killed": killed}.items():
        assert tokens(tmp_path / name) == tokens(tmp_path / "two")
        torch.testing.assert_close(other, two, rtol=0, atol=0)
    versions = {turn.version for turn in read_episodes(tmp_path / "two" / "episodes" / "000005.jsonl.gz")[0].turns}
    assert versions == {2}


def test_chunks_that_are_played_together_change_rounding_alone(
    ray_cluster: Any, model_folder: Folder, tmp_path: Path
) -> None:
    """The sampler's log-probs, which are in the loss, round with its batches."""
    tree, first = ahead(model_folder("llama")), started(ahead(model_folder("llama")), tmp_path / "first")
    two = trained_on_cluster(tree, tmp_path / "two", rollout={"workers": 2}, ahead=2, chunk=1)
    one = trained_on_cluster(tree, tmp_path / "one", ahead=2)
    assert tokens(tmp_path / "one") == tokens(tmp_path / "two")
    for policy, weights in two.items():
        assert_close(one[policy], weights, first.learners[policy].weights())


def test_a_worker_plays_ahead_while_a_straggler_finishes(
    ray_cluster: Any, model_folder: Folder, tmp_path: Path
) -> None:
    """Step 3 is played with the weights after step 1 while an episode of step 2 still has the first ones."""
    tree = with_workflow(ahead(model_folder("llama")), tmp_path, "import asyncio; await asyncio.sleep(4)")
    env = tree["env"] | {"size": 6}
    (tmp_path / "fatal.py").write_text((tmp_path / "fatal.py").read_text().replace("train/0", "train/2"))
    trained_on_cluster(tree | {"steps": 3, "env": env}, tmp_path / "run", ahead=1, chunk=4)
    steps = [read_episodes(tmp_path / "run" / "episodes" / f"00000{step}.jsonl.gz") for step in (1, 2, 3)]
    straggler, newer = steps[1][0].turns[-1], steps[2][0].turns[0]
    assert (straggler.version, newer.version) == (0, 1)
    assert newer.ended < straggler.ended
