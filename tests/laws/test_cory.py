"""Laws of CORY: two copies of one model, one reads the other, both earn what both are worth, and they change seats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.algorithms.cory import Cory
from coterie.config import ConfigError
from coterie.config.conflicts import check_conflicts
from coterie.credit.aggregate import Aggregate
from coterie.envs.base import TaskEnv, attach_reward
from coterie.episode_rows import read_episodes
from coterie.errors import BadAnswer
from coterie.training.loop import Run
from coterie.types import Episode, Task
from coterie.workflows.cory import Cory as CoryWorkflow
from coterie.workflows.debate import Debate
from tests.episodes import episode, turn
from tests.runs import naming_config, resumed, started, trained, written
from tests.scripted import Scripted

Folder = Callable[[str], Path]
TASK = Task("t", "What is 2 + 2?", "4")


@dataclass(frozen=True)
class Questions(TaskEnv):
    def tasks(self, split: Any) -> list[Task]:
        return [TASK]


def scored(answer: Any, *roles: str, reward: str = "number") -> Episode:
    count: dict[str, int] = {}
    turns = []
    for role in roles:
        turns.append(turn(role, round=count.setdefault(role, 0)))
        count[role] += 1
    played = Episode("t/0", TASK, 0, turns, answer=answer)
    asyncio.run(attach_reward(Questions(), reward, {}, 1.0).score(played))
    return played


# Talking and grading


def test_the_observer_reads_the_question_and_the_pioneer_s_answer_and_both_answer() -> None:
    team = Scripted({"pioneer": ["It is {question}"], "observer": ["4"]})
    answer = asyncio.run(CoryWorkflow(system="Be brief.").run(TASK, team, None))
    assert answer == {"pioneer": "It is {question}", "observer": "4"}
    ((system, asked),) = team.observer.prompts
    assert system["content"] == "Be brief."
    assert asked["content"].startswith("What is 2 + 2?") and "It is {question}" in asked["content"]
    assert [m["content"] for m in team.pioneer.prompts[0]] == ["Be brief.", "What is 2 + 2?"]


def test_an_answer_for_each_role_is_graded_for_each_role() -> None:
    played = scored({"pioneer": "5", "observer": "4"}, "pioneer", "observer")
    assert [t.reward for t in played.turns] == [0.0, 1.0] and played.reward == 0.5
    told = {"accuracy": 0.0, "accuracy/pioneer": 0.0, "accuracy/observer": 1.0}
    assert played.metrics == told | {"grader_timeouts": 0.0}
    assert scored({"pioneer": "4", "observer": "4"}, "pioneer", "observer").metrics["accuracy"] == 1.0


def test_of_several_turns_the_last_one_answers_or_each_does() -> None:
    last = scored({"a": "4"}, "a", "b", "a")
    assert [t.reward for t in last.turns] == [None, None, 1.0] and last.reward == 1.0
    each = scored({"a": ["4", "5"], "b": ["4", "4"]}, "a", "b", "a", "b")
    assert [t.reward for t in each.turns] == [1.0, 1.0, 0.0, 1.0] and each.reward == 0.5
    with pytest.raises(BadAnswer, match="returned 1 answers of a, which took 2 turns"):
        scored({"a": ["4"]}, "a", "a")


def test_a_mapping_that_is_not_by_role_is_the_reward_s_business(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def own(answer, truth):\n    return float(answer['sum'] == truth)\n")
    played = scored({"sum": "4"}, "solver", reward=f"{tmp_path}/own.py:own")
    assert played.reward == 1.0 and played.turns[0].reward is None


def test_a_debate_may_have_every_answer_graded_and_stop_when_enough_agree() -> None:
    lines = {"first": ["4", "4", "5"], "second": ["5", "4", "4"], "third": ["6", "4.0", "4"]}
    outcome = asyncio.run(Debate(rounds=3, grade="each").run(TASK, Scripted(lines), None))
    assert outcome.answer == lines
    early = Debate(rounds=3, grade="each", consensus=1.0)
    stopped = asyncio.run(early.run(TASK, Scripted(lines), None))
    assert stopped.answer == {role: said[:2] for role, said in lines.items()}
    assert asyncio.run(Debate(rounds=3, consensus=0.3).run(TASK, Scripted(lines), None)) == "4"


# Credit and seats


def test_both_earn_what_both_answers_are_worth_each_less_its_own_distance() -> None:
    played = episode([turn("pioneer", response=(3, 4)), turn("observer", response=(5,))])
    pioneer, observer = played.turns
    pioneer.reward, observer.reward = 0.25, 1.0
    pioneer.ref_logprobs, observer.ref_logprobs = torch.tensor([-1.5, -3.0]), torch.tensor([-1.0])
    for each in played.turns:
        each.values = torch.zeros(len(each.response_ids))
    algorithm = Cory(kl=0.1, whiten=None)
    Aggregate().assign([played], {}, team_chain=algorithm.chain == "team")
    algorithm.compute_advantages([played], {})
    assert pioneer.returns is not None and observer.returns is not None
    # All log-probs are −1: the pioneer is 0.5 and 2.0 above its reference.
    assert pioneer.returns.tolist() == pytest.approx([1.25 - 0.1 * 2.5, 1.25 - 0.1 * 2.0])
    assert observer.returns.tolist() == pytest.approx([1.25])


def test_the_policies_change_seats_every_so_many_steps() -> None:
    seats = {"pioneer": "left", "observer": "right"}
    at = [Cory(swap=3).assign_roles(step, seats)["pioneer"] for step in range(9)]
    assert at == ["left"] * 3 + ["right"] * 3 + ["left"] * 3
    for step in range(9):
        assert sorted(Cory(swap=3).assign_roles(step, seats).values()) == ["left", "right"]


def cory_config(model: Path, **changes: Any) -> dict[str, Any]:
    tree = naming_config(model, steps=4, algorithm={"name": "cory", "swap": 2})
    return tree | changes


def test_swapped_policies_speak_and_learn_in_each_other_s_seats(model_folder: Folder, tmp_path: Path) -> None:
    run = trained(cory_config(model_folder("llama")), tmp_path)
    for step in range(1, 5):
        players = {
            (t.role, t.policy) for e in read_episodes(tmp_path / f"episodes/{step:06d}.jsonl.gz") for t in e.turns
        }
        straight = {("left", "left"), ("right", "right")}
        assert players == (straight if step <= 2 else {("left", "right"), ("right", "left")})
    assert run.learners["left"].version == run.learners["right"].version == 4


def test_both_policies_live_on_one_base(model_folder: Folder, tmp_path: Path) -> None:
    run = started(cory_config(model_folder("llama")), tmp_path)
    assert run.learners["left"].base is run.learners["right"].base


def test_cory_resumes_exactly(model_folder: Folder, tmp_path: Path) -> None:
    tree = cory_config(model_folder("llama"))
    straight = trained(tree, tmp_path / "straight")
    trained(tree | {"steps": 3}, tmp_path / "cut")
    again = resumed(tree, tmp_path / "cut")
    assert weights(again).keys() == weights(straight).keys()
    assert all(torch.equal(weights(again)[name], tensor) for name, tensor in weights(straight).items())


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {
        f"{policy}/{name}": parameter.detach()
        for policy, learner in run.learners.items()
        for name, parameter in learner.parameters().items()
    }


@dataclass
class Wrong:
    changes: dict[str, Any]
    complaint: str


def wrong_teams(tree: dict[str, Any]) -> dict[str, Wrong]:
    policies = tree["policies"]
    other = policies | {"right": policies["right"] | {"model": "another"}}
    shared = {"policies": {"left": policies["left"]}, "roles": {"left": "left", "right": "left"}}
    rounds = {"roles": {"left": {"policy": ["left", "right"]}, "right": "right"}}
    unshared = {"workflow": "cory", "roles": {"pioneer": "left", "observer": "right"}}
    return {
        "one policy": Wrong(shared, "roles: CORY has two roles and a policy for each"),
        "by round": Wrong(rounds, "roles: CORY has two roles and a policy for each"),
        "two bases": Wrong({"policies": other}, "policies: CORY's two policies start from the same model"),
        "not shared": Wrong(unshared, "credit: must be aggregate, with mode: sum"),
        "mean": Wrong(unshared | {"credit": {"name": "aggregate", "mode": "mean"}}, "credit: must be aggregate"),
    }


@pytest.mark.parametrize("name", ["one policy", "by round", "two bases", "not shared", "mean"])
def test_a_team_that_is_not_cory_s_is_refused(name: str, tmp_path: Path) -> None:
    tree = cory_config(tmp_path)
    wrong = wrong_teams(tree)[name]
    config = written(tree | wrong.changes, tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_conflicts(config)
    assert wrong.complaint in str(refused.value)


def test_a_team_of_cory_s_is_accepted_also_without_a_distance(tmp_path: Path) -> None:
    roles = {"pioneer": "left", "observer": "right"}
    tree = cory_config(tmp_path, workflow="cory", roles=roles, credit="aggregate", steps=20)
    for algorithm in ({"name": "cory"}, {"name": "cory", "kl": 0.0}):
        config = written(tree | {"algorithm": algorithm}, tmp_path)
        check_conflicts(config)
    assert replace(config.algorithm.instance, kl=0.1).kl_in == "reward"


def test_cory_s_own_workflow_trains_on_the_sum_of_both_answers(model_folder: Folder, tmp_path: Path) -> None:
    vowels = "def vowels(answer, truth):\n    return sum(sign in 'aeiou' for sign in answer) / max(1, len(answer))\n"
    (tmp_path / "vowels.py").write_text(vowels)
    (tmp_path / "rows.jsonl").write_text('{"question": "Say it.", "answer": "it"}\n' * 4)
    roles = {"pioneer": "left", "observer": "right"}
    rows = str(tmp_path / "rows.jsonl")
    run = trained(
        cory_config(
            model_folder("llama"),
            steps=2,
            algorithm={"name": "cory", "swap": 1},
            workflow="cory",
            roles=roles,
            credit="aggregate",
            env={"name": "rows", "train": rows, "test": rows},
            reward=f"{tmp_path}/vowels.py:vowels",
        ),
        tmp_path,
    )
    for step in range(2):
        for played in read_episodes(tmp_path / f"episodes/{step + 1:06d}.jsonl.gz"):
            own = [t.reward or 0.0 for t in played.turns]
            assert played.reward == pytest.approx(sum(own) / 2)
            assert [t.credit for t in played.turns] == pytest.approx([sum(own)] * 2)
            assert {t.role: t.policy for t in played.turns} == (
                roles if step == 0 else dict(zip(roles, ("right", "left"), strict=True))
            )
            assert all(t.ref_logprobs is not None for t in played.turns)
    assert run.learners["left"].version == 2
