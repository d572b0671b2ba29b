"""Laws of critics: whose turns they judge, what they read, what they never touch, and how they learn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from coterie.config import ConfigError
from coterie.episode_rows import read_episodes
from coterie.errors import ModelError
from coterie.learners.batch import make_batches
from coterie.learners.critics import Critic, Critics, joint_context
from coterie.learners.learner import TorchLearner
from coterie.training.loop import Run, assign_credit, collect_episodes, train
from coterie.types import Episode, Task, Team, Turn
from tests.learners import learner
from tests.models import tiny_model, tiny_tokenizer
from tests.runs import naming_config, resumed, started, trained

Folder = Callable[[str], Path]
SMALL: dict[str, Any] = {"steps": 2, "tasks_per_step": 2, "episodes_per_task": 3, "eval": {"tasks": 1}}


def kinds(model: Path) -> dict[str, dict[str, Any]]:
    """Every way to have a critic, by name: what goes under `critics`, and the algorithm."""
    lora = {"model": str(model), "lora": {"rank": 2}, "lr": 1e-2}
    whole = {"model": str(model), "lora": None, "lr": 1e-3}
    return {
        "head": {"algorithm": "ppo"},
        "one for each role": {"algorithm": "ippo", "critics": {n: lora | {"roles": [n]} for n in ("left", "right")}},
        "shared": {"algorithm": "ppo", "critics": {"both": lora}},
        "whole models": {"algorithm": "vdn_token", "critics": {n: whole | {"roles": [n]} for n in ("left", "right")}},
        "central": {"algorithm": "happo", "critics": {"team": lora | {"sees": "joint"}}},
        "central by default": {"algorithm": "mappo"},
        "a head on a frozen model": {
            "algorithm": "ppo",
            "critics": {"team": {"model": str(model), "frozen": True, "head": "mlp"}},
        },
        "replies": {"algorithm": "ppo", "critics": {"team": lora | {"sees": "reply"}}},
    }


KINDS = tuple(kinds(Path()))


def always_right(tree: dict[str, Any]) -> dict[str, Any]:
    """The same game, in which everything that is said earns 1."""
    return tree | {"env": tree["env"] | {"letters": {"left": "", "right": ""}}}


def config(model: Path, kind: str, **options: Any) -> dict[str, Any]:
    chosen = kinds(model)[kind]
    algorithm = {"name": chosen["algorithm"], **options}
    return naming_config(model, **SMALL, critics=chosen.get("critics", {})) | {"algorithm": algorithm}


def critics(run: Run) -> Critics:
    assert isinstance(run.critic, Critics)
    return run.critic


def weights(learner: TorchLearner) -> dict[str, Tensor]:
    named = learner.parameters() | (dict(learner.value_head.named_parameters()) if learner.value_head else {})
    return {name: parameter.detach().clone() for name, parameter in named.items()}


def of_all(run: Run) -> dict[str, dict[str, Tensor]]:
    judges = critics(run).critics.items() if run.critic else ()
    policies = {name: weights(learner) for name, learner in run.learners.items()}
    return policies | {f"critic {name}": weights(judge.learner) for name, judge in judges}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def logged(run: Run) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    clocks = ("time", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in clocks and not k.startswith("seconds/")} for row in rows]


# Learning and going on


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_critic_learns_and_resumes_to_the_bit(kind: str, model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), kind, epochs=2, minibatches=2)
    untrained = of_all(started(tree, tmp_path / "untrained"))
    straight = trained(tree, tmp_path / "straight")
    trained(tree | {"steps": 1}, tmp_path / "halves")
    again = resumed(tree, tmp_path / "halves")
    for name, learned in of_all(straight).items():
        assert not same(learned, untrained[name]), name
        assert same(learned, of_all(again)[name]), name
    assert logged(straight) == logged(again)
    states = [
        {name: judge.learner.state() for name, judge in critics(run).critics.items()} if run.critic else {}
        for run in (straight, again)
    ]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    rows = logged(straight)[:2]
    assert rows[0]["value/mean"] == 0.0 != rows[1]["value/mean"]  # heads start at zero
    assert all(row["left/logprob_gap_max"] < 1e-4 for row in rows)


def test_values_of_a_role_come_from_its_own_critic(model_folder: Folder, tmp_path: Path) -> None:
    run = started(config(model_folder("llama"), "one for each role"), tmp_path)
    for worth, name in enumerate(("left", "right")):
        with torch.no_grad():
            head = critics(run).critics[name].learner.value_head
            assert head is not None
            head.bias.fill_(1.0 + worth)
    episodes, _ = collect_episodes(run, run.plan(run.step), 2)
    critics(run).read(episodes)
    for spoken in (t for e in episodes for t in e.turns):
        assert spoken.values is not None
        assert spoken.values.tolist() == [1.0 if spoken.role == "left" else 2.0] * len(spoken.response_ids)


def test_a_critic_learns_several_times_a_step_and_alone_while_it_warms_up(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), "central", value_fits=3, warmup=1, value_clip=0.5)
    run = started(tree, tmp_path)
    before = of_all(run)
    run.config = replace(run.config, steps=1)
    train(run)
    assert critics(run).critics["team"].learner.version == 3
    assert all(same(before[policy], weights(learner)) for policy, learner in run.learners.items())
    assert not same(before["critic team"], of_all(run)["critic team"])
    run.config = replace(run.config, steps=2)
    train(run)
    assert critics(run).critics["team"].learner.version == 6
    assert not any(same(before[policy], weights(learner)) for policy, learner in run.learners.items())


@pytest.mark.parametrize("kind", ["shared", "central"])
def test_a_critic_comes_to_foresee_what_the_team_earns(kind: str, model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), kind, value_fits=40, value_lr=0.03, lam_turn=1.0)
    run = started(always_right(tree), tmp_path)
    episodes, counterfactuals = collect_episodes(run, run.plan(run.step), 2)
    assign_credit(run, episodes, counterfactuals)
    critics(run).fit(episodes, 0)
    critics(run).read(episodes)
    values = torch.cat([t.values for e in episodes for t in e.turns if t.values is not None])
    assert float(((values - 1) ** 2).mean()) < 0.05  # it began at zero, so at an error of 1


# What they read


def test_a_central_critic_reads_what_all_have_said_and_who_is_to_speak(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), "central by default")
    tree["workflow"] |= {"rounds": 2}
    run = started(tree, tmp_path)
    episodes, _ = collect_episodes(run, run.plan(run.step), 1)
    team = critics(run).critics["team"]
    for played in episodes:
        view = team.critic_view(played)
        assert [t.role for t in view.turns] == ["left", "right", "left", "right"]
        for k, (spoken, read) in enumerate(zip(played.turns, view.turns, strict=True)):
            context = joint_context(played, spoken)
            assert team.learner.base.chat.prompt([{"role": "user", "content": context}]) == read.prompt_ids
            said = [f"{t.role}: {t.text}" for t in played.turns[:k]]
            assert context == "\n\n".join([played.task.prompt, *said, f"{spoken.role}:"])
            assert read.response_ids == spoken.response_ids and spoken.prompt_ids != read.prompt_ids


def test_a_critic_of_replies_reads_the_question_and_nothing_that_others_said(
    model_folder: Folder, tmp_path: Path
) -> None:
    tree = config(model_folder("llama"), "replies")
    tree["workflow"] |= {"rounds": 2}
    run = started(tree, tmp_path)
    (played, *_), _ = collect_episodes(run, run.plan(run.step), 1)
    team = critics(run).critics["team"]
    question = team.learner.base.chat.prompt([{"role": "user", "content": played.task.prompt}])
    view = team.critic_view(played)
    assert [turn.prompt_ids for turn in view.turns] == [question] * 4
    assert [turn.response_ids for turn in view.turns] == [turn.response_ids for turn in played.turns]


def test_of_a_context_that_is_too_long_a_critic_reads_the_end_and_says_so(model_folder: Folder, tmp_path: Path) -> None:
    run = started(config(model_folder("llama"), "central by default"), tmp_path)
    episodes, counterfactuals = collect_episodes(run, run.plan(run.step), 2)
    team = critics(run).critics["team"]
    whole = [turn.prompt_ids for turn in team.critic_view(episodes[0]).turns]
    lengths = [len(ids) + len(turn.response_ids) for ids, turn in zip(whole, episodes[0].turns, strict=True)]
    team.learner.base.context = max(lengths) - 1
    read = [turn.prompt_ids for turn in team.critic_view(episodes[0]).turns]
    assert read == [ids[1:] if n == max(lengths) else ids for ids, n in zip(whole, lengths, strict=True)]
    assign_credit(run, episodes, counterfactuals)
    assert critics(run).fit(episodes, 0)["critic/team/truncated"] > 0


def test_a_critic_of_one_role_s_own_context_reads_what_the_role_read(model_folder: Folder, tmp_path: Path) -> None:
    run = started(config(model_folder("llama"), "one for each role"), tmp_path)
    episodes, _ = collect_episodes(run, run.plan(run.step), 1)
    view = critics(run).critics["left"].critic_view(episodes[0])
    assert [(t.role, t.prompt_ids) for t in view.turns] == [("left", episodes[0].turns[0].prompt_ids)]


def test_a_critic_with_another_tokenizer_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    other = other_tokenizer(tmp_path / "other")
    tree = config(model_folder("llama"), "one for each role")
    tree["critics"]["right"] = tree["critics"]["right"] | {"model": str(other)}
    with pytest.raises(ConfigError, match=r"critics.right: .*other has another tokenizer than policies.right"):
        started(tree, tmp_path / "run")
    # The same tokenizer in another folder, under another model, is no matter.
    tiny_tokenizer().save_pretrained(other)
    tree["critics"]["right"] |= {"lora": None}
    assert critics(started(tree, tmp_path / "run")).critics["right"].learner.base.folder == other


def other_tokenizer(folder: Path) -> Path:
    """A model whose tokenizer has another vocabulary."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["reasoner"])
    tokenizer.save_pretrained(folder)
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["mappo", "happo"])
def test_a_team_of_two_tokenizers_gets_a_central_critic_for_each(
    name: str, model_folder: Folder, tmp_path: Path
) -> None:
    tree = config(model_folder("llama"), "central by default") | {"algorithm": {"adv_estimator": name}}
    tree["policies"]["right"] = tree["policies"]["right"] | {"model": str(other_tokenizer(tmp_path / "other"))}
    run = started(tree, tmp_path / "run")
    found = {key: critic.roles for key, critic in critics(run).critics.items()}
    assert found == {"team_left": {"left"}, "team_right": {"right"}}
    before = of_all(run)
    train(run)
    assert all(not same(old, new) for old, new in zip(before.values(), of_all(run).values(), strict=True))
    one_for_all = tree | {"critics": {"all": {"model": str(model_folder("llama")), "sees": "joint"}}}
    with pytest.raises(ConfigError, match=r"all: .* than policies.right, whose token ids") as refused:
        started(one_for_all, tmp_path / "refused")
    shown = yaml.safe_load(str(refused.value).partition("tokenizer:\n")[2])
    assert list(critics(started(tree | shown, tmp_path / "shown")).critics) == list(found)


