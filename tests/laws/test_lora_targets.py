"""LoRA targets on many architectures: all linear layers are trained, and PEFT reads the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from coterie.config import ConfigError, load
from coterie.models.attention import Packed, Span
from coterie.models.base import Base
from coterie.models.lora_targets import DEFAULT_TARGETS, targets_for
from coterie.training.build import build
from coterie.training.loop import Run, train
from tests.games import game
from tests.laws.test_other_architectures import other
from tests.oracle import random_ids

# What has an adapter by default, at rank 2.
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "gpt2": ({}, {"c_attn", "c_proj", "c_fc"}),  # Conv1D: weights are [in, out]
    "phi3": ({}, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),  # fused
    "gpt_neox": ({}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    "mixtral": ({"num_local_experts": 4}, {"q_proj", "k_proj", "v_proj", "o_proj"}),  # experts are one tensor
    "qwen2_moe": (
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 48,
        },
        {*DEFAULT_TARGETS},  # of the shared expert
    ),
    "glm4_moe": (
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16, "n_group": 1},
        {"q_proj", "k_proj", "v_proj", "o_proj"},  # peft takes its gate_proj … for the experts'
    ),
    "falcon": ({}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),  # a class of its own
    "bloom": ({"n_head": 4}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
}


def trained(kind: str, folder: Path, **lora: Any) -> Run:
    """A team of two adapters on a model of that kind, after one GRPO step."""
    model = other(kind, MODELS[kind][0], folder / "model")
    policy = {"model": str(model), "lora": {"rank": 2, **lora}, "lr": 0.01}
    config = game(folder, model, steps=1, policies={"thinker": policy, "doer": policy}, eval={"tasks": 1})
    run = build(load(config), folder / "run", console=False)
    train(run)
    run.log.close()
    return run


@torch.no_grad()
def logits(base: Base, adapter: str, ids: list[int]) -> torch.Tensor:
    here, layout = torch.tensor(ids), Packed([Span(0, len(ids))])
    return base.logits(base.hidden(here, torch.arange(len(ids)), layout, [(0, len(ids), adapter)]))


@pytest.mark.parametrize("kind", MODELS)
def test_every_linear_layer_is_trained_and_peft_reads_the_adapter(kind: str, tmp_path: Path) -> None:
    run = trained(kind, tmp_path)
    learner = run.learners["doer"]
    assert learner.adapter is not None and set(learner.adapter.targets) == MODELS[kind][1]
    still = [name for name, pair in learner.adapter.pairs.items() if not pair.up.any()]
    assert still == []  # they begin at zero
    ids = random_ids(20, seed=1)
    saved = tmp_path / "run" / "checkpoints" / "000001" / "policies" / "doer"
    plain = AutoModelForCausalLM.from_pretrained(learner.base.folder, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(plain, saved).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
        with theirs.disable_adapter():
            bare = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits(learner.base, "doer", ids), expected, atol=1e-3, rtol=1e-3)
    assert (expected - bare).abs().max() > 1e-2


def test_all_linear_leaves_out_layers_below_the_rank_or_unreadable_for_peft(tmp_path: Path) -> None:
    moe = Base(other("qwen2_moe", MODELS["qwen2_moe"][0], tmp_path / "moe"))
    chosen = targets_for(moe.model, moe.layers, "all-linear", 2)
    assert set(chosen.names) == set(DEFAULT_TARGETS)
    assert chosen.left_out == {"shared_expert_gate": "is smaller than the rank of 2"}  # it has one output
    glm = Base(other("glm4_moe", MODELS["glm4_moe"][0], tmp_path / "glm"))
    left = targets_for(glm.model, glm.layers, None, 2).left_out
    assert left == dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "of a glm4_moe is what peft calls its experts")
    with pytest.raises(ValueError, match=r"lora\.targets: up_proj of a glm4_moe is what peft calls its experts; all-l"):
        targets_for(glm.model, glm.layers, ("q_proj", "up_proj"), 2)
    with pytest.raises(ValueError, match=r"lora\.rank: 999 is above \d+, the smaller side of this model's largest"):
        targets_for(moe.model, moe.layers, "all-linear", 999)


def test_left_out_layers_are_reported_when_a_run_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained("glm4_moe", tmp_path)
    message = "doer: no adapter on some layers: gate_proj of a glm4_moe is what peft calls its experts; "
    assert message in capsys.readouterr().err


def test_all_linear_may_be_requested_where_the_default_targets_exist(
    tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    base = Base(model_folder("llama"))
    assert set(targets_for(base.model, base.layers, "all-linear", 2).names) == set(DEFAULT_TARGETS)
    assert targets_for(base.model, base.layers, None, 2).names == DEFAULT_TARGETS
    assert targets_for(base.model, base.layers, ("q_proj",), 2).names == ("q_proj",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "policies.doer.lora.rank=999",
            "policies.doer.lora.rank: 999 is above 32, the smaller side of k_proj; lower it",
        ),
        (
            "policies.doer.lora.targets=all",
            "policies.doer.lora.targets: got the text 'all', expected a list or all-li",
        ),
    ],
)
def test_a_rank_or_target_that_does_not_fit_is_reported_with_its_key(
    change: str, message: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(load(game(tmp_path, model_folder("llama")), [change]), tmp_path / "run", console=False)
    assert str(caught.value).startswith(message) and str(caught.value).endswith(f"(override {change})")


def test_naming_fused_experts_as_targets_is_explained(tmp_path: Path) -> None:
    base = Base(other("mixtral", MODELS["mixtral"][0], tmp_path))
    message = (
        r"no layer is called gate_proj; this model has k_proj, .*; its experts are one tensor .* lora: null trains"
    )
    with pytest.raises(ValueError, match=message):
        targets_for(base.model, base.layers, ("q_proj", "gate_proj"), 2)
