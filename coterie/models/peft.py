"""Adapters on disk, in the layout that the peft library reads and writes."""

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
from coterie.models.lora import Adapter, RoutedLinear

WEIGHTS = "adapter_model.safetensors"
# Settings of peft that leave an adapter plain LoRA. Any other one that is set, also one that peft has yet to
# invent, is refused.
READ = {"r", "lora_alpha", "use_rslora", "bias", "peft_type", "init_lora_weights"}
WHERE = {"target_modules", "exclude_modules", "layers_pattern", "fan_in_fan_out"}  # the tensors' names tell
IN_TRAINING = {"lora_dropout", "inference_mode", "eva_config", "loftq_config", "runtime_config", "ensure_weight_tying"}
ABOUT = {"task_type", "base_model_name_or_path", "revision", "auto_mapping", "peft_version"}
IDLE = {"megatron_core", "qalora_group_size"}  # set in every file, of use only with others that we refuse
PLAIN = READ | WHERE | IN_TRAINING | ABOUT | IDLE
# Other beginnings (PiSSA, OLoRA, CorDA, LoftQ) change the base's weights as well.
BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")


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
    """The last parts of the layers' names; whole names where such a part is a number, which PEFT would find in blocks
    of that number as well."""
    numbered = any(target.isdigit() for target in adapter.targets)
    return sorted(adapter.pairs) if numbered else list(adapter.targets)


def load_adapter(name: str, folder: Path, layers: Mapping[str, RoutedLinear]) -> Adapter:
    """An adapter saved by us or by peft, attached under `name`."""
    verify_saved_adapter(folder)
    config, tensors = _settings(folder), read_adapter_tensors(folder)
    rank, alpha = config["r"], config["lora_alpha"]
    tail = ".lora_A.weight"
    touched = [n.removeprefix("base_model.model.").removesuffix(tail) for n in tensors if n.endswith(tail)]
    missing = [n for n in touched if n not in layers]
    if missing:
        raise ValueError(f"{folder}: the adapter has a layer {missing[0]} that this model has not")
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    targets = sorted({n.rpartition(".")[2] for n in touched})
    adapter = Adapter(name, rank, alpha, targets, scale).attach({n: layers[n] for n in touched}, seed=0)
    load_tensors(adapter, tensors, folder)
    return adapter


def _settings(folder: Path) -> dict[str, Any]:
    """What an adapter's own config says, if it is one that loads here."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        raise ValueError(f"{folder}: no adapter_config.json; a PEFT adapter folder holds one beside {WEIGHTS}")
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise ModelError(f"{file}: not JSON: {error}") from error
    if odd := _odd(config):
        raise ValueError(f"{folder}: only plain LoRA adapters load here; this one sets {', '.join(odd)}")
    if lacking := [key for key in ("r", "lora_alpha") if key not in config]:
        raise ModelError(f"{file}: has no {' and no '.join(lacking)}")
    return dict(config)


def read_adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """An adapter's tensors by their names in the file."""
    if not (folder / WEIGHTS).is_file():
        old = "; adapter_model.bin is of an old peft, and a newer one saves it anew"
        raise ModelError(f"{folder}: no {WEIGHTS}{old if (folder / 'adapter_model.bin').is_file() else ''}")
    try:
        return load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise ModelError(f"{folder / WEIGHTS} is damaged: {error}") from error


def _odd(config: Mapping[str, Any]) -> list[str]:
    """The settings by which an adapter is more than plain LoRA."""
    odd = {key: value for key, value in config.items() if value and key not in PLAIN}
    expected = {"peft_type": ("LORA",), "bias": ("none", None), "init_lora_weights": BEGINNINGS}
    odd |= {key: config.get(key) for key, plain in expected.items() if config.get(key) not in plain}
    return [f"{key}: {value}" for key, value in odd.items()]


@torch.no_grad()
def load_tensors(adapter: Adapter, tensors: Mapping[str, torch.Tensor], source: Path) -> None:
    """Write saved tensors into the adapter's parameters, in place: engine and optimiser keep theirs."""
    own = adapter.parameters()
    if own.keys() != tensors.keys():
        raise ValueError(f"{source}: holds other layers than the adapter {adapter.name}")
    for name, parameter in own.items():
        if parameter.shape != tensors[name].shape:
            there, here = list(tensors[name].shape), list(parameter.shape)
            raise ModelError(f"{source}: {name} is {there} and not {here}: of another model, or of another rank")
    for name, parameter in own.items():
        parameter.copy_(tensors[name])
