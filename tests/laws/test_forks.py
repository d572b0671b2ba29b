"""Laws of playing again in part: what is given stays as it was, and what is not meets the noise that it met."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coterie.credit.difference import Difference
from coterie.engines.native.engine import NativeEngine
from coterie.episode_rows import read_episodes
from coterie.games.naming import Naming, OneByOne
from coterie.models.base import Base
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.types import Episode, Fork, Sampling, Task, Team, Turn, Workflow
from coterie.workflows.debate import Debate
from tests.runs import naming_config, trained

TASKS = [Task(f"task {i}", f"What is {i} + {i}?", None) for i in range(3)]
ROLES = ("left", "right", "third")
PLAYERS = {role: Player("policy", Sampling(max_tokens=5)) for role in ROLES}
ENV = Naming(dict(zip(ROLES, "eao", strict=True)))

COUNTER = itertools.count()


@dataclass(frozen=True)
class Pipelines:
    """Two strands side by side, each of them two turns long."""

    roles: Sequence[str] = ROLES

    async def run(self, task: Task, team: Team, world: Any) -> str:
        async def strand(first: str, second: str) -> str:
            said = await team[first].say(task.prompt, max_tokens=1 if first == "left" else 5)
            return (await team[second].say(f"{task.prompt} {said.text}")).text

        await asyncio.gather(strand("left", "left"), strand("right", "right"))
        return (await team.third.say(task.prompt)).text


@dataclass(frozen=True)
class NeverTheSame(OneByOne):
    """Reads something that is neither its task nor what was said."""

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return await super().run(replace(task, prompt=f"{task.prompt} {next(COUNTER)}"), team, world)


WORKFLOWS: dict[str, Workflow] = {
    "one by one": OneByOne(ROLES, rounds=2),
    "debate": Debate(roles=ROLES, rounds=3),
    "pipelines": Pipelines(),
}


@pytest.fixture(scope="module")
def llama(model_folder: Callable[[str], Path]) -> Base:
    return Base(model_folder("llama"))


@pytest.fixture(params=WORKFLOWS)
def collector(request: pytest.FixtureRequest, llama: Base) -> Collector:
    engine = NativeEngine(llama, {"policy": None})
    return Collector(WORKFLOWS[request.param], ENV, engine, {"policy": llama.chat}, 64, 60.0, 60.0)


def played(collector: Collector) -> list[Episode]:
    episodes = collector.collect(TASKS, 2, PLAYERS, seed=1)
    assert all(e.error is None for e in episodes)
    return episodes


def whole(origin: Episode) -> dict[tuple[str, int], Turn | str]:
    return {(t.role, t.round): t for t in origin.turns}


def words(episode: Episode) -> list[tuple[Any, ...]]:
    """What was read and said, in its order. Not the log-probs: how much is sampled together decides their last bits."""
    return [(t.role, t.round, t.prompt_ids, t.response_ids) for t in episode.turns]


def asked(episode: Episode) -> dict[tuple[str, int], tuple[Any, ...]]:
    return {(t.role, t.round): (t.prompt_ids, t.response_ids) for t in episode.turns}


def test_an_episode_of_which_every_turn_is_given_is_the_same_episode(collector: Collector) -> None:
    for origin in played(collector):
        (again,) = collector.fork([Fork(origin, "again", whole(origin))], PLAYERS)
        assert again.error is None and again.origin == origin.id and again.fork == "again"
        assert sorted(words(again)) == sorted(words(origin))
        assert {t.logprobs for t in again.turns} == {t.logprobs for t in origin.turns}
        assert (again.answer, again.reward) == (origin.answer, origin.reward)
        assert not any(t.trainable for t in again.turns) and all(t.trainable for t in origin.turns)


def test_an_episode_of_which_nothing_is_given_says_the_same_again_and_with_another_draw_something_else(
    collector: Collector,
) -> None:
    origins = played(collector)
    forks = collector.fork([Fork(origin, "again", {}) for origin in origins], PLAYERS)
    assert [words(fork) for fork in forks] == [words(origin) for origin in origins]
    others = collector.fork([Fork(origin, "else", {}, draw) for origin in origins for draw in (1, 2)], PLAYERS)
    assert all(asked(other) != asked(origins[i // 2]) for i, other in enumerate(others))
    assert len({str(asked(other)) for other in others}) == len(others)


def test_with_a_part_given_the_rest_is_said_with_the_same_noise(collector: Collector) -> None:
    forks = []
    for origin in played(collector):
        for count in range(len(origin.turns)):
            given = {(t.role, t.round): t for t in origin.turns[:count]}
            forks.append(Fork(origin, f"from {count}", given))
    for fork, again in zip(forks, collector.fork(forks, PLAYERS), strict=True):
        assert asked(again) == asked(fork.origin)
        assert sum(not t.trainable for t in again.turns) == len(fork.fixed_turns)


def test_a_fork_of_a_fork_with_draw_zero_meets_the_noise_of_that_fork(collector: Collector) -> None:
    (origin,) = collector.collect(TASKS[:1], 1, PLAYERS, seed=1)
    (other,) = collector.fork([Fork(origin, "else", {}, 3)], PLAYERS)
    (again,) = collector.fork([Fork(other, "again", {})], PLAYERS)
    assert words(again) == words(other) != words(origin)


@pytest.mark.parametrize("collector", ["debate", "one by one"], indirect=True)
def test_turns_keep_their_order_and_what_they_had_seen_whatever_part_is_given(collector: Collector) -> None:
    (origin,) = collector.collect(TASKS[:1], 1, PLAYERS, seed=1)
    places = [(t.role, t.round, t.seen) for t in origin.turns]
    forks = []
    for chosen in itertools.product([True, False], repeat=4):
        given = {(t.role, t.round): t for t, it_is in zip(origin.turns, chosen, strict=False) if it_is}
        forks.append(Fork(origin, str(chosen), given))
    for again in collector.fork(forks, PLAYERS):
        assert [(t.role, t.round, t.seen) for t in again.turns] == places


@pytest.mark.parametrize("collector", ["debate"], indirect=True)
def test_roles_side_by_side_have_not_seen_each_other(collector: Collector) -> None:
    (episode,) = collector.collect(TASKS[:1], 1, PLAYERS, seed=1)
    assert [t.seen for t in episode.turns] == [()] * 3 + [(0, 1, 2)] * 3 + [(0, 1, 2, 3, 4, 5)] * 3


@pytest.mark.parametrize("collector", ["pipelines"], indirect=True)
def test_a_turn_has_seen_what_was_finished_when_it_was_asked_for(collector: Collector) -> None:
    for episode in played(collector):
        index = {(t.role, t.round): i for i, t in enumerate(episode.turns)}
        assert episode.turns[index["left", 0]].seen == episode.turns[index["right", 0]].seen == ()
        assert index["left", 0] in episode.turns[index["left", 1]].seen
        assert index["right", 0] in episode.turns[index["right", 1]].seen
        assert episode.turns[index["third", 0]].seen == (0, 1, 2, 3)
        for i, t in enumerate(episode.turns):
            assert all(before < i for before in t.seen)


def test_a_workflow_that_reads_something_else_is_told_so(llama: Base) -> None:
    engine = NativeEngine(llama, {"policy": None})
    collector = Collector(NeverTheSame(ROLES), ENV, engine, {"policy": llama.chat}, 64, 60.0, 60.0)
    (origin,) = collector.collect(TASKS[:1], 1, PLAYERS, seed=1)
    (again,) = collector.fork([Fork(origin, "again", whole(origin))], PLAYERS)
    assert again.error is not None and again.error_kind == "ValueError"
    assert "turn 0 of left got a different prompt" in again.error
    assert "may depend only on its task and on the replies" in again.error


@pytest.mark.parametrize("collector", ["one by one"], indirect=True)
def test_what_a_turn_was_worth_stays_in_its_own_episode(collector: Collector) -> None:
    (origin,) = collector.collect(TASKS[:1], 1, PLAYERS, seed=1)
    for t in origin.turns:
        t.reward, t.credit = 5.0, 5.0
    (again,) = collector.fork([Fork(origin, "again", whole(origin))], PLAYERS)
    assert all(t.reward is None and t.credit is None for t in again.turns)
    assert all(t.reward == 5.0 for t in origin.turns)


# Difference by replay


@pytest.mark.parametrize("collector", ["one by one", "debate"], indirect=True)
def test_a_silenced_role_says_the_default_and_the_rest_depends_on_it_or_stays(collector: Collector) -> None:
    credit = Difference(default="Hm.")
    origins = played(collector)
    forks = credit.forks(origins)
    assert len(forks) == len(origins) * len(ROLES)
    counterfactuals = collector.fork(forks, PLAYERS)
    by_id = {origin.id: origin for origin in origins}
    for fork, episode in zip(forks, counterfactuals, strict=True):
        assert episode.error is None and episode.id == fork.id
        (silent,) = {role for (role, _), said in fork.fixed_turns.items() if isinstance(said, str)}
        origin = by_id[str(episode.origin)]
        assert [(t.role, t.round) for t in episode.turns] == [(t.role, t.round) for t in origin.turns]
        for now, then in zip(episode.turns, origin.turns, strict=True):
            if now.role == silent:
                assert now.text == "Hm." and now.response_ids == () and not now.trainable
            elif not any(origin.turns[i].role == silent for i in then.seen):
                assert (now.prompt_ids, now.response_ids) == (then.prompt_ids, then.response_ids)
            else:
                assert now.trainable


@pytest.mark.parametrize("by", ["replay", "shapley"])
def test_in_the_naming_game_credit_is_what_the_team_s_reward_would_lack(
    by: str, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Nobody who says nothing names a letter, and nobody hears the last to speak."""
    trained(naming_config(model_folder("llama"), steps=1, credit={"name": "difference", "by": by}), tmp_path)
    episodes = read_episodes(tmp_path / "episodes" / "000001.jsonl.gz")
    assert len({e.reward for e in episodes}) > 1
    for left, right, reward in ((e.turns[0], e.turns[1], e.reward) for e in episodes):
        assert left.credit is not None and right.credit is not None
        if by == "replay":
            assert right.credit == pytest.approx(0.5 * ("a" in right.text))
        else:
            assert left.credit + right.credit == pytest.approx(reward)
    metrics = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert metrics["difference/missing"] == 0
    assert metrics["credit/left"] == pytest.approx(sum(e.turns[0].credit or 0.0 for e in episodes) / len(episodes))
