"""Which layers of a model an adapter goes on, of the rank that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from peft import LoraConfig
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from transformers import PreTrainedModel

from coterie.models.lora import RoutedLinear

ALL = "all-linear"
DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
EXPERTS = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")  # as peft calls what is fused now
MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")  # whose out_proj peft refuses
Wanted = Sequence[str] | Literal["all-linear"] | None  # None: the usual ones; all linear layers of a model without them


class Targets(NamedTuple):
    """The last parts of layers' names, as PEFT has them."""

    names: tuple[str, ...]
    left_out: dict[str, str]  # linear layers without an adapter, and why


def targets_for(model: PreTrainedModel, layers: Mapping[str, RoutedLinear], wanted: Wanted, rank: int) -> Targets:
    """The layers that `wanted` means in this model; a ValueError names the key that does not fit it.

    null         llama, qwen3   →  the usual seven
                 gpt2, phi3     →  as all-linear
    all-linear                  →  every linear layer but the output head, those that are smaller than the rank, and
                                   those that peft would not read
    [q_proj]                    →  itself, if it is there, as large as the rank, and can be saved for peft
    """
    sizes = smallest_sides(layers)
    if not sizes:
        raise ValueError("lora: this model has no linear layer for an adapter; lora: null trains all of it")
    refused = {name: why for name in sizes if (why := _refused(model, name, sizes[name], rank))}
    if wanted is None and all(name in sizes and not _is_experts(model, name) for name in DEFAULT_TARGETS):
        wanted = DEFAULT_TARGETS
    if wanted is None or isinstance(wanted, str):
        return _all_but(sizes, refused, rank)
    if unknown := [name for name in wanted if name not in sizes]:
        raise ValueError(
            f"lora.targets: no layer is called {', '.join(unknown)}; this model has {', '.join(sorted(sizes))}"
            f"{_fused(model)}"
        )
    for name in sorted(wanted, key=lambda name: sizes[name]):
        if sizes[name] < rank:
            raise ValueError(f"lora.rank: {rank} is above {sizes[name]}, the smaller side of {name}; lower it")
        if name in refused:
            raise ValueError(f"lora.targets: {name} {refused[name]}; all-linear takes the others")
    return Targets(tuple(wanted), {})


def smallest_sides(layers: Mapping[str, RoutedLinear]) -> dict[str, int]:
    """By the last part of its name, the smaller of a layer's sides, in the order of the model."""
    sizes: dict[str, int] = {}
    for name, layer in layers.items():
        leaf, side = name.rpartition(".")[2], min(layer.in_features, layer.out_features)
        sizes[leaf] = min(side, sizes.get(leaf, side))
    return sizes


def _all_but(sizes: Mapping[str, int], refused: dict[str, str], rank: int) -> Targets:
    if len(refused) == len(sizes):
        most = max(sizes.values())
        raise ValueError(f"lora.rank: {rank} is above {most}, the smaller side of this model's largest layer; lower it")
    return Targets(tuple(name for name in sizes if name not in refused), refused)


def _refused(model: PreTrainedModel, name: str, side: int, rank: int) -> str | None:
    """Why a layer gets no adapter."""
    kind = model.config.model_type
    if side < rank:
        return f"is smaller than the rank of {rank}"
    if kind in MAMBA and name == "out_proj":
        return f"of a {kind} is refused by peft"
    return f"of a {kind} is what peft calls its experts" if _is_experts(model, name) else None


def _is_experts(model: PreTrainedModel, name: str) -> bool:
    """Whether peft would read a layer's adapter as one of the experts', which are one tensor for all of them."""
    config = LoraConfig(target_modules=[name, *EXPERTS])
    convert_peft_config_for_transformers(config, model, None)
    return name not in (config.target_modules or ())


def _fused(model: PreTrainedModel) -> str:
    """Experts of a mixture are one tensor for all of them, not layers, and have no place for an adapter."""
    if not any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters()):
        return ""
    return "; its experts are one tensor for all of them, which carries no adapter: lora: null trains them"
