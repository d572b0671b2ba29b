"""Laws of training a team: who moves, who does not, and that a team learns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from coterie.episode_rows import read_episodes
from coterie.learners.batch import make_batches
from coterie.rollout.metrics import TooManyFailures
from coterie.statistics import mean
from coterie.training.loop import Run, train
from coterie.training.tasks import TaskStream
from coterie.types import Batch, Task
from tests.models import tiny_model
from tests.runs import naming_config, started, trained

Folder = Callable[[str], Path]


def metrics(run: Run, name: str) -> list[float]:
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


def weights(run: Run, policy: str) -> dict[str, Tensor]:
    """All that a policy speaks with: its base and its adapter."""
    learner = run.learners[policy]
    named = dict(learner.base.model.named_parameters()) | learner.parameters()
    return {name: parameter.detach().clone() for name, parameter in named.items()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    return max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())


def said(run: Run, policy: str, step: int = 1) -> Batch:
    """What a policy said in one step, as a batch."""
    return make_batches(read_episodes(run.folder / "episodes" / f"{step:06d}.jsonl.gz"), require_advantages=False)[
        policy
    ]


def changed(tree: dict[str, Any], policy: str, **fields: Any) -> dict[str, Any]:
    """The same config with one policy changed."""
    return tree | {"policies": tree["policies"] | {policy: tree["policies"][policy] | fields}}


# Learning


GAME = {"steps": 24, "tasks_per_step": 4, "episodes_per_task": 8, "eval": {"tasks": 32}, "checkpoint": {"every": 100}}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_team_of_adapters_learns_to_name_its_letters(algorithm: str, model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), **GAME, algorithm={"name": algorithm})
    run = trained(tree, tmp_path)
    assert metrics(run, "reward")[0] < 0.6
    assert metrics(run, "eval/reward")[-1] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("lora", [{"rank": 4}, None], ids=["lora", "whole"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_team_learns_to_name_its_letters_whatever_the_seed(
    algorithm: str, lora: dict[str, int] | None, seed: int, model_folder: Folder, tmp_path: Path
) -> None:
    model = str(model_folder("llama"))
    tree = naming_config(model_folder("llama"), **GAME | {"steps": 30, "tasks_per_step": 8}, seed=seed)
    rate = 1e-2 if lora else 3e-3
    tree["policies"] = {name: {"model": model, "lr": rate, "lora": lora} for name in ("left", "right")}
    run = trained(tree | {"algorithm": {"name": algorithm}}, tmp_path)
    assert mean(metrics(run, "reward")[-5:]) >= 0.95  # of 320 episodes; 32 greedy ones depend on rounding


def test_two_roles_on_one_policy_learn_together(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=2)
    tree["policies"] = {"both": tree["policies"]["left"]}
    run = trained(tree | {"roles": {"left": "both", "right": "both"}}, tmp_path)
    batch = said(run, "both")
    assert {batch.roles[r] for r in batch.role[batch.mask].tolist()} == {"left", "right"}
    assert run.learners["both"].version == 2


# Sampler and learner


@pytest.mark.parametrize("lora", [{"rank": 4}, None], ids=["lora", "whole"])
def test_sampler_and_learner_agree_at_every_step(
    lora: dict[str, int] | None, model_folder: Folder, tmp_path: Path
) -> None:
    tree = naming_config(model_folder("llama"), steps=3, algorithm={"name": "grpo", "epochs": 2, "clip": 0.3})
    tree["workflow"] |= {"rounds": 2}
    tree["roles"] = {"left": {"policy": "left", "temperature": 0.6}, "right": {"policy": "right"}}
    rate = 1e-2 if lora else 1e-3
    tree["policies"] = {n: {"model": str(model_folder("llama")), "lr": rate, "lora": lora} for n in ("left", "right")}
    run = trained(tree, tmp_path)
    for policy in ("left", "right"):
        assert max(metrics(run, f"{policy}/logprob_gap_max")) < 1e-4
    versions = {t.version for e in read_episodes(tmp_path / "episodes" / "000003.jsonl.gz") for t in e.turns}
    assert versions == {4}  # two optimiser steps in each of the two steps before


def test_gradient_checkpointing_changes_nothing_that_is_sampled(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=2)
    plain = trained(tree, tmp_path / "plain")
    thrifty = trained(tree | {"learning": {"checkpointing": True}}, tmp_path / "thrifty")
    for policy in ("left", "right"):
        assert torch.equal(said(plain, policy, 2).tokens, said(thrifty, policy, 2).tokens)
        assert max(metrics(thrifty, f"{policy}/logprob_gap_max")) < 1e-4


# Who moves


@pytest.mark.parametrize("lora", [{"rank": 4}, None], ids=["lora", "whole"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_frozen_roles_do_not_move_and_trained_ones_do(
    algorithm: str, lora: dict[str, int] | None, model_folder: Folder, tmp_path: Path
) -> None:
    tree = changed(naming_config(model_folder("llama"), steps=2), "left", frozen=True, lr=1e-4, lora=lora)
    tree["algorithm"] = {"name": algorithm, "kl": 0.01}
    run = started(tree, tmp_path)
    before = {policy: weights(run, policy) for policy in run.learners}
    train(run)
    assert moved(before["left"], weights(run, "left")) == 0.0
    assert moved(before["right"], weights(run, "right")) > 1e-3
    assert run.learners["left"].version == 0 and run.learners["right"].version == 2
    assert not metrics(run, "left/loss") and len(metrics(run, "right/loss")) == 2


def test_the_base_under_adapters_does_not_move(model_folder: Folder, tmp_path: Path) -> None:
    run = started(naming_config(model_folder("llama"), steps=2), tmp_path)
    base = {name: p.detach().clone() for name, p in run.learners["left"].base.model.named_parameters()}
    train(run)
    assert run.learners["left"].base is run.learners["right"].base
    assert all(torch.equal(p, base[name]) for name, p in run.learners["left"].base.model.named_parameters())


def test_a_whole_model_and_an_adapter_on_the_same_model_are_apart(model_folder: Folder, tmp_path: Path) -> None:
    tree = changed(naming_config(model_folder("llama"), steps=2), "left", lora=None, lr=1e-3)
    run = started(tree, tmp_path)
    right = {name: p.detach().clone() for name, p in run.learners["right"].base.model.named_parameters()}
    left = weights(run, "left")
    train(run)
    assert moved(left, weights(run, "left")) > 1e-4
    assert all(torch.equal(p, right[name]) for name, p in run.learners["right"].base.model.named_parameters())
    assert max(metrics(run, "left/logprob_gap_max") + metrics(run, "right/logprob_gap_max")) < 1e-4


def test_every_policy_has_its_own_learning_rate(model_folder: Folder, tmp_path: Path) -> None:
    tree = changed(naming_config(model_folder("llama"), steps=1), "left", lr=4e-3)
    tree["learning"] = {"clip_norm": 1000.0}
    run = started(tree, tmp_path)
    before = {policy: weights(run, policy) for policy in run.learners}
    train(run)
    # Adam's first step is the learning rate wherever there is a gradient.
    for policy, rate in (("left", 4e-3), ("right", 1e-2)):
        assert moved(before[policy], weights(run, policy)) == pytest.approx(rate, rel=1e-2)
        assert metrics(run, f"{policy}/lr") == [rate]


def test_warm_up_and_schedule_reach_every_step(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), learning={"warmup": 1, "schedule": "linear"})
    assert metrics(trained(tree, tmp_path), "left/lr") == pytest.approx([5e-3, 1e-2, 2e-2 / 3, 1e-2 / 3])


# The reference


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_kl_changes_what_is_learned(where: str, model_folder: Folder, tmp_path: Path) -> None:
    plain = {"name": "grpo", "scale": "none"}
    free = naming_config(model_folder("llama"), steps=2, algorithm=plain)
    dear = free | {"algorithm": plain | {"kl": 1.0, "kl_in": where}}
    runs = [trained(tree, tmp_path / name) for name, tree in (("free", free), ("dear", dear))]
    # The first step starts at the reference, so they part in the second.
    assert torch.equal(said(runs[0], "left", 2).tokens, said(runs[1], "left", 2).tokens)
    assert moved(weights(runs[0], "left"), weights(runs[1], "left")) > 1e-3


@pytest.mark.parametrize("where", ["loss", "reward", None])
def test_the_metrics_that_everybody_looks_for_are_there_for_every_policy(
    where: str | None, model_folder: Folder, tmp_path: Path
) -> None:
    algorithm: dict[str, Any] = {"name": "grpo", "epochs": 2, "clip": 0.01}
    tree = naming_config(model_folder("llama"), steps=3)
    tree["algorithm"] = algorithm | ({} if where is None else {"kl": 0.1, "kl_in": where})
    trained(tree, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][:3]
    names = ("clip_fraction", "ratio_mean", "ratio_max", "entropy", "grad_norm", "advantage_mean", "advantage_std")
    names += ("response_length", "truncated")
    for policy in ("left", "right"):
        assert all(math.isfinite(row[f"{policy}/{name}"]) for row in rows for name in names)
        assert all((f"{policy}/kl" in row) == (where is not None) for row in rows)
        assert all(row[f"{policy}/ratio_max"] >= row[f"{policy}/ratio_mean"] > 0 for row in rows)
        assert any(row[f"{policy}/clip_fraction"] > 0 for row in rows)
        assert all(0 <= row[f"{policy}/clip_fraction"] <= 1 for row in rows)
    if where is not None:
        assert all(row["left/kl"] > 0 for row in rows)  # the second optimiser step finds that the first has moved it
    stored = read_episodes(sorted((tmp_path / "episodes").glob("*.jsonl.gz"))[-1])
    left = [t for e in stored for t in e.turns if t.policy == "left"]
    tokens = torch.cat([t.advantages for t in left]).double()
    last = rows[-1]
    assert last["left/advantage_mean"] == pytest.approx(float(tokens.mean()), abs=1e-5)
    assert last["left/advantage_std"] == pytest.approx(float(tokens.std(unbiased=False)), abs=1e-5)
    assert last["left/response_length"] == pytest.approx(sum(len(t.response_ids) for t in left) / len(left))
    assert last["left/truncated"] == pytest.approx(sum(t.stop == "length" for t in left) / len(left))


def test_reference_log_probs_are_those_of_the_base_without_its_adapter(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=3, algorithm={"name": "grpo", "kl": 0.1})
    run = trained(tree, tmp_path)
    untrained = started(tree, tmp_path / "untrained")
    batch = said(run, "left", step=3)
    expected = untrained.learners["left"].logprobs(batch)
    torch.testing.assert_close(batch.ref_logprobs[batch.mask], expected[batch.mask], atol=1e-4, rtol=1e-5)
    assert float((batch.ref_logprobs - batch.logprobs)[batch.mask].abs().max()) > 0.01


# Mixed teams


def with_other_tokenizer(kind: str, folder: Path) -> Path:
    """A tiny model whose tokenizer has other ids, another template and another end of turn: letters only."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([*letters, "[end]", "[turn]"])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in ("[end]", "[turn]")])
    template = (
        "{% for m in messages %}[turn]{{ m['role'] }}: {{ m['content'] }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[turn]assistant: {% endif %}"
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[end]", chat_template=template).save_pretrained(
        folder
    )
    model = tiny_model(kind)
    model.generation_config = GenerationConfig(eos_token_id=vocabulary["[end]"])
    model.save_pretrained(folder)
    return folder