# Whom they judge


def test_frozen_policies_are_environment_to_a_critic_of_everyone(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), "central by default")
    tree["policies"] = tree["policies"] | {"right": tree["policies"]["right"] | {"frozen": True, "lr": 1e-4}}
    run = started(tree, tmp_path)
    episodes, counterfactuals = collect_episodes(run, run.plan(run.step), 2)
    assign_credit(run, episodes, counterfactuals)
    for spoken in (t for e in episodes for t in e.turns):
        assert (spoken.values is None) == (spoken.advantages is None) == (spoken.role == "right")
    assert {t.role for e in episodes for t in critics(run).critics["team"].critic_view(e).turns} == {"left"}
    assert "right: " in joint_context(episodes[0], replace(episodes[0].turns[0], seen=(1,)))


def test_turns_that_were_given_and_empty_ones_are_judged_by_nobody(model_folder: Folder, tmp_path: Path) -> None:
    run = started(config(model_folder("llama"), "shared"), tmp_path)
    episodes, _ = collect_episodes(run, run.plan(run.step), 2)
    given, empty = episodes[0].turns[0], episodes[1].turns[1]
    given.trainable, empty.response_ids, empty.logprobs = False, (), ()
    critics(run).read(episodes)
    unjudged = [t for e in episodes for t in e.turns if t.values is None]
    assert len(unjudged) == 2 and unjudged[0] is given and unjudged[1] is empty


