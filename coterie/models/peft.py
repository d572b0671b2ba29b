"""Adapters on disk, in the layout that the peft library reads and writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig, TaskType
from safetensors.torch import load_file, save_file

from coterie.models.lora import Adapter, RoutedLinear

WEIGHTS = "adapter_model.safetensors"
# Ways of peft that change what an adapter computes and that we do not have.
UNKNOWN = (
    "use_dora",
    "modules_to_save",
    "alora_invocation_tokens",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
)


def save_adapter(adapter: Adapter, folder: Path, model: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]
        target_modules=list(adapter.targets),
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=model,
        inference_mode=True,
        use_rslora=not math.isclose(adapter.scale, adapter.alpha / adapter.rank),
    )
    config.save_pretrained(str(folder))
    tensors = {name: p.detach().float().cpu().contiguous() for name, p in adapter.parameters().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_adapter(name: str, folder: Path, layers: Mapping[str, RoutedLinear]) -> Adapter:
    """An adapter saved by us or by peft, attached under `name`."""
    if not (folder / "adapter_config.json").is_file():
        raise ValueError(f"{folder}: no adapter_config.json; a PEFT adapter folder holds one beside {WEIGHTS}")
    config = json.loads((folder / "adapter_config.json").read_text())
    odd = [key for key in UNKNOWN if config.get(key)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or odd:
        raise ValueError(
            f"{folder}: only plain LoRA adapters load here; this one sets {', '.join(odd) or 'another type or biases'}"
        )
    rank, alpha = config["r"], config["lora_alpha"]
    tensors = load_file(folder / WEIGHTS)
    tail = ".lora_A.weight"
    touched = [n.removeprefix("base_model.model.").removesuffix(tail) for n in tensors if n.endswith(tail)]
    missing = [n for n in touched if n not in layers]
    if missing:
        raise ValueError(f"{folder}: the adapter has a layer {missing[0]} that this model has not")
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    targets = sorted({n.rpartition(".")[2] for n in touched})
    adapter = Adapter(name, rank, alpha, targets, scale).attach({n: layers[n] for n in touched}, seed=0)
    fill(adapter, tensors, folder)
    return adapter


@torch.no_grad()
def fill(adapter: Adapter, tensors: Mapping[str, torch.Tensor], source: Path) -> None:
    """Write saved tensors into the adapter's parameters, in place: engine and optimiser keep theirs."""
    own = adapter.parameters()
    if own.keys() != tensors.keys():
        raise ValueError(f"{source}: holds other layers than the adapter {adapter.name}")
    for name, parameter in own.items():
        parameter.copy_(tensors[name])