def test_two_architectures_with_tokenizers_of_their_own_train_in_one_team(model_folder: Folder, tmp_path: Path) -> None:
    other = with_other_tokenizer("qwen3", tmp_path / "qwen3")
    tree = changed(naming_config(model_folder("llama"), steps=2, algorithm={"name": "ppo"}), "right", model=str(other))
    run = started(tree, tmp_path / "run")
    before = {policy: weights(run, policy) for policy in run.learners}
    train(run)
    chats = {policy: learner.base.chat for policy, learner in run.learners.items()}
    for policy in ("left", "right"):
        assert moved(before[policy], weights(run, policy)) > 1e-3
        assert max(metrics(run, f"{policy}/logprob_gap_max")) < 1e-4
    for played in read_episodes(run.folder / "episodes" / "000002.jsonl.gz"):
        left, right = played.turns
        assert left.text in run.learners["right"].base.tokenizer.decode(list(right.prompt_ids))
        assert all(turn.text == chats[turn.policy].text(turn.response_ids) for turn in played.turns)
        for turn in played.turns:  # its prompt is also stored as text, control tokens included
            assert turn.prompt == run.learners[turn.policy].base.tokenizer.decode(list(turn.prompt_ids)) != ""
    assert chats["left"].end_ids.isdisjoint(chats["right"].end_ids)


