"""Which layers of a model an adapter goes on, of the rank that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from torch import nn

from coterie.models.lora import RoutedLinear

ALL = "all-linear"
USUAL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Wanted = Sequence[str] | Literal["all-linear"] | None  # None: the usual ones; all linear layers of a model without them


class Targets(NamedTuple):
    """The last parts of layers' names, as PEFT has them."""

    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # linear layers that are smaller than the rank


def targets_for(model: nn.Module, layers: Mapping[str, RoutedLinear], wanted: Wanted, rank: int) -> Targets:
    """The layers that `wanted` means in this model; a ValueError names the key that does not fit it.

    null         llama, qwen3   →  the usual seven
                 gpt2, phi3     →  as all-linear
    all-linear                  →  every linear layer that is as large as the rank, but not the output head
    [q_proj]                    →  itself, if it is there and as large as the rank
    """
    sizes = smallest_sides(layers)
    if not sizes:
        raise ValueError("lora: this model has no linear layer for an adapter; lora: null trains all of it")
    usual = wanted is None and all(name in sizes for name in USUAL)
    named = USUAL if usual else wanted
    if named is None or isinstance(named, str):
        return _all_linear(sizes, rank)
    if unknown := [name for name in named if name not in sizes]:
        raise ValueError(
            f"lora.targets: no layer is called {', '.join(unknown)}; this model has {', '.join(sorted(sizes))}"
            f"{_fused(model, unknown)}"
        )
    smallest = min(named, key=lambda name: sizes[name])
    if sizes[smallest] < rank:
        side = f"{sizes[smallest]}, the smaller side of {smallest}"
        raise ValueError(f"lora.rank: {rank} is above {side}; lower it, or leave {smallest} out")
    return Targets(tuple(named))


def smallest_sides(layers: Mapping[str, RoutedLinear]) -> dict[str, int]:
    """By the last part of its name, the smaller of a layer's sides, in the order of the model."""
    sizes: dict[str, int] = {}
    for name, layer in layers.items():
        leaf, side = name.rpartition(".")[2], min(layer.in_features, layer.out_features)
        sizes[leaf] = min(side, sizes.get(leaf, side))
    return sizes


def _all_linear(sizes: Mapping[str, int], rank: int) -> Targets:
    fitting = tuple(name for name, side in sizes.items() if side >= rank)
    if not fitting:
        most = max(sizes.values())
        raise ValueError(f"lora.rank: {rank} is above {most}, the smaller side of this model's largest layer")
    return Targets(fitting, tuple(name for name in sizes if name not in fitting))


def _fused(model: nn.Module, unknown: Sequence[str]) -> str:
    """Experts of a mixture are one tensor for all of them, not layers, and have no place for an adapter."""
    fused = {name.rpartition(".")[2] for name, tensor in model.named_parameters() if tensor.dim() == 3}
    if not fused & {*unknown, "gate_up_proj"}:
        return ""
    return "; its experts are one tensor for all of them, which carries no adapter: lora: null trains them"