@dataclass(frozen=True)
class Sometimes:
    """The right one speaks about every other task only."""

    @property
    def roles(self) -> Sequence[str]:
        return ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        turn = await team.left.say(task.prompt)
        if int(task.id.rpartition("/")[2]) % 2:
            turn = await team.right.say(turn.text)
        return turn.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_absent_from_some_episodes_is_handled_and_counted(
    kind: str, model_folder: Folder, tmp_path: Path
) -> None:
    tree = config(model_folder("llama"), kind) | {"steps": 1, "workflow": f"{Path(__file__)}:Sometimes"}
    run = started(tree | {"tasks_per_step": 4}, tmp_path)
    train(run)
    played = read_episodes(tmp_path / "episodes" / "000001.jsonl.gz")
    alone = sum(len(e.turns) == 1 for e in played)
    assert 0 < alone < len(played)
    assert (logged(run)[0]["absent/left"], logged(run)[0]["absent/right"]) == (0.0, alone)
    assert all(learner.version == 1 for learner in run.learners.values())


# What they never touch


def test_a_critic_on_the_policies_base_changes_nothing_that_is_said_or_scored(
    model_folder: Folder, tmp_path: Path
) -> None:
    tree = config(model_folder("llama"), "central")
    alone, judged = started(config(model_folder("llama"), "head"), tmp_path / "alone"), started(tree, tmp_path / "run")
    learner = critics(judged).critics["team"].learner
    assert learner.base is judged.learners["left"].base and learner.adapter is not None
    with torch.no_grad():
        for pair in learner.adapter.pairs.values():
            pair.up.normal_(generator=torch.Generator().manual_seed(1))

    def said(run: Run) -> tuple[list[Any], Tensor]:
        episodes, _ = collect_episodes(run, run.plan(run.step), 2)
        batch = make_batches(episodes, require_advantages=False)["left"]
        return [(t.response_ids, t.logprobs) for e in episodes for t in e.turns], run.learners["left"].logprobs(batch)

    (tokens, scores), (same_tokens, same_scores) = said(alone), said(judged)
    assert tokens == same_tokens and torch.equal(scores, same_scores)


