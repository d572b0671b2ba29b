"""Other architectures: run on our attention where it agrees with theirs, else on their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.errors import ModelError
from coterie.models.attention import Packed, Span
from coterie.models.base import Base
from coterie.types import Sampling
from tests.learners import learner
from tests.models import SHAPE, tiny_tokenizer
from tests.oracle import Oracle, ask, random_adapter, random_ids

DRIVEN: dict[str, dict[str, Any]] = {
    "gpt2": {"num_hidden_layers": 2},  # learned positions; its config names no key heads
    "gpt_neox": {},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
    "deepseek_v3": {  # keys wider than the config's head size
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    },
}
LEFT_ALONE: dict[str, dict[str, Any]] = {
    "bloom": {"n_head": 4},  # positions are in its mask; names no longest text
    "gemma2": {"head_dim": 16, "sliding_window": 8},  # caps its attention scores
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},  # attention may go nowhere
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_d_head": 16,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
    },  # attends, but not only
    "falcon": {},  # takes our arguments and ignores them
    "phi3": {  # turns all rows by the longest that is read with them
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 10,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0 + i for i in range(8)],
            "original_max_position_embeddings": 10,
        },
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},  # convolutions read across rows
    "deepseek_v3": {**DRIVEN["deepseek_v3"], "v_head_dim": 12},  # values narrower than keys
}


def other(kind: str, options: dict[str, Any], folder: Path) -> Path:
    config = AutoConfig.for_model(kind, **{**SHAPE, "num_hidden_layers": 2, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def assert_right_logits(base: Base) -> None:
    ids = torch.tensor(random_ids(40, seed=4))
    spans = [Span(0, 6), Span(6, 25), Span(31, 9)]
    positions = torch.cat([torch.arange(span.length) for span in spans])
    model = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32).eval()
    expected = torch.cat([model(ids[None, s.start : s.start + s.length]).logits[0] for s in spans])
    torch.testing.assert_close(base.logits(base.hidden(ids, positions, Packed(spans))), expected, atol=1e-4, rtol=1e-4)


def assert_engine_is_right(base: Base, engine: Any) -> None:
    prompts, oracle = [random_ids(length, seed=length) for length in (1, 11, 30)], Oracle(base)
    samples = ask(engine, [("plain", prompt, 3, Sampling(8)) for prompt in prompts])
    for prompt, sample in zip(prompts, samples, strict=True):
        ids, logprobs = oracle.says(prompt, 3, Sampling(8))
        assert list(sample.ids) == ids
        assert sample.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("kind", list(DRIVEN))
def test_models_with_standard_attention_run_on_our_attention(kind: str, tmp_path: Path) -> None:
    base = Base(other(kind, DRIVEN[kind], tmp_path))
    assert base.native
    assert_right_logits(base)
    for engine in (NativeEngine, HfEngine):
        assert_engine_is_right(base, engine(base, {"plain": None}))


@pytest.mark.parametrize("kind", list(LEFT_ALONE))
def test_models_that_our_attention_cannot_drive_use_their_own(kind: str, tmp_path: Path) -> None:
    base = Base(other(kind, LEFT_ALONE[kind], tmp_path))
    assert not base.native
    assert_right_logits(base)
    assert_engine_is_right(base, HfEngine(base, {"plain": None}))
    with pytest.raises(AssertionError, match="only the hf engine"):
        NativeEngine(base, {"plain": None})


def test_models_with_their_own_attention_have_adapters_too(tmp_path: Path) -> None:
    base = Base(other("gemma2", LEFT_ALONE["gemma2"], tmp_path))
    random_adapter(base, "a", 4, ("q_proj", "down_proj"), seed=1)
    engine, oracle = HfEngine(base, {"a": "a"}), Oracle(base, "a")
    prompt, ids = random_ids(20, seed=2), torch.tensor(random_ids(30, seed=3))
    assert list(ask(engine, [("a", prompt, 1, Sampling(8))])[0].ids) == oracle.says(prompt, 1, Sampling(8))[0]
    layout, positions = Packed([Span(0, 12), Span(12, 18)]), torch.cat([torch.arange(12), torch.arange(18)])
    with torch.no_grad():
        ours = base.logits(base.hidden(ids, positions, layout, [(0, 30, "a")]))
        expected = torch.cat([oracle.model(row[None]).logits[0] for row in ids.split([12, 18])])
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_a_model_whose_logits_cannot_be_reproduced_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would sample from one policy and train another."""
    forward = transformers.LlamaForCausalLM.forward

    def louder(self: Any, *arguments: Any, **options: Any) -> Any:
        out = forward(self, *arguments, **options)
        out.logits = out.logits * 1.5
        return out

    folder = other("llama", {}, tmp_path)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", louder)
    with pytest.raises(ModelError, match="cannot reproduce the logits of a llama from its hidden states"):
        Base(folder)


def test_gradient_checkpointing_does_not_change_sampling(model_folder: Callable[[str], Path]) -> None:
    made = learner(model_folder("llama"), lora=False, checkpointing=True)
    assert_engine_is_right(made.base, HfEngine(made.base, {"plain": None}))
    assert made.base.model.training and made.base.checkpointing
