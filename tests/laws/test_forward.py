"""Our own forward computes what the model's modules compute, on the model's own weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.engines.native.engine import NativeEngine
from coterie.models import forward as module
from coterie.models.attention import Packed, Span
from coterie.models.base import Base
from coterie.models.lora_routing import Segment
from coterie.models.store import load_model
from coterie.types import Sampling
from tests.oracle import Oracle, ask, pairs, random_adapter, random_ids

OURS = ("llama", "qwen2", "qwen3")
SEGMENTS: dict[str, Callable[[int], list[Segment]]] = {
    "no adapter": lambda count: [],
    "one": lambda count: [(0, count, "b")],
    "mixed": lambda count: [(0, 5, None), (5, 9, "a"), (9, 12, "c"), (12, count, "b")],
    "in turn": lambda count: [(i, i + 1, ("b", None, "a", "b", "c")[i % 5]) for i in range(count)],
}


@torch.no_grad()
def both(base: Base, count: int, segments: list[Segment], learning: bool = False) -> tuple[Tensor, Tensor]:
    """Two rows through our forward and through `hidden`, which adds adapters in another way when training."""
    ids, spans = torch.tensor(random_ids(count, seed=count)), [Span(0, 6), Span(6, count - 6)]
    positions = torch.cat([torch.arange(span.length) for span in spans])
    ours = base.hidden_for_inference(ids, positions, Packed(spans), segments)
    with torch.set_grad_enabled(learning):
        return ours, base.hidden(ids, positions, Packed(spans), segments).detach()


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("adapters", list(SEGMENTS))
@pytest.mark.parametrize("count", [20, 100], ids=["few tokens", "many"])
def test_our_forward_computes_what_the_model_computes(
    team_base: Callable[[str], Base], kind: str, adapters: str, count: int
) -> None:
    base = team_base(kind)
    assert base.forward is not None
    ours, theirs = both(base, count, SEGMENTS[adapters](count), learning=True)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_another_architecture_keeps_its_own_forward(team_base: Callable[[str], Base]) -> None:
    base = team_base("gemma3")
    assert base.forward is None and torch.equal(*both(base, 20, []))


def test_a_forward_that_disagrees_with_the_model_is_not_used(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "apply_rope", lambda x, cos, sin: x)
    base = Base(model_folder("llama"))
    assert base.native and base.forward is None
    assert torch.equal(*both(base, 20, []))


@pytest.mark.parametrize("kind", OURS)
def test_full_fine_tuning_in_place_reaches_the_engine_and_the_saved_model(
    model_folder: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    base = Base(model_folder(kind))
    engine, prompts = NativeEngine(base, {"plain": None}), [random_ids(length, seed=length) for length in (3, 20)]
    before = ask(engine, [("plain", prompt, 0, Sampling(8, 0)) for prompt in prompts])
    with torch.no_grad():
        for seed, parameter in enumerate(base.model.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.add_(0.1 * noise)
    engine.weights_changed("plain", 1)
    after = ask(engine, [("plain", prompt, 0, Sampling(8, 0)) for prompt in prompts])
    assert [sample.ids for sample in after] != [sample.ids for sample in before]
    base.model.save_pretrained(tmp_path)
    saved = load_model(tmp_path, torch.float32, "sdpa")
    for name, parameter in base.model.named_parameters():
        assert torch.equal(saved.get_parameter(name), parameter)
    oracle = Oracle(base)
    oracle.model = saved
    assert [sample.ids for sample in after] == oracle.greedy(prompts, 8)


def test_fused_layers_are_trained_as_the_layers_they_join(model_folder: Callable[[str], Path]) -> None:
    """They hold one copy of the weights."""
    base = Base(model_folder("qwen2"))
    assert base.forward is not None
    fused = base.forward.blocks[0].qkv
    q, k, v = (base.layers[f"model.layers.0.self_attn.{leaf}_proj"] for leaf in "qkv")
    assert fused.weight.data_ptr() == q.weight.data_ptr()
    assert fused.weight[len(q.weight) :].data_ptr() == k.weight.data_ptr()
    ids, names = torch.tensor(random_ids(12, seed=3)), [name for name, _ in base.model.named_parameters()]
    assert names == [name for name, _ in load_model(base.folder, torch.float32, "sdpa").named_parameters()]
    base.use_hf_modules = True
    base.model.requires_grad_(True)
    base.hidden(ids, torch.arange(12), Packed([Span(0, 12)])).square().sum().backward()
    plain = load_model(base.folder, torch.float32, "sdpa")
    plain.base_model(ids[None]).last_hidden_state.square().sum().backward()
    for name in ("q", "k", "v"):
        ours = getattr(base.model.model.layers[0].self_attn, f"{name}_proj").weight.grad
        theirs = getattr(plain.model.layers[0].self_attn, f"{name}_proj").weight.grad
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    assert v.weight.grad is not None and v.bias.grad is not None


def test_concatenated_adapters_are_rebuilt_when_one_has_changed(model_folder: Callable[[str], Path]) -> None:
    base = Base(model_folder("llama"))
    for seed, name in enumerate(("a", "b")):
        random_adapter(base, name, 3, ("q_proj", "up_proj"), seed)
    segments: list[Segment] = [(0, 8, "a"), (8, 20, "b")]
    first, _ = both(base, 20, segments)
    with torch.no_grad():
        for pair in pairs(base, "b").values():
            pair.up.mul_(-2)
    ours, theirs = both(base, 20, segments)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(ours, first, atol=1e-2)