@pytest.mark.parametrize("kind", ["central", "whole models"])
def test_fitting_a_critic_moves_no_policy_and_no_base(kind: str, model_folder: Folder, tmp_path: Path) -> None:
    run = started(always_right(config(model_folder("llama"), kind)), tmp_path)
    episodes, counterfactuals = collect_episodes(run, run.plan(run.step), 2)
    assign_credit(run, episodes, counterfactuals)
    before = of_all(run)
    base = {name: p.detach().clone() for name, p in run.learners["left"].base.model.named_parameters()}
    critics(run).fit(episodes, 0)
    for name, learned in of_all(run).items():
        assert same(learned, before[name]) != name.startswith("critic")
    assert same(base, dict(run.learners["left"].base.model.named_parameters()))


# Options that do not fit


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "fits without critics": ({"name": "ppo", "value_fits": 2}, {}, r"algorithm.value_fits: needs `critics`"),
    "warm-up without critics": ({"name": "ppo", "warmup": 1}, {}, r"algorithm.warmup: needs `critics`"),
    "endless warm-up": ({"name": "mappo", "warmup": 2}, {}, r"algorithm.warmup: is 2 in a run of steps=2"),
    "tokens of turns": ({"name": "ppo", "level": "turn", "gamma_token": 0.9}, {}, r"gamma_token: has no effect with"),
    "lambda of turns": ({"name": "ppo", "level": "turn", "lam_token": 0.9}, {}, r"lam_token: has no effect with"),
    "weight of a critic": ({"name": "mappo", "value_weight": 2.0}, {}, r"value_weight: has no effect with critics"),
    "a clip of one step": ({"name": "ppo", "value_clip": 0.2}, {}, r"value_clip: has no effect with one optimizer"),
    "a clip of one fit": ({"name": "mappo", "epochs": 2, "value_clip": 0.2}, {}, r"value_clip: has no effect with one"),
    "no rate": ({"name": "ppo", "value_lr": 0}, {}, r"algorithm.value_lr: "),
    "turns of tokens": ({"name": "vdn_token", "level": "turn"}, {}, r"algorithm.level: is token for vdn_token"),
    "nobody wants it": ({"name": "grpo"}, {"a": {}}, r"critics: have no effect: Grpo uses no values"),
    "nobody judged": ({"name": "ppo"}, {"a": {"roles": ["left"]}}, r"critics: no critic for right"),
    "judged twice": ({"name": "ppo"}, {"a": {}, "b": {"roles": ["left"]}}, r"left already has the critic a"),
    "a stranger": ({"name": "ppo"}, {"a": {"roles": ["lefty", "right"]}}, r"there is no role 'lefty'"),
    "not central": ({"name": "happo"}, {"a": {"sees": "own"}}, r"critics.a.sees: Happo needs critics that see"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_options_of_critics_that_contradict_the_rest_are_refused(
    mistake: str, model_folder: Folder, tmp_path: Path
) -> None:
    algorithm, given, message = WRONG[mistake]
    tree = naming_config(model_folder("llama"), **SMALL, critics=given, algorithm=algorithm)
    with pytest.raises(ConfigError, match=message):
        started(tree, tmp_path)


def test_a_critic_of_frozen_roles_alone_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), "one for each role")
    tree["policies"] = tree["policies"] | {"right": tree["policies"]["right"] | {"frozen": True, "lr": 1e-4}}
    with pytest.raises(ConfigError, match=r"critics.right: has no effect: only frozen policies play right"):
        started(tree, tmp_path)


