"""Laws of measuring a team."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.report import unequal
from coterie.engines.native.engine import NativeEngine
from coterie.evaluation.evaluate import Report, evaluate, pass_at_k
from coterie.evaluation.single_agent_baseline import (
    SingleAgent,
    SingleAgentWorkflow,
    baselines,
    first_prompts,
    first_speaker,
    max_team_tokens,
    with_temperature,
)
from coterie.models.base import Base
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.types import Episode, Sampling, Task, Team, Workflow
from coterie.workflows.chain import Chain
from coterie.workflows.debate import Debate
from tests.episodes import episode, turn


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_share_of_choices_of_k_with_a_right_one(n: int) -> None:
    for right in range(n + 1):
        answers = [True] * right + [False] * (n - right)
        for k in range(1, n + 1):
            choices = list(combinations(answers, k))
            assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, choices)) / len(choices))


class Marked:
    """An environment whose task says which repeats are right, and which fail."""

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        mark = episode.task.answer[episode.repeat]
        episode.reward = 1.0 if mark == "x" else float(mark)
        if mark == "x":
            raise ValueError("fails after it gave a reward")


@dataclass(frozen=True)
class Brief:
    roles: tuple[str, ...] = ("solver",)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return (await team.solver.say(task.prompt)).text


def test_a_failed_episode_counts_as_wrong(model_folder: Callable[[str], Path]) -> None:
    base = Base(model_folder("llama"))
    env: Any = Marked()
    collector = Collector(Brief(), env, NativeEngine(base, {"policy": None}), {"policy": base.chat}, 8, 60, 60)
    marks = ["1100", "0000", "xx01", "1111"]
    tasks = [Task(f"task {i}", "Go.", mark) for i, mark in enumerate(marks)]
    report = evaluate(collector, tasks, 4, {"solver": Player("policy", Sampling(max_tokens=3))}, seed=0)
    assert len(report.episodes) == 16
    assert report.metrics["pass@1"] == pytest.approx((2 + 0 + 1 + 4) / 16)
    assert report.metrics["pass@4"] == pytest.approx(3 / 4)
    assert report.metrics["reward"] == pytest.approx(7 / 16)
    assert report.metrics["failed/ValueError"] == 2
    assert report.metrics["tokens"] == pytest.approx(sum(len(e.turns[0].response_ids) for e in report.episodes) / 16)


class Worthless:
    """Nothing is worth anything, so that no answer is better."""

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        episode.reward = 0.0


TASKS = [Task(f"task {i}", f"What is {i} + {i}?", 2 * i) for i in range(4)]
CHAIN = Chain(prompts={"reasoner": "{question} Think."}, systems={"reasoner": "You are short."})
TEAMS: list[Workflow] = [CHAIN, Debate(roles=("a", "b"), rounds=2), Debate(roles=("a", "b", "c"), rounds=3)]


def measured(base: Base, workflow: Workflow, most: int, answer: int | None = None) -> tuple[Report, dict[str, Report]]:
    """A team of two or three, and one agent in its place, which answers with `answer` tokens or as many as the team."""
    env: Any = Worthless()
    engine = NativeEngine(base, {"policy": None})
    collector = Collector(workflow, env, engine, {"policy": base.chat}, 8, 60, 60)
    players = {role: Player("policy", Sampling(max_tokens=most, temperature=0.0)) for role in workflow.roles}
    team = evaluate(collector, TASKS, 1, players, seed=0)
    longest = max_team_tokens(team.episodes, players)
    player = Player("policy", Sampling(max_tokens=answer or longest, temperature=0.0))
    first = first_speaker(team.episodes)
    assert first is not None
    prompts = first_prompts(team.episodes, first, base.chat)
    alone = {"bare": SingleAgent("policy", player, SingleAgentWorkflow())}
    if prompts:
        alone["asked"] = SingleAgent("policy", player, SingleAgentWorkflow(prompts))
    return team, baselines(collector, TASKS, 1, team, alone, seed=0)


@pytest.mark.parametrize("workflow", TEAMS, ids=["chain", "debate", "longer debate"])
def test_one_agent_may_use_the_tokens_of_the_team(workflow: Workflow, model_folder: Callable[[str], Path]) -> None:
    team, alone = measured(Base(model_folder("llama")), workflow, most=5)
    said = [sum(len(turn.response_ids) for turn in episode.turns) for episode in team.episodes]
    assert max(said) == alone["bare"].metrics["tokens"]  # none of these models ever ends a turn
    assert not any(name.startswith("majority") for name in alone)  # the tokens pay for one answer


@pytest.mark.parametrize(("answer", "voters"), [(2, 9), (6, 3), (9, 2), (14, 1)])
def test_a_majority_is_of_whole_answers_as_many_as_the_tokens_of_the_team_pay_for(
    answer: int, voters: int, model_folder: Callable[[str], Path]
) -> None:
    team, alone = measured(Base(model_folder("llama")), TEAMS[1], most=5, answer=answer)
    assert team.metrics["tokens"] == 18
    assert list(alone) == ["bare"] + [f"majority of {voters}"] * (voters > 1)
    for reply in list(alone.values())[-1].episodes[0].turns:
        assert len(reply.response_ids) == answer or reply.stop == "end"


def test_one_agent_is_also_asked_what_the_first_of_the_team_is_asked(model_folder: Callable[[str], Path]) -> None:
    base = Base(model_folder("llama"))
    _, alone = measured(base, CHAIN, most=2)
    read = [base.tokenizer.decode(report.episodes[1].turns[0].prompt_ids) for report in alone.values()]
    assert "You are short." not in read[0] and "What is 1 + 1?" in read[0]
    assert "You are short." in read[1] and "What is 1 + 1? Think." in read[1]
    assert list(measured(base, TEAMS[1], most=2)[1]) == ["bare"]  # the team asks the bare question, too


def test_voters_are_drawn_even_where_the_team_is_not() -> None:
    greedy, drawn = (Player("policy", Sampling(temperature=warm)) for warm in (0.0, 0.3))
    assert with_temperature(greedy, 0.6).sampling.temperature == 0.6  # as it learned to speak
    assert with_temperature(greedy, 0.0).sampling.temperature == 1.0
    assert with_temperature(drawn, 0.6).sampling.temperature == 0.3


def test_unequal_tokens_are_told() -> None:
    tokens = {"team": 20.0, "alone": 12.0, "vote": 21.0}
    reports = {name: Report({"tokens": number}, []) for name, number in tokens.items()}
    assert [line.plain.strip() for line in unequal(reports)] == ["unequal tokens, relative to the team: alone 0.60 ×"]
    assert not list(unequal({name: reports[name] for name in ("team", "vote")}))
    assert first_speaker([episode([turn("left")]), episode([])]) == "left" and first_speaker([episode([])]) is None
