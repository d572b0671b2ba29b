"""LoRA layers: one forward in which every run of tokens uses its own adapter, or none.

`LoraLinear` replaces every linear layer of a model, `FusedLinear` joins those with the same input (QKV, gate and up),
and `LoraShard` holds one adapter's training copies and gradients on a fused layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from coterie.kernels.matmul import add_matmul_, linear, linear_inference
from coterie.models.lora_routing import LoraMixer, LoraPair, Routing, slices


class LoraLinear(nn.Module):
    """A linear layer, frozen or trained, with adapters: each token goes through the one that it is routed to."""

    transposed = False  # True if the weight is [in, out]

    def __init__(self, layer: nn.Module, routing: Routing) -> None:
        super().__init__()
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.routing = routing
        self.out_features, self.in_features = self.weight.shape[:: -1 if self.transposed else 1]
        self.pairs: dict[str, LoraPair] = {}
        self.mixer = LoraMixer([self], routing)

    def base_forward(self, x: Tensor) -> Tensor:
        """Without adapters."""
        return linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base_forward(x)
        if not self.routing.segments:
            return y
        flat, out = x.reshape(-1, self.in_features), y.reshape(-1, self.out_features)
        if torch.is_grad_enabled():
            return self._with_gradient(flat, out).view(y.shape)
        self.mixer.add(flat.to(out.dtype), out)  # under autocast the output may be half precision
        return out.view(y.shape)

    def _with_gradient(self, flat: Tensor, out: Tensor) -> Tensor:
        """Each adapter on its own run of tokens."""
        parts: list[Tensor] = []
        at = 0
        for start, end, adapter in self.routing.segments:
            if adapter is None or adapter not in self.pairs:  # the adapter has no weights on this layer
                continue
            pair = self.pairs[adapter]
            low = F.linear(flat[start:end], pair.down)
            parts += [out[at:start], torch.addmm(out[start:end], low, pair.up.t(), alpha=pair.scale)]
            at = end
        parts = [part for part in (*parts, out[at:]) if len(part)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class LoraConv1D(LoraLinear):
    """GPT-2's linear layers, whose weights are [in, out]."""

    transposed = True

    def base_forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


class FusedLinear:
    """Linear layers that read the same tokens as one matmul. Their weights become views of one tensor, not copies."""

    def __init__(self, layers: Sequence[LoraLinear]) -> None:
        self.layers, self.sizes = layers, [layer.out_features for layer in layers]
        self.weight = self.wide = _fuse(layers, "weight")
        self.bias = _fuse(layers, "bias") if layers[0].bias is not None else None
        self.mixer = LoraMixer(layers, layers[0].routing)
        self.shards: dict[tuple[str, torch.dtype], LoraShard] = {}

    def shard(self, adapter: str | None, dtype: torch.dtype) -> LoraShard | None:
        """The adapter's current weights on these layers, for training; None if it has none here."""
        if adapter is None:
            return None
        outs = zip(slices(self.sizes), self.layers, strict=True)
        found = [(here, layer.pairs[adapter]) for here, layer in outs if adapter in layer.pairs]
        pairs = [pair for _, pair in found]
        key = adapter, dtype
        if pairs and (key not in self.shards or not self.shards[key].is_current(pairs)):
            self.shards[key] = LoraShard(pairs, [here for here, _ in found], dtype)
        return self.shards[key] if pairs else None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] → [T, Σ out], without gradient."""
        out = linear_inference(x, self.weight, self.bias)
        if self.mixer.routing.segments:
            self.mixer.add(x, out)
        return out

    @torch.inference_mode(False)  # tensors made in inference mode could not be trained through
    @torch.no_grad()
    def reserve_rows(self, rows: int) -> None:
        """Move the weights into a tensor with `rows` free rows below them, `wide`; the parameters stay the same."""
        self.wide = self.weight.new_zeros(len(self.weight) + rows, self.weight.shape[1])
        self.wide[: len(self.weight)] = self.weight
        self.weight = self.wide[: len(self.weight)]
        for layer, part in zip(self.layers, self.weight.split(self.sizes), strict=True):
            layer.weight.data = part


@torch.no_grad()
def _fuse(layers: Sequence[LoraLinear], name: str) -> Tensor:
    parameters: list[Tensor] = [layer.get_parameter(name) for layer in layers]
    if len(parameters) == 1:
        return parameters[0]
    whole = torch.cat(parameters)
    parts = whole.split([len(parameter) for parameter in parameters])
    for layer, old, part in zip(layers, parameters, parts, strict=True):
        setattr(layer, name, nn.Parameter(part, requires_grad=old.requires_grad))
    return whole


class LoraShard:
    """One adapter on the layers of a `FusedLinear`: copies in the compute dtype, and its gradient accumulators."""

    def __init__(self, pairs: Sequence[LoraPair], outs: Sequence[slice], dtype: torch.dtype) -> None:
        """`outs`: the outputs of each pair's layer."""
        self.pairs, self.versions = pairs, _versions(pairs)
        self.scale = pairs[0].scale  # that of the adapter
        self.columns = slices([len(pair.down) for pair in pairs])
        self.down = (torch.cat([pair.down.detach() for pair in pairs]) * self.scale).to(dtype)  # [Σ ranks, in]
        copies = [pair.up.detach().to(dtype) for pair in pairs]
        self.ups = list(zip(outs, self.columns, copies, strict=True))  # outputs, columns, [out, rank]
        self.down_grads: list[Tensor] = []  # views of one tensor
        self.down_grad = torch.empty(0)

    def is_current(self, pairs: Sequence[LoraPair]) -> bool:
        """True if the copies still equal these weights."""
        return self.pairs == pairs and self.versions == _versions(pairs)

    def accumulate_grad(self, x: Tensor, low: Tensor, low_grad: Tensor, out_grad: Tensor) -> None:
        """Add a run's gradients to the parameters'; x [T, in], low and low_grad [T, Σ ranks], out_grad [T, Σ out]."""
        add_matmul_(self._down_grad(), low_grad.t(), x.t(), self.scale)
        for pair, (outs, columns, _) in zip(self.pairs, self.ups, strict=True):
            pair.up.grad = _grad(pair.up)
            add_matmul_(pair.up.grad, out_grad[:, outs].t(), low[:, columns].t())

    def _down_grad(self) -> Tensor:
        """Gradients of all `down` matrices as views of one tensor, so that one matmul serves all: [Σ ranks, in]."""
        if [id(pair.down.grad) for pair in self.pairs] != [id(grad) for grad in self.down_grads]:
            self.down_grad = torch.cat([_grad(pair.down) for pair in self.pairs])
            self.down_grads = [self.down_grad[columns] for columns in self.columns]
            for pair, grad in zip(self.pairs, self.down_grads, strict=True):
                pair.down.grad = grad
        return self.down_grad