def test_a_policy_that_is_called_like_a_critic_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    tree = config(model_folder("llama"), "central")
    tree["policies"] = {"critic team": tree["policies"]["left"], "right": tree["policies"]["right"]}
    with pytest.raises(ConfigError, match=r"policies.critic team: this name is used by critics.team"):
        started(tree | {"roles": {"left": "critic team", "right": "right"}}, tmp_path)


def test_values_that_fit_the_rest_are_accepted(model_folder: Folder, tmp_path: Path) -> None:
    for algorithm in ({"name": "ppo", "epochs": 2, "value_clip": 0.2}, {"name": "mappo", "value_fits": 2, "warmup": 1}):
        started(naming_config(model_folder("llama"), **SMALL, algorithm=algorithm), tmp_path / algorithm["name"])


def test_a_critic_whose_context_an_answer_fills_is_refused_by_name(model_folder: Folder) -> None:
    """With nothing before the answer its first value would be read off its end."""
    made = learner(model_folder("llama"), head=True)
    made.policy = "critic team"  # as a run calls it
    said = Turn("left", "policy", 0, 0, (5, 6, 7), (8,) * 12, (-1.0,) * 12, 1.0, "", "length")
    judges = Critic(made, frozenset({"left"}), frozenset({"policy"}), "own")
    episode = Episode("0", Task("0", "", ""), 0, [said])
    made.base.context = 13
    assert judges.context(episode, said) == (7,) and judges.truncated == 1
    made.base.context = 12
    with pytest.raises(ModelError, match=r"^critic team: its model.s context is 12 tokens, and a reply of left has 12"):
        judges.context(episode, said)


BASELINE = """
from dataclasses import dataclass

import torch
import yaml

from coterie.algorithms.base import Algorithm
from coterie.rl.losses import value_loss


@dataclass(frozen=True, kw_only=True)
class Baseline(Algorithm):
    needs_values = True

    @property
    def value_head_lr(self):
        return 1e-3

    def make_critic(self, factory):
        return factory.critics(self.error, self.loss_weights, lr=1e-3, fits=2)

    def error(self, scores, batch):
        return value_loss(scores.values, batch.values, batch.returns)

    def loss(self, scores, batch):
        loss = super().loss(scores, batch)
        return loss if scores.values is None else loss + self.error(scores, batch)

    def compute_advantages(self, episodes, memory):
        for turn in (turn for episode in episodes for turn in episode.turns if turn.trainable):
            turn.returns = torch.full_like(turn.values, turn.credit)
            turn.advantages = turn.returns - turn.values
        return {}
"""


@pytest.mark.parametrize("kind", ["head", "shared"])
def test_a_user_s_algorithm_with_values_is_one_file_and_no_ppo(kind: str, model_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "baseline.py").write_text(BASELINE)
    tree = config(model_folder("llama"), kind) | {"algorithm": f"{tmp_path}/baseline.py:Baseline"}
    run = trained(tree, tmp_path / "run")
    if kind == "shared":
        assert critics(run).critics["both"].learner.version == 2 * SMALL["steps"]
    else:
        assert run.critic is None and all(learner.value_head is not None for learner in run.learners.values())
    episodes = read_episodes(tmp_path / "run" / "episodes" / "000002.jsonl.gz")
    assert any(float(t.values.abs().max()) > 0 for e in episodes for t in e.turns if t.values is not None)
