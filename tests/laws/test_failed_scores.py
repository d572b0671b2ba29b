"""Laws of scoring: a grader that hangs or is down is asked once more, then its episode fails. It is never a zero."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coterie.envs.base import TaskEnv, attach_reward
from coterie.rewards import GraderTimeout
from coterie.rollout import scoring
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import TooManyFailures, drop_failed, rollout_metrics
from coterie.types import Env, Episode, Outcome, Sample, Sampling, Split, Task, Team

PLAYERS = {"solver": Player("policy", Sampling(max_tokens=2))}


class Counted:
    """An engine that says "ok" and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        self.asked += 1
        return Sample((1,), (0.0,), "end", 0)

    def weights_changed(self, policy: str, version: int) -> None: ...


class Words:
    """A chat whose texts are one word."""

    def prompt(self, messages: Any) -> tuple[int, ...]:
        return (0,)

    def text(self, ids: Any, stop: Any = ()) -> str:
        return "ok"


@dataclass(frozen=True)
class Once:
    roles: tuple[str, ...] = ("solver",)

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        return (await team.solver.say(task.prompt)).text


@dataclass(frozen=True)
class Judged(Once):
    """A team whose answer is graded beside another one."""

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        turn = await team.solver.say(task.prompt)

        async def judge(grade: Any) -> dict[str, float]:
            turn.reward = await grade("another")
            return {}

        return Outcome(turn.text, judge=judge)


@dataclass(frozen=True)
class Questions(TaskEnv):
    def tasks(self, split: Split) -> list[Task]:
        return []


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "BACKOFF", (0.05,))


def played(env: Env, tasks: Sequence[Task], workflow: Once | None = None, score_deadline: float | None = None) -> Any:
    engine = Counted()
    chats: Any = {"policy": Words()}
    collector = Collector(workflow or Once(), env, engine, chats, 64, 60.0, score_deadline)
    return collector.collect(tasks, 1, PLAYERS, 0), engine


def own(folder: Path, code: str, deadline: float = 30.0) -> Env:
    """An environment with a reward of the user's; `first()` is true at its first call for a truth."""
    (folder / "mine.py").write_text(
        "import asyncio, os, pathlib, time\n"
        "def first(truth):\n"
        f"    note = pathlib.Path({str(folder)!r}) / f'{{truth}}.log'\n"
        "    with note.open('a') as log: log.write('called\\n')\n"
        "    return note.read_text() == 'called\\n'\n" + code
    )
    return attach_reward(Questions(), f"{folder}/mine.py:grade", {}, deadline)


def calls(folder: Path, truth: str) -> int:
    return len((folder / f"{truth}.log").read_text().splitlines())


HANGS = "def grade(answer, truth):\n    first(truth)\n    while truth.startswith('hang'): pass\n    return 1.0\n"


def test_a_grader_that_hangs_is_asked_twice_and_then_its_episode_fails(tmp_path: Path) -> None:
    tasks = [Task(f"task {i}", "Go.", "hang" if i == 1 else "fine") for i in range(4)]
    episodes, engine = played(own(tmp_path, HANGS, deadline=1.0), tasks)
    assert [e.error_kind for e in episodes] == [None, "GraderTimeout", None, None]
    assert calls(tmp_path, "hang") == 2
    assert engine.asked == 4  # nothing is sampled again
    assert [e.reward for e in drop_failed(episodes, 0.5)] == [1.0] * 3  # nobody learns from a zero
    with pytest.raises(TooManyFailures, match=r"1 of 4 episodes failed \(1 GraderTimeout\)"):
        drop_failed(episodes, 0.2)
    # Killed graders are counted, also where the episode failed.
    metrics = rollout_metrics(episodes)
    assert metrics["grader_timeouts"] == 0.5  # two attempts, four episodes
    assert metrics["failed/GraderTimeout"] == 1.0 and metrics["reward"] == 1.0
    only = rollout_metrics(episodes[1:2])
    assert only == {"failed": 1.0, "failed/GraderTimeout": 1.0, "grader_timeouts": 2.0}


BRIEFLY_DOWN = {
    "hangs": "def grade(answer, truth):\n    while first(truth): time.sleep(60)\n    return 1.0\n",
    "refuses": (
        "async def grade(answer, truth):\n    if first(truth): raise ConnectionError('refused')\n    return 1.0\n"
    ),
    "dies": "def grade(answer, truth):\n    if first(truth): os._exit(3)\n    return 1.0\n",
}


@pytest.mark.parametrize("how", list(BRIEFLY_DOWN))
def test_a_grader_that_fails_once_still_gives_the_score(how: str, tmp_path: Path) -> None:
    (episode,), engine = played(own(tmp_path, BRIEFLY_DOWN[how], deadline=1.0), [Task("t", "Go.", "x")])
    assert (episode.error, episode.reward, engine.asked) == (None, 1.0, 1)
    assert episode.metrics == {"accuracy": 1.0, "grader_timeouts": float(how == "hangs")}


@pytest.mark.parametrize("async_", ["", "async "])
def test_a_reward_server_that_is_down_is_a_failed_episode(async_: str, tmp_path: Path) -> None:
    code = f"{async_}def grade(answer, truth):\n    first(truth)\n    raise ConnectionError('no route to the server')\n"
    (episode,), engine = played(own(tmp_path, code), [Task("t", "Go.", "x")])
    assert episode.error_kind == "GraderFailed" and "no route to the server" in episode.error
    assert (calls(tmp_path, "x"), engine.asked) == (2, 1)


