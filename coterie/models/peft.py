"""Adapters on disk, in the format of the PEFT library."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coterie.errors import ModelError
from coterie.files import verify_saved_adapter
from coterie.models.lora import Adapter, LoraLinear

WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
# PEFT settings that leave an adapter plain LoRA. A value for any other setting is refused, also for future ones.
READ = {"r", "lora_alpha", "use_rslora", "bias", "peft_type", "init_lora_weights"}
WHERE = {"target_modules", "exclude_modules", "layers_pattern", "fan_in_fan_out"}  # the tensor names have the layers
IN_TRAINING = {"lora_dropout", "inference_mode", "eva_config", "loftq_config", "runtime_config", "ensure_weight_tying"}
ABOUT = {"task_type", "base_model_name_or_path", "revision", "auto_mapping", "peft_version"}
UNUSED = {"megatron_core", "qalora_group_size"}  # in every file, without effect unless a refused setting is on
PLAIN_LORA = READ | WHERE | IN_TRAINING | ABOUT | UNUSED
# Other initializations (PiSSA, OLoRA, CorDA, LoftQ) also change the base weights.
INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal")


def save_adapter(adapter: Adapter, folder: Path, model: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]
        target_modules=_target_modules(adapter),
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=model,
        inference_mode=True,
        fan_in_fan_out=adapter.transposed,
        use_rslora=not math.isclose(adapter.scale, adapter.alpha / adapter.rank),
    )
    config.save_pretrained(str(folder))
    tensors = {name: p.detach().float().cpu().contiguous() for name, p in adapter.parameters().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _target_modules(adapter: Adapter) -> list[str]:
    """The last parts of the layer names; full names if such a part is a number, which PEFT would also match as a block
    number."""
    numbered = any(target.isdigit() for target in adapter.targets)
    return sorted(adapter.pairs) if numbered else list(adapter.targets)


def load_adapter(name: str, folder: Path, layers: Mapping[str, LoraLinear]) -> Adapter:
    """Load an adapter saved by us or by PEFT, and attach it as `name`."""
    verify_saved_adapter(folder)
    config, tensors = _settings(folder), read_adapter_tensors(folder)
    rank, alpha = config["r"], config["lora_alpha"]
    tail = ".lora_A.weight"
    touched = [n.removeprefix("base_model.model.").removesuffix(tail) for n in tensors if n.endswith(tail)]
    missing = [n for n in touched if n not in layers]
    if missing:
        raise ValueError(f"{folder}: the adapter has a layer {missing[0]} that this model does not have")
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    targets = sorted({n.rpartition(".")[2] for n in touched})
    adapter = Adapter(name, rank, alpha, targets, scale).attach({n: layers[n] for n in touched}, seed=0)
    load_tensors(adapter, tensors, folder)
    return adapter


def base_model(folder: Path) -> str:
    """The model that a saved adapter was trained on, as it says: a folder or a hub name."""
    name = _settings(folder).get("base_model_name_or_path")
    if not name:
        raise ModelError(f"{folder / ADAPTER_CONFIG}: does not say which model it was trained on")
    return str(name)


def _settings(folder: Path) -> dict[str, Any]:
    """The adapter's config, checked to be plain LoRA."""
    file = folder / ADAPTER_CONFIG
    if not file.is_file():
        raise ValueError(f"{folder}: no {ADAPTER_CONFIG}; a PEFT adapter folder holds one beside {WEIGHTS}")
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise ModelError(f"{file}: not JSON: {error}") from error
    if unsupported := _unsupported(config):
        raise ValueError(f"{folder}: only plain LoRA adapters load here; this one sets {', '.join(unsupported)}")
    if missing_keys := [key for key in ("r", "lora_alpha") if key not in config]:
        raise ModelError(f"{file}: has no {' and no '.join(missing_keys)}")
    return dict(config)


def read_adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a saved adapter by name."""
    if not (folder / WEIGHTS).is_file():
        old = "; adapter_model.bin is the format of old PEFT versions: load and save it with a newer one"
        raise ModelError(f"{folder}: no {WEIGHTS}{old if (folder / 'adapter_model.bin').is_file() else ''}")
    try:
        return load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise ModelError(f"{folder / WEIGHTS} is damaged: {error}") from error


def _unsupported(config: Mapping[str, Any]) -> list[str]:
    """The settings that make an adapter more than plain LoRA."""
    unsupported = {key: value for key, value in config.items() if value and key not in PLAIN_LORA}
    expected = {"peft_type": ("LORA",), "bias": ("none", None), "init_lora_weights": INITIALIZATIONS}
    unsupported |= {key: config.get(key) for key, plain in expected.items() if config.get(key) not in plain}
    return [f"{key}: {value}" for key, value in unsupported.items()]


@torch.no_grad()
def load_tensors(adapter: Adapter, tensors: Mapping[str, torch.Tensor], source: Path) -> None:
    """Copy saved tensors into the adapter's parameters in place: the engine and the optimizer refer to these."""
    parameters = adapter.parameters()
    if parameters.keys() != tensors.keys():
        raise ValueError(f"{source}: its layers are not those of the adapter {adapter.name}")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            found, expected = list(tensors[name].shape), list(parameter.shape)
            raise ModelError(f"{source}: {name} has shape {found}, not {expected}: another model or another rank")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