# The loop


def test_a_run_in_which_too_much_fails_stops_and_keeps_what_was_played(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"))
    tree["env"] = tree["env"] | {"letters": {"left": "e"}}  # so scoring the other role fails
    with pytest.raises(TooManyFailures, match=r"8 of 8 episodes failed \(8 KeyError\)(.|\n)*KeyError: 'right'"):
        trained(tree, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
    failed = read_episodes(tmp_path / "episodes" / "000001.jsonl.gz")
    assert len(failed) == 8 and all("KeyError: 'right'" in (episode.error or "") for episode in failed)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_step_in_which_everything_fails_teaches_nothing_where_that_is_allowed(
    algorithm: str, model_folder: Folder, tmp_path: Path
) -> None:
    tree = naming_config(model_folder("llama"), steps=1, rollout={"max_failed": 1.0}, algorithm={"name": algorithm})
    tree["env"] = tree["env"] | {"letters": {}}
    run = trained(tree, tmp_path)
    assert metrics(run, "failed/KeyError") == [8.0] and run.learners["left"].version == 0


def test_tasks_come_in_a_new_order_every_epoch_and_each_once() -> None:
    tasks = [Task(str(i), "", None) for i in range(10)]

    def drawn(stream: TaskStream, *steps: int) -> list[str]:
        return [task.id for step in steps for task in stream.at_step(step)]

    def epochs(ids: Sequence[str]) -> list[list[str]]:
        return [list(ids[i : i + 10]) for i in range(0, len(ids), 10)]

    first, second = epochs(drawn(TaskStream(tasks, 4, seed=1), *range(5)))
    assert sorted(first) == sorted(second) == sorted(t.id for t in tasks) and first != second
    assert drawn(TaskStream(tasks, 4, seed=1), 4, 2) == [*second[6:], *first[8:], *second[:2]]
    assert drawn(TaskStream(tasks, 4, seed=2), 0, 1, 2)[:10] != first
