"""LoRA target modules: which layers of a model get an adapter, for `lora.targets` and the requested rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from peft import LoraConfig
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from transformers import PreTrainedModel

from coterie.models.lora import LoraLinear

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
EXPERTS = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")  # PEFT's names of expert layers, fused by now
MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")  # PEFT refuses their out_proj
Requested = Sequence[str] | Literal["all-linear"] | None  # None: the default targets, or all-linear without them


class Targets(NamedTuple):
    """Target modules as in PEFT: the last parts of layer names."""

    names: tuple[str, ...]
    left_out: dict[str, str]  # linear layers without an adapter, and why


def targets_for(model: PreTrainedModel, layers: Mapping[str, LoraLinear], requested: Requested, rank: int) -> Targets:
    """The layers that `requested` selects in this model; a ValueError names the config key that does not fit.

    null         llama, qwen3   →  the default seven
                 gpt2, phi3     →  as all-linear
    all-linear                  →  every linear layer but the LM head, layers smaller than the rank, and layers whose
                                   adapter PEFT could not load
    [q_proj]                    →  itself, if it exists, is as large as the rank, and PEFT could load it
    """
    sizes = smallest_dimensions(layers)
    if not sizes:
        raise ValueError("lora: this model has no linear layer for an adapter; lora: null trains all of it")
    refused = {name: why for name in sizes if (why := _refused(model, name, sizes[name], rank))}
    if requested is None and all(name in sizes and not _is_experts(model, name) for name in DEFAULT_TARGETS):
        requested = DEFAULT_TARGETS
    if requested is None or isinstance(requested, str):
        return _all_linear(sizes, refused, rank)
    if unknown := [name for name in requested if name not in sizes]:
        raise ValueError(
            f"lora.targets: no layer is called {', '.join(unknown)}; this model has {', '.join(sorted(sizes))}"
            f"{_fused(model)}"
        )
    for name in sorted(requested, key=lambda name: sizes[name]):
        if sizes[name] < rank:
            raise ValueError(f"lora.rank: {rank} is above {sizes[name]}, the smaller side of {name}; lower it")
        if name in refused:
            raise ValueError(f"lora.targets: {name} {refused[name]}; all-linear takes the others")
    return Targets(tuple(requested), {})


def smallest_dimensions(layers: Mapping[str, LoraLinear]) -> dict[str, int]:
    """The smaller dimension of the layers, by the last part of their names, in model order."""
    sizes: dict[str, int] = {}
    for name, layer in layers.items():
        leaf, side = name.rpartition(".")[2], min(layer.in_features, layer.out_features)
        sizes[leaf] = min(side, sizes.get(leaf, side))
    return sizes


def _all_linear(sizes: Mapping[str, int], refused: dict[str, str], rank: int) -> Targets:
    if len(refused) == len(sizes):
        most = max(sizes.values())
        raise ValueError(f"lora.rank: {rank} is above {most}, the smaller side of this model's largest layer; lower it")
    return Targets(tuple(name for name in sizes if name not in refused), refused)


def _refused(model: PreTrainedModel, name: str, side: int, rank: int) -> str | None:
    """The reason why a layer gets no adapter, or None."""
    kind = model.config.model_type
    if side < rank:
        return f"is smaller than the rank of {rank}"
    if kind in MAMBA and name == "out_proj":
        return f"of a {kind} is refused by peft"
    return f"of a {kind} is what peft calls its experts" if _is_experts(model, name) else None


def _is_experts(model: PreTrainedModel, name: str) -> bool:
    """True if PEFT would take a layer's adapter for one of the experts', which are one fused tensor."""
    config = LoraConfig(target_modules=[name, *EXPERTS])
    convert_peft_config_for_transformers(config, model, None)
    return name not in (config.target_modules or ())


def _fused(model: PreTrainedModel) -> str:
    """An explanation for MoE models: their experts are one fused tensor, not layers, and cannot have an adapter."""
    if not any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters()):
        return ""
    return "; its experts are one tensor for all of them, which carries no adapter: lora: null trains them"
