"""LoRA by row: one forward in which every run of tokens has its own adapter, or none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Segment = tuple[int, int, str | None]  # from, to, adapter: these tokens of the stream run on it


@dataclass
class Pair:
    """An adapter's share in one linear layer: x ↦ x·downᵀ·upᵀ·scale."""

    down: nn.Parameter  # [rank, in]
    up: nn.Parameter  # [out, rank]
    scale: float


class Routing:
    """Which adapter the tokens of the running forward use; shared by all layers of a base."""

    def __init__(self) -> None:
        self.segments: Sequence[Segment] = ()
        self.masks: dict[tuple[tuple[str, int], ...], Tensor] = {}

    @contextmanager
    def on(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Also around `backward`: gradient checkpointing runs the layers again there."""
        before = self.segments, self.masks
        self.segments, self.masks = [s for s in segments if s[2] is not None], {}
        try:
            yield
        finally:
            self.segments, self.masks = before

    def mask(self, ranks: tuple[tuple[str, int], ...], like: Tensor) -> Tensor:
        """1 where a token runs on the adapter that a column belongs to: [T, Σ ranks]."""
        if ranks not in self.masks:
            mask, at = like.new_zeros(len(like), sum(rank for _, rank in ranks)), 0
            for name, rank in ranks:
                for start, end, adapter in self.segments:
                    if adapter == name:
                        mask[start:end, at : at + rank] = 1
                at += rank
            self.masks[ranks] = mask
        return self.masks[ranks]


THIN = 48  # rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, faster for a few rows on a CPU: there MKL takes half the time for the transposed product."""
    flat = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled() or x.device.type != "cpu" or not 1 < len(flat) <= THIN:
        return F.linear(x, weight, bias)
    y = torch.mm(weight, flat.t()).t().contiguous()
    return (y if bias is None else y.add_(bias)).view(*x.shape[:-1], -1)


class SideBySide:
    """Copies of a layer's adapters in one matrix; made again when any of them has changed."""

    def __init__(self) -> None:
        self.made_of: tuple[object, ...] = ()
        self.matrices: tuple[Tensor, Tensor] | None = None

    def __call__(self, pairs: dict[str, Pair]) -> tuple[Tensor, Tensor, tuple[tuple[str, int], ...]]:
        """down [Σ ranks, in], up [Σ ranks, out] with its scale, and whose columns these are."""
        made_of = tuple((name, id(p), p.down._version, p.up._version) for name, p in pairs.items())
        if self.matrices is None or made_of != self.made_of:
            down = torch.cat([p.down for p in pairs.values()])
            up = torch.cat([p.up.t() * p.scale for p in pairs.values()])
            self.made_of, self.matrices = made_of, (down, up)
        return *self.matrices, tuple((name, len(p.down)) for name, p in pairs.items())


class RoutedLinear(nn.Module):
    """A frozen or trained linear layer plus the adapters that its tokens ask for."""

    def __init__(self, linear: nn.Linear, routing: Routing) -> None:
        super().__init__()
        self.weight, self.bias, self.routing = linear.weight, linear.bias, routing
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.pairs: dict[str, Pair] = {}
        self.side_by_side = SideBySide()

    def forward(self, x: Tensor) -> Tensor:
        y = linear(x, self.weight, self.bias)
        if not self.routing.segments:
            return y
        flat, out = x.reshape(-1, self.in_features), y.reshape(-1, self.out_features)
        if len(self.routing.segments) > 1 and len(flat) <= THIN and not torch.is_grad_enabled():
            self._add_all(flat, out)
        else:
            out = self._add_each(flat, out)
        return out.view(y.shape)

    def _add_all(self, flat: Tensor, out: Tensor) -> None:
        """Few tokens, several adapters: every token through all of them at once, and the others' part put out."""
        used = {s[2]: self.pairs[s[2]] for s in self.routing.segments if s[2] in self.pairs}
        if used:
            down, up, ranks = self.side_by_side(used)
            out.addmm_(linear(flat, down).mul_(self.routing.mask(ranks, flat)), up)

    def _add_each(self, flat: Tensor, out: Tensor) -> Tensor:
        """Each adapter on its own run of tokens."""
        parts, at = [], 0
        for start, end, adapter in self.routing.segments:
            pair = self.pairs.get(adapter) if adapter is not None else None
            if pair is None:  # this adapter does not touch this layer
                continue
            low = F.linear(flat[start:end], pair.down)
            if torch.is_grad_enabled():
                parts += [out[at:start], torch.addmm(out[start:end], low, pair.up.t(), alpha=pair.scale)]
                at = end
            else:
                out[start:end].addmm_(low, pair.up.t(), alpha=pair.scale)
        return torch.cat([p for p in (*parts, out[at:]) if len(p)]) if parts else out


def route(model: nn.Module, routing: Routing) -> dict[str, RoutedLinear]:
    """Put a RoutedLinear in the place of every linear layer inside the model's blocks; by full name."""
    routed = {}
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, module in list(model.named_modules()):
        # Exactly Linear: a router that inherits from it computes something else.
        if type(module) is nn.Linear and module is not head:
            parent, _, leaf = name.rpartition(".")
            routed[name] = RoutedLinear(module, routing)
            setattr(model.get_submodule(parent), leaf, routed[name])
    return routed


class Adapter:
    """One LoRA over the layers that `targets` names: a set of pairs, trained together."""

    def __init__(self, name: str, rank: int, alpha: float, targets: Sequence[str], scale: float | None = None) -> None:
        self.name, self.rank, self.alpha, self.targets = name, rank, alpha, tuple(targets)
        self.scale = alpha / rank if scale is None else scale
        self.pairs: dict[str, Pair] = {}

    def attach(self, layers: dict[str, RoutedLinear], seed: int) -> Adapter:
        """Start as no change: random `down`, zero `up`."""
        leaves = sorted({name.rpartition(".")[2] for name in layers})
        unknown = [target for target in self.targets if target not in leaves]
        if unknown:
            raise ValueError(
                f"lora.targets: no layer is called {', '.join(unknown)}; this model has {', '.join(leaves)}"
            )
        draw = torch.Generator().manual_seed(seed)
        for name, layer in layers.items():
            if name.rpartition(".")[2] not in self.targets:
                continue
            bound = 1 / math.sqrt(layer.in_features)
            down = torch.empty(self.rank, layer.in_features).uniform_(-bound, bound, generator=draw)
            up = torch.zeros(layer.out_features, self.rank)
            device = layer.weight.device
            pair = Pair(nn.Parameter(down.to(device)), nn.Parameter(up.to(device)), self.scale)
            self.pairs[name] = layer.pairs[self.name] = pair
        return self

    def parameters(self) -> dict[str, nn.Parameter]:
        """By the name PEFT gives them in its files."""
        named = {}
        for layer, pair in self.pairs.items():
            named[f"base_model.model.{layer}.lora_A.weight"] = pair.down
            named[f"base_model.model.{layer}.lora_B.weight"] = pair.up
        return named