def test_a_reward_that_is_no_number_is_a_mistake_and_not_asked_for_again(tmp_path: Path) -> None:
    code = "def grade(answer, truth):\n    first(truth)\n    return float('nan')\n"
    (episode,), _ = played(own(tmp_path, code), [Task("t", "Go.", "x")])
    assert (episode.error_kind, calls(tmp_path, "x")) == ("BadReward", 1)


def test_a_grade_that_a_judge_asks_for_is_tried_again_too(tmp_path: Path) -> None:
    code = (
        "def grade(answer, truth):\n"
        "    if answer == 'another' and first(truth): raise ConnectionError('refused')\n"
        "    return 0.5 if answer == 'another' else 1.0\n"
    )
    (episode,), _ = played(own(tmp_path, code), [Task("t", "Go.", "x")], Judged())
    assert (episode.error, episode.reward, episode.turns[0].reward) == (None, 1.0, 0.5)
    hangs = "def grade(answer, truth):\n    while answer == 'another': pass\n    return 1.0\n"
    (episode,), _ = played(own(tmp_path / "..", hangs, deadline=0.5), [Task("t", "Go.", "x")], Judged())
    assert (episode.error_kind, episode.metrics["grader_timeouts"]) == ("GraderTimeout", 2.0)


@dataclass(frozen=True)
class RunsTests(Once):
    """A team that judges its turn by tests of its own, which may hang."""

    errors: list[BaseException] = field(default_factory=list)
    attempts: list[float | None] = field(default_factory=list)

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        turn = await team.solver.say(task.prompt)

        async def judge(grade: Any) -> dict[str, float]:
            self.attempts.append(turn.reward)
            turn.reward = 0.5
            if self.errors:
                raise self.errors.pop()
            return {"tested": 1.0}

        return Outcome(turn.text, judge=judge)


def test_tests_that_a_judge_runs_are_run_again_too() -> None:
    tests = RunsTests(errors=[GraderTimeout("the tests hang")])
    (episode,), engine = played(AsksAServer(), [Task("t", "Go.", None)], tests, score_deadline=30.0)
    assert (episode.error, episode.turns[0].reward, engine.asked) == (None, 0.5, 1)
    assert (episode.metrics["tested"], episode.metrics["grader_timeouts"]) == (1.0, 1.0)
    assert tests.attempts == [0.25, 0.25]  # what the environment gave; each attempt begins there
    tests = RunsTests(errors=[GraderTimeout("the tests hang")] * 3)
    (episode,), _ = played(AsksAServer(), [Task("t", "Go.", None)], tests, score_deadline=30.0)
    assert (episode.error_kind, episode.metrics["grader_timeouts"]) == ("GraderTimeout", 2.0)


def test_a_grade_that_was_asked_for_twice_is_not_asked_for_by_a_judge_again(tmp_path: Path) -> None:
    down = "def grade(answer, truth):\n    if answer == 'another' and [first('n')]: raise OSError\n    return 1.0\n"
    (episode,), _ = played(own(tmp_path, down), [Task("t", "Go.", "x")], Judged())
    assert (episode.error_kind, calls(tmp_path, "n")) == ("GraderFailed", 2)


def test_episodes_that_fail_in_one_batch_count_their_own_attempts() -> None:
    shared = GraderTimeout("the batch was killed")

    async def score() -> None:
        raise shared

    async def all_of(owners: Sequence[Episode]) -> None:
        attempts = [scoring.with_retries(score, owner, None) for owner in owners]
        await asyncio.gather(*attempts, return_exceptions=True)

    owners = [Episode(f"e{n}", Task("t", "Go.", "x"), n) for n in range(3)]
    asyncio.run(all_of(owners))
    assert [owner.metrics["grader_timeouts"] for owner in owners] == [2.0] * 3


@dataclass(frozen=True)
class AsksAServer:
    """Scores itself; writes before it fails, as a user's environment may."""

    errors: list[BaseException] = field(default_factory=list)
    seen: list[tuple[float, float | None, dict[str, float]]] = field(default_factory=list)

    def tasks(self, split: Split) -> list[Task]:
        return []

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        self.seen.append((episode.reward, episode.turns[0].reward, dict(episode.metrics)))
        episode.reward += 1.0
        episode.turns[0].reward = 0.25
        episode.metrics["asked"] = episode.metrics.get("asked", 0.0) + 1.0
        if self.errors:
            raise self.errors.pop()


@pytest.mark.parametrize("error", [ConnectionRefusedError("down"), TimeoutError("slow"), GraderTimeout("killed")])
def test_an_environment_that_cannot_reach_its_server_is_asked_again_from_the_same_start(error: Exception) -> None:
    env = AsksAServer([error])
    (episode,), _ = played(env, [Task("t", "Go.", None)], score_deadline=30.0)
    assert [before[:2] for before in env.seen] == [(0.0, None)] * 2
    assert (episode.error, episode.reward, episode.turns[0].reward, episode.metrics["asked"]) == (None, 1.0, 0.25, 1.0)
    assert episode.metrics.get("grader_timeouts", 0.0) == float(isinstance(error, GraderTimeout))
    (episode,), _ = played(AsksAServer([error, error]), [Task("t", "Go.", None)], score_deadline=30.0)
    assert episode.error_kind == type(error).__name__


def test_the_deadline_of_a_score_holds_for_each_attempt() -> None:
    class Waits(AsksAServer):
        async def score(self, episode: Episode) -> None:
            self.seen.append((0.0, None, {}))
            await asyncio.sleep(3600)

    env = Waits()
    (episode,), _ = played(env, [Task("t", "Go.", None)], score_deadline=0.2)
    assert (episode.error_kind, len(env.seen)) == ("TimeoutError", 2)
    assert "0.2 seconds of rollout.score_deadline" in episode.error
