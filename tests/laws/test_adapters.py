"""Adapters: we read what PEFT writes, PEFT reads what we write, and adapters can be switched off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from coterie.models.attention import Packed, Span
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.lora_routing import Segment
from coterie.models.peft import load_adapter, save_adapter
from coterie.models.store import load_model
from tests.models import KINDS
from tests.oracle import random_adapter, random_ids

IDS = torch.tensor(random_ids(40, seed=1))
RANDOM: dict[str, Any] = {"r": 6, "lora_alpha": 5, "init_lora_weights": False, "task_type": "CAUSAL_LM"}


@pytest.fixture(params=list(KINDS))
def fresh(request: pytest.FixtureRequest, model_folder: Callable[[str], Path]) -> Base:
    """A base of its own: these tests attach to it."""
    return Base(model_folder(request.param))


def plain_model(base: Base) -> Any:
    return load_model(base.folder, torch.float32, "sdpa")


@torch.no_grad()
def logits(base: Base, segments: list[Segment]) -> Tensor:
    return base.logits(base.hidden(IDS, torch.arange(len(IDS)), Packed([Span(0, len(IDS))]), segments))


@torch.no_grad()
def peft_logits(base: Base, folder: Path) -> Tensor:
    model: Any = peft.PeftModel.from_pretrained(plain_model(base), str(folder))
    return model(IDS[None]).logits[0]


@pytest.mark.parametrize("rslora", [False, True])
def test_a_saved_adapter_gives_the_same_logits_in_peft(fresh: Base, tmp_path: Path, rslora: bool) -> None:
    adapter = random_adapter(fresh, "solver", 4, ("q_proj", "o_proj", "down_proj"), seed=3)
    if rslora:
        adapter.scale = adapter.alpha / 2  # α / √rank
        for pair in adapter.pairs.values():
            pair.scale = adapter.scale
    save_adapter(adapter, tmp_path, str(fresh.folder))
    ours = logits(fresh, [(0, len(IDS), "solver")])
    torch.testing.assert_close(ours, peft_logits(fresh, tmp_path), atol=1e-4, rtol=1e-5)
    assert not torch.allclose(ours, logits(fresh, []), atol=1e-2)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")  # our copy names a layer in all blocks; zeros there
@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": "all-linear", "use_rslora": True},
        {"target_modules": r".*layers\.1\..*(k_proj|up_proj)", "lora_alpha": 3, "lora_dropout": 0.5},
    ],
    ids=["two layers", "all layers, rslora", "by pattern"],
)
def test_an_adapter_that_peft_made_gives_the_same_logits_here(
    fresh: Base, tmp_path: Path, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(**RANDOM | options)
    made: Any = peft.get_peft_model(plain_model(fresh), config).eval()
    made.save_pretrained(tmp_path / "theirs")
    adapter = load_adapter("theirs", tmp_path / "theirs", fresh.layers)
    with torch.no_grad():
        expected = made(IDS[None]).logits[0]
    torch.testing.assert_close(logits(fresh, [(0, len(IDS), "theirs")]), expected, atol=1e-4, rtol=1e-5)
    assert not torch.allclose(expected, logits(fresh, []), atol=1e-2)
    save_adapter(adapter, tmp_path / "ours", str(fresh.folder))
    torch.testing.assert_close(peft_logits(fresh, tmp_path / "ours"), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias: all"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: pissa"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    ],
)
def test_an_adapter_that_is_more_than_lora_is_refused_by_name(
    model_folder: Callable[[str], Path], tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    base = Base(model_folder("llama"))
    made = peft.get_peft_model(plain_model(base), peft.LoraConfig(target_modules=["q_proj"], **options))
    made.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=f"only plain LoRA adapters load here; this one sets.*{named}"):
        load_adapter("theirs", tmp_path, base.layers)


def test_another_kind_of_adapter_is_refused_by_name(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    base = Base(model_folder("llama"))
    config = peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    peft.get_peft_model(plain_model(base), config).save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="peft_type: IA3"):
        load_adapter("theirs", tmp_path, base.layers)


def test_an_adapter_of_another_model_is_refused(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    deep, shallow = Base(model_folder("llama")), Base(model_folder("qwen2"))
    save_adapter(random_adapter(deep, "a", 2, ("q_proj",), seed=1), tmp_path, "deep")
    with pytest.raises(ValueError, match=r"has a layer model.layers.2.self_attn.q_proj that this model does not have"):
        load_adapter("a", tmp_path, shallow.layers)
    with pytest.raises(ValueError, match=r"no adapter_config.json"):
        load_adapter("a", tmp_path / "nowhere", shallow.layers)


@pytest.mark.parametrize("targets", [("query",), ("q_proj", "query")])
def test_an_unknown_target_is_refused_with_the_list_of_layers(fresh: Base, targets: tuple[str, ...]) -> None:
    layers = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    with pytest.raises(ValueError, match=f"lora.targets: no layer is called query; this model has {layers}"):
        Adapter("a", 4, 8.0, targets).attach(fresh.layers, seed=0)


def test_a_base_with_its_adapters_off_is_the_base(fresh: Base) -> None:
    before = logits(fresh, [])
    random_adapter(fresh, "a", 4, ("q_proj", "up_proj"), seed=1)
    random_adapter(fresh, "b", 4, ("k_proj", "down_proj"), seed=2)
    assert torch.equal(logits(fresh, []), before)
    assert torch.equal(logits(fresh, [(0, len(IDS), None)]), before)
    mixed = logits(fresh, [(0, 15, None), (15, 25, "a"), (25, 40, "b")])
    assert torch.equal(mixed[:15], before[:15])  # later tokens are seen by no earlier one
    assert not torch.allclose(mixed[15:], before[15:], atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(before, plain_model(fresh)(IDS[None]).logits[0], atol=1e-4, rtol=1e-5)


def test_a_fresh_adapter_changes_nothing_and_can_learn(fresh: Base) -> None:
    before = logits(fresh, [])
    adapter = Adapter("new", 4, 8.0, ("q_proj", "gate_proj")).attach(fresh.layers, seed=0)
    assert torch.equal(logits(fresh, [(0, len(IDS), "new")]), before)
    fresh.hidden(IDS, torch.arange(40), Packed([Span(0, 40)]), [(0, 40, "new")]).square().sum().backward()
    assert all(bool(pair.up.grad.abs().sum() > 0) for pair in adapter.pairs.values())  # type: ignore[union-attr]


def gradients(base: Base, outputs: Tensor, weights: Tensor) -> list[Tensor]:
    """Of Σ weights · hidden states, for every parameter of every adapter."""
    parameters = [p for layer in base.layers.values() for pair in layer.pairs.values() for p in (pair.down, pair.up)]
    for parameter in parameters:
        parameter.grad = None
    (outputs * weights).sum().backward()
    return [parameter.grad for parameter in parameters]  # type: ignore[misc]


def test_packed_rows_on_their_own_adapters_learn_as_each_row_alone(fresh: Base) -> None:
    """Rows of different lengths, two with a shared prefix; on Gemma the sliding window leaves padding without keys."""
    for name in "ab":
        random_adapter(fresh, name, 3, ("q_proj", "v_proj", "up_proj"), seed=ord(name))
    weights = torch.randn(40, fresh.hidden_size, generator=torch.Generator().manual_seed(0))
    start = list(range(10))  # of both 10–12 and 13–29; these are on adapter a, and 30–39 on b
    spans = [Span(0, 10), Span(10, 3, ((0, 10),)), Span(13, 17, ((0, 10),)), Span(30, 10)]
    positions = torch.tensor([*start, *range(10, 13), *range(10, 27), *range(10)])
    packed = fresh.hidden(IDS, positions, Packed(spans), [(0, 30, "a"), (30, 40, "b")])

    def alone(before: list[int], own: range, adapter: str) -> Tensor:
        row = [*before, *own]
        segments = [(0, len(row), adapter)]
        return fresh.hidden(IDS[row], torch.arange(len(row)), Packed([Span(0, len(row))]), segments)[len(before) :]

    rows = [([], range(10), "a"), (start, range(10, 13), "a"), (start, range(13, 30), "a"), ([], range(30, 40), "b")]
    one_by_one = torch.cat([alone(*row) for row in rows])
    torch.testing.assert_close(packed, one_by_one, atol=1e-4, rtol=1e-4)
    expected = gradients(fresh, one_by_one, weights)
    assert all(bool(gradient.abs().max() > 0.01) for gradient in expected)
    for ours, theirs in zip(gradients(fresh, packed, weights), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)
