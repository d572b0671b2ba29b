"""Adapters accumulate in the hand-written backward the gradients that autograd would give their parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.models.lora import FusedLinear, LoraLinear
from coterie.models.lora_routing import LoraPair, Routing, Segment
from coterie.models.trainable_forward import lora_linear

IN, OUTS, TOKENS = 6, (5, 3), 9
Runs = list[Segment]


def pair(out: int, rank: int, draw: torch.Generator, scale: float) -> LoraPair:
    down, up = (torch.randn(*shape, generator=draw) for shape in ((rank, IN), (out, rank)))
    return LoraPair(nn.Parameter(down), nn.Parameter(up), scale)


def made() -> tuple[FusedLinear, Routing, Tensor]:
    """Two layers that read the same; adapter a is on both, b on the second alone."""
    draw, routing = torch.Generator().manual_seed(0), Routing()
    layers = [LoraLinear(nn.Linear(IN, out).requires_grad_(False), routing) for out in OUTS]
    for layer, out in zip(layers, OUTS, strict=True):
        layer.pairs["a"] = pair(out, 2, draw, 1.5)
    layers[1].pairs["b"] = pair(OUTS[1], 4, draw, 0.25)
    return FusedLinear(layers), routing, torch.randn(TOKENS, IN, generator=draw)


def parameters(fused: FusedLinear) -> list[nn.Parameter]:
    return [p for layer in fused.layers for pair in layer.pairs.values() for p in (pair.down, pair.up)]


def backward(fused: FusedLinear, routing: Routing, x: Tensor, runs: Runs) -> Tensor:
    """The gradient of x for the loss Σ out², which differs from token to token."""
    leaf = x.clone().requires_grad_()
    with routing.on(runs):
        lora_linear(leaf, fused).square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def by_autograd(fused: FusedLinear, x: Tensor, runs: Runs) -> list[Tensor]:
    """Gradients of every parameter and of x, from the definition."""
    wanted, leaf = parameters(fused), x.clone().requires_grad_()
    total = torch.zeros(())
    for layer in fused.layers:
        out = leaf @ layer.weight.t() + layer.bias
        for start, end, name in runs:
            if name in layer.pairs:
                of = layer.pairs[name]
                own = torch.zeros(TOKENS, 1)
                own[start:end] = 1
                out = out + own * (leaf @ of.down.t() @ of.up.t()) * of.scale
        total = total + out.square().sum()
    found = torch.autograd.grad(total, [*wanted, leaf], allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip([*wanted, leaf], found, strict=True)]


def gathered(fused: FusedLinear) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters(fused)]


def assert_all_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-5)


def test_gradients_equal_autograd_for_any_segments() -> None:
    every: list[Runs] = [
        [(0, 9, "a")],
        [(0, 4, "a"), (4, 9, "b")],
        [(0, 3, "b"), (3, 5, None), (5, 7, "a"), (7, 9, "b")],
    ]
    for runs in every:
        fused, routing, x = made()
        by_x = backward(fused, routing, x, runs)
        assert_all_close([*gathered(fused), by_x], by_autograd(fused, x, runs))


def test_gradients_accumulate_until_zeroed_in_either_way() -> None:
    fused, routing, x = made()
    runs: Runs = [(0, 4, "a"), (4, 9, "b")]
    once = by_autograd(fused, x, runs)[:-1]
    for to_none in (True, False, True):
        nn.utils.clip_grad_norm_(parameters(fused), 0.1)  # whatever is done to them in between
        torch.optim.SGD(parameters(fused)).zero_grad(set_to_none=to_none)
        backward(fused, routing, x, runs)
        backward(fused, routing, x, runs)
        assert_all_close(gathered(fused), [2 * gradient for gradient in once])


def test_an_existing_gradient_is_added_to() -> None:
    fused, routing, x = made()
    first = fused.layers[0].pairs["a"]
    first.down.grad = torch.ones_like(first.down)
    backward(fused, routing, x, [(0, 9, "a")])
    once = by_autograd(fused, x, [(0, 9, "a")])[:-1]
    assert_all_close(gathered(fused), [once[0] + 1, *once[1:]])


def test_changed_weights_are_copied_again() -> None:
    fused, routing, x = made()
    runs: Runs = [(0, 9, "a")]
    backward(fused, routing, x, runs)
    first = fused.layers[0].pairs["a"]
    for move in (
        lambda: first.up.mul_(2),
        lambda: first.down.copy_(torch.ones_like(first.down)),
        lambda: [setattr(layer.pairs["a"], "scale", 3.0) for layer in fused.layers],
        lambda: fused.layers[0].pairs.update(a=pair(OUTS[0], 3, torch.Generator().manual_seed(1), 3.0)),
    ):
        with torch.no_grad():
            move()
        for parameter in parameters(fused):
            parameter.grad = None
        by_x = backward(fused, routing, x, runs)
        assert_all_close([*gathered(fused), by_x], by_autograd(fused, x, runs))
