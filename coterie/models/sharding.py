"""Sharded models with FSDP2: every process holds a part of each layer's weights, and gathers a layer when it runs.

Embedding and LM head are replicated: log-probs are computed from the LM head's weight directly, without calling the
module, whose hooks would gather a sharded weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from coterie.errors import ModelError
from coterie.models.store import GENERATION, read_config, without_dropout


def empty_model(folder: Path, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """The model of a folder with its buffers, such as RoPE's, but with parameters on the meta device."""
    config = without_dropout(read_config(folder))
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()  # init_empty_weights has replaced each parameter, tied ones too
    if (folder / GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)  # it is saved with the model
    return model.eval()


def shard_model(model: PreTrainedModel, device: torch.device, gather_bf16: bool) -> None:
    """Shard an empty model over all processes, layer by layer, and allocate this process's part; its values are
    undefined until `load_shards`. Gradients are summed over the processes, not averaged.

    `gather_bf16`: gather fp32 layers in bfloat16. Otherwise autocast would cast each gathered weight, and keep the
    copies of all layers until the backward pass.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    whole = {*embedding.parameters(), *head.parameters()}
    tied = head.weight is embedding.weight
    layers = [module for module in model.modules() if type(module).__name__ in (model._no_split_modules or ())]
    if not layers:
        kind = model.config.model_type
        raise ModelError(f"a {kind} cannot be sharded: transformers does not say which modules are its layers")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    half = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = half if gather_bf16 else MixedPrecisionPolicy()
    for module in (*layers, model.base_model):
        # The trunk too is resharded after its forward; otherwise its own parameters would stay gathered.
        options = {"reshard_after_forward": True, "ignored_params": whole, "mp_policy": policy}
        sharded = fully_shard(module, mesh=mesh, **options)  # type: ignore[call-overload]
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no averaging or scaled reduction
    buffers = {name: buffer.to(device) for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    if tied:
        head.weight = embedding.weight


@torch.no_grad()
def load_shards(model: PreTrainedModel, folder: Path) -> None:
    """Read this process's part of every weight; one tensor at a time is in memory beside the model."""
    missing: dict[str, Tensor] = dict(model.named_parameters())
    optional: dict[str, Tensor] = dict(model.named_buffers())
    prefix = f"{model.base_model_prefix}."  # absent in files of a model without its head
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as stored:
                for name in stored.keys():  # noqa: SIM118 - safe_open is not iterable
                    for key in (name, prefix + name):
                        if (tensor := missing.pop(key, optional.get(key))) is not None:
                            _copy_part(tensor, stored.get_slice(name), f"{file}: {name}")
        except SafetensorError as error:
            raise ModelError(f"{file}: its weights are damaged or incomplete ({error})") from error
    if missing:
        names = f"{len(missing)} of the model's weights by their names: {next(iter(missing))} …"
        raise ModelError(f"{folder} lacks {names}; a sharded model is read without transformers' conversions")


def _copy_part(tensor: Tensor, stored: Any, what: str) -> None:
    if list(tensor.shape) != stored.get_shape():
        raise ModelError(f"{what} has shape {stored.get_shape()}, not {list(tensor.shape)}")
    local_shard(tensor).copy_(stored[own_slice(tensor)] if tensor.ndim else stored[...])


def own_slice(tensor: Tensor) -> slice:
    """The rows of a sharded tensor that this process holds; all rows of any other."""
    if not isinstance(tensor, DTensor):
        return slice(None)
    rows, size = len(tensor), tensor.device_mesh.size()
    start = min(tensor.device_mesh.get_local_rank() * -(-rows // size), rows)
    return slice(start, start + len(tensor.to_local()))


def local_shard(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor, sharing its memory; any other tensor is itself."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def gather(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Gather full tensors to the CPU, one at a time; all processes take part. `keep` False: return none of them."""
    whole = ((name, t.full_tensor() if isinstance(t, DTensor) else t) for name, t in tensors.items())
    return {name: tensor.detach().cpu() for name, tensor in whole if keep}


def gather_like(part: Tensor, parameter: nn.Parameter, keep: bool = True) -> Tensor:
    """Gather the full tensor of one that is sharded like a parameter, such as an optimizer's moment; all processes take
    part. `keep` False: return the local part."""
    if not isinstance(parameter, DTensor) or part.shape != parameter.to_local().shape:
        return part
    mesh, shape, stride = parameter.device_mesh, parameter.shape, parameter.stride()
    whole = DTensor.from_local(part, mesh, parameter.placements, shape=shape, stride=stride).full_tensor()
    return whole.cpu() if keep else part
