"""LoRA by row: one forward in which every run of tokens has its own adapter, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from coterie.kernels.matmul import linear, product
from coterie.models.lora_routing import Pair, Routing, Shares, slices
from coterie.models.lora_shard import Part


class RoutedLinear(nn.Module):
    """A frozen or trained linear layer plus the adapters that its tokens ask for."""

    transposed = False  # whether the weight is [in, out]

    def __init__(self, layer: nn.Module, routing: Routing) -> None:
        super().__init__()
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.routing = routing
        self.out_features, self.in_features = self.weight.shape[:: -1 if self.transposed else 1]
        self.pairs: dict[str, Pair] = {}
        self.shares = Shares([self], routing)

    def plain(self, x: Tensor) -> Tensor:
        """Without adapters."""
        return linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.plain(x)
        if not self.routing.segments:
            return y
        flat, out = x.reshape(-1, self.in_features), y.reshape(-1, self.out_features)
        if torch.is_grad_enabled():
            return self._with_gradient(flat, out).view(y.shape)
        self.shares.add(flat.to(out.dtype), out)  # autocast may have made the product less precise
        return out.view(y.shape)

    def _with_gradient(self, flat: Tensor, out: Tensor) -> Tensor:
        """Each adapter on its own run of tokens."""
        parts: list[Tensor] = []
        at = 0
        for start, end, adapter in self.routing.segments:
            if adapter is None or adapter not in self.pairs:  # this adapter does not touch this layer
                continue
            pair = self.pairs[adapter]
            low = F.linear(flat[start:end], pair.down)
            parts += [out[at:start], torch.addmm(out[start:end], low, pair.up.t(), alpha=pair.scale)]
            at = end
        parts = [part for part in (*parts, out[at:]) if len(part)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class RoutedConv1D(RoutedLinear):
    """GPT-2's linear layers, whose weights are [in, out]."""

    transposed = True

    def plain(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


class Joined:
    """Layers that read the same tokens, as one product. Their weights become parts of one tensor, not copies."""

    def __init__(self, layers: Sequence[RoutedLinear]) -> None:
        self.layers, self.sizes = layers, [layer.out_features for layer in layers]
        self.weight = self.wide = _join(layers, "weight")
        self.bias = _join(layers, "bias") if layers[0].bias is not None else None
        self.shares = Shares(layers, layers[0].routing)
        self.parts: dict[tuple[str, torch.dtype], Part] = {}

    def part(self, adapter: str | None, dtype: torch.dtype) -> Part | None:
        """The adapter's, as it is now, to learn with; None if it has none in these layers."""
        if adapter is None:
            return None
        outs = zip(slices(self.sizes), self.layers, strict=True)
        found = [(here, layer.pairs[adapter]) for here, layer in outs if adapter in layer.pairs]
        pairs = [pair for _, pair in found]
        key = adapter, dtype
        if pairs and (key not in self.parts or not self.parts[key].serves(pairs)):
            self.parts[key] = Part(pairs, [here for here, _ in found], dtype)
        return self.parts[key] if pairs else None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] → [T, Σ out], without gradient."""
        out = product(x, self.weight, self.bias)
        if self.shares.routing.segments:
            self.shares.add(x, out)
        return out

    @torch.inference_mode(False)  # whoever asks: learners will go through these weights
    @torch.no_grad()
    def make_room(self, rows: int) -> None:
        """Move the weights to where so many more rows lie under them, in `wide`; the parameters stay the same ones."""
        self.wide = self.weight.new_zeros(len(self.weight) + rows, self.weight.shape[1])
        self.wide[: len(self.weight)] = self.weight
        self.weight = self.wide[: len(self.weight)]
        for layer, part in zip(self.layers, self.weight.split(self.sizes), strict=True):
            layer.weight.data = part


@torch.no_grad()
def _join(layers: Sequence[RoutedLinear], name: str) -> Tensor:
    parameters: list[Tensor] = [layer.get_parameter(name) for layer in layers]
    if len(parameters) == 1:
        return parameters[0]
    whole = torch.cat(parameters)
    parts = whole.split([len(parameter) for parameter in parameters])
    for layer, old, part in zip(layers, parameters, parts, strict=True):
        setattr(layer, name, nn.Parameter(part, requires_grad=old.requires_grad))
    return whole


def route(model: nn.Module, routing: Routing) -> dict[str, RoutedLinear]:
    """Put a RoutedLinear in the place of every linear layer inside the model's blocks; by full name."""
    routed = {}
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, module in list(model.named_modules()):
        kind = _kind(module)
        if kind is not None and module is not head:
            parent, _, leaf = name.rpartition(".")
            routed[name] = kind(module, routing)
            setattr(model.get_submodule(parent), leaf, routed[name])
    return routed


def _kind(module: nn.Module) -> type[RoutedLinear] | None:
    # Exactly these: a router that inherits from Linear computes something else. Falcon's class computes the same.
    if type(module) is nn.Linear or type(module).__name__ == "FalconLinear":
        return RoutedLinear
    return RoutedConv1D if type(module) is Conv1D else None


class Adapter:
    """One LoRA over the layers that `targets` names: a set of pairs, trained together."""

    def __init__(self, name: str, rank: int, alpha: float, targets: Sequence[str], scale: float | None = None) -> None:
        self.name, self.rank, self.alpha, self.targets = name, rank, alpha, tuple(targets)
        self.scale = alpha / rank if scale is None else scale
        self.pairs: dict[str, Pair] = {}
        self.transposed = False  # whether some of its layers have weights [in, out], as PEFT wants to know

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
            self.transposed |= layer.transposed
        return self

    def parameters(self) -> dict[str, nn.Parameter]:
        """By the name PEFT gives them in its files."""
        named = {}
        for layer, pair in self.pairs.items():
            named[f"base_model.model.{layer}.lora_A.weight"] = pair.down
            named[f"base_model.model.{layer}.lora_B.weight"] = pair.up
        return named
