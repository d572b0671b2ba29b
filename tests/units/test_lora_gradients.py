"""Adapters gather their gradients themselves: what autograd would have given each of their parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.models.autograd_ops import linear
from coterie.models.lora import Joined, RoutedLinear
from coterie.models.lora_routing import Pair, Routing, Segment

IN, OUTS, TOKENS = 6, (5, 3), 9
Runs = list[Segment]


def pair(out: int, rank: int, draw: torch.Generator, scale: float) -> Pair:
    down, up = (torch.randn(*shape, generator=draw) for shape in ((rank, IN), (out, rank)))
    return Pair(nn.Parameter(down), nn.Parameter(up), scale)


def made() -> tuple[Joined, Routing, Tensor]:
    """Two layers that read the same; adapter a has a part in both, b in the second alone."""
    draw, routing = torch.Generator().manual_seed(0), Routing()
    layers = [RoutedLinear(nn.Linear(IN, out).requires_grad_(False), routing) for out in OUTS]
    for layer, out in zip(layers, OUTS, strict=True):
        layer.pairs["a"] = pair(out, 2, draw, 1.5)
    layers[1].pairs["b"] = pair(OUTS[1], 4, draw, 0.25)
    return Joined(layers), routing, torch.randn(TOKENS, IN, generator=draw)


def parameters(joined: Joined) -> list[nn.Parameter]:
    return [p for layer in joined.layers for pair in layer.pairs.values() for p in (pair.down, pair.up)]


def backward(joined: Joined, routing: Routing, x: Tensor, runs: Runs) -> Tensor:
    """The gradient by x of Σ out², whose slope differs from token to token."""
    leaf = x.clone().requires_grad_()
    with routing.on(runs):
        linear(leaf, joined).square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def by_autograd(joined: Joined, x: Tensor, runs: Runs) -> list[Tensor]:
    """Of every parameter and of x, from the definition."""
    wanted, leaf = parameters(joined), x.clone().requires_grad_()
    total = torch.zeros(())
    for layer in joined.layers:
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


def gathered(joined: Joined) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters(joined)]


def assert_all_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-5)


def test_gradients_are_those_of_autograd_for_any_runs() -> None:
    every: list[Runs] = [
        [(0, 9, "a")],
        [(0, 4, "a"), (4, 9, "b")],
        [(0, 3, "b"), (3, 5, None), (5, 7, "a"), (7, 9, "b")],
    ]
    for runs in every:
        joined, routing, x = made()
        by_x = backward(joined, routing, x, runs)
        assert_all_close([*gathered(joined), by_x], by_autograd(joined, x, runs))


def test_gradients_add_up_until_they_are_put_to_zero_in_either_way() -> None:
    joined, routing, x = made()
    runs: Runs = [(0, 4, "a"), (4, 9, "b")]
    once = by_autograd(joined, x, runs)[:-1]
    for to_none in (True, False, True):
        nn.utils.clip_grad_norm_(parameters(joined), 0.1)  # whatever is done to them in between
        torch.optim.SGD(parameters(joined)).zero_grad(set_to_none=to_none)
        backward(joined, routing, x, runs)
        backward(joined, routing, x, runs)
        assert_all_close(gathered(joined), [2 * gradient for gradient in once])


def test_a_gradient_that_somebody_else_put_there_stays_in_the_sum() -> None:
    joined, routing, x = made()
    first = joined.layers[0].pairs["a"]
    first.down.grad = torch.ones_like(first.down)
    backward(joined, routing, x, [(0, 9, "a")])
    once = by_autograd(joined, x, [(0, 9, "a")])[:-1]
    assert_all_close(gathered(joined), [once[0] + 1, *once[1:]])


def test_what_has_moved_is_copied_again() -> None:
    joined, routing, x = made()
    runs: Runs = [(0, 9, "a")]
    backward(joined, routing, x, runs)
    first = joined.layers[0].pairs["a"]
    for move in (
        lambda: first.up.mul_(2),
        lambda: first.down.copy_(torch.ones_like(first.down)),
        lambda: [setattr(layer.pairs["a"], "scale", 3.0) for layer in joined.layers],
        lambda: joined.layers[0].pairs.update(a=pair(OUTS[0], 3, torch.Generator().manual_seed(1), 3.0)),
    ):
        with torch.no_grad():
            move()
        for parameter in parameters(joined):
            parameter.grad = None
        by_x = backward(joined, routing, x, runs)
        assert_all_close([*gathered(joined), by_x], by_autograd(joined, x, runs))