def _grad(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _versions(pairs: Sequence[LoraPair]) -> list[tuple[int, int, float]]:
    return [(pair.down._version, pair.up._version, pair.scale) for pair in pairs]


def replace_linear_layers(model: nn.Module, routing: Routing) -> dict[str, LoraLinear]:
    """Replace every linear layer but the LM head by a LoraLinear; returns them by full name."""
    replaced = {}
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, module in list(model.named_modules()):
        kind = _replacement(module)
        if kind is not None and module is not head:
            parent, _, leaf = name.rpartition(".")
            replaced[name] = kind(module, routing)
            setattr(model.get_submodule(parent), leaf, replaced[name])
    return replaced


def _replacement(module: nn.Module) -> type[LoraLinear] | None:
    # Exactly these: a router that inherits from Linear computes something else. Falcon's class computes the same.
    if type(module) is nn.Linear or type(module).__name__ == "FalconLinear":
        return LoraLinear
    return LoraConv1D if type(module) is Conv1D else None


class Adapter:
    """One LoRA adapter over the layers that `targets` names: its pairs are trained together."""

    def __init__(self, name: str, rank: int, alpha: float, targets: Sequence[str], scale: float | None = None) -> None:
        self.name, self.rank, self.alpha, self.targets = name, rank, alpha, tuple(targets)
        self.scale = alpha / rank if scale is None else scale
        self.pairs: dict[str, LoraPair] = {}
        self.transposed = False  # True if some layers have weights [in, out]: PEFT's fan_in_fan_out

    def attach(self, layers: dict[str, LoraLinear], seed: int) -> Adapter:
        """Create the pairs with random `down` and zero `up`, so that the adapter starts as the identity."""
        leaves = sorted({name.rpartition(".")[2] for name in layers})
        unknown = [target for target in self.targets if target not in leaves]
        if unknown:
            there = f"this model has {', '.join(leaves)}"
            raise ValueError(f"lora.targets: no layer is called {', '.join(unknown)}; {there}")
        generator = torch.Generator().manual_seed(seed)
        for name, layer in layers.items():
            if name.rpartition(".")[2] not in self.targets:
                continue
            bound = 1 / math.sqrt(layer.in_features)
            down = torch.empty(self.rank, layer.in_features).uniform_(-bound, bound, generator=generator)
            up = torch.zeros(layer.out_features, self.rank)
            device = torch.device("cpu") if layer.weight.is_meta else layer.weight.device  # a base without weights
            pair = LoraPair(nn.Parameter(down.to(device)), nn.Parameter(up.to(device)), self.scale)
            self.pairs[name] = layer.pairs[self.name] = pair
            self.transposed |= layer.transposed
        return self

    def parameters(self) -> dict[str, nn.Parameter]:
        return named_parameters(self.pairs)


def named_parameters(pairs: Mapping[str, LoraPair]) -> dict[str, nn.Parameter]:
    """The parameters of pairs by layer, by the names that PEFT gives them in its files."""
    named = {}
    for layer, pair in pairs.items():
        named[f"base_model.model.{layer}.lora_A.weight"] = pair.down
        named[f"base_model.model.{layer}.lora_B.weight"] = pair.up
    return named
