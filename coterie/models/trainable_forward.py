"""Our own trainable forward for Llama-shaped decoders with LoRA: autograd functions with hand-written backward passes.

It computes what the model's own modules compute, with fewer kernel launches and fewer saved activations. The base
weights are frozen; adapters accumulate their gradients inside the backward, so autograd sees only the activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from coterie.kernels.dispatch import kernels_for
from coterie.kernels.matmul import LoraDelta, add_lora_deltas_, linear_fp32_out
from coterie.kernels.varlen_attention import compute_dtype
from coterie.models.attention import Layout
from coterie.models.forward import Block, Forward
from coterie.models.lora import FusedLinear, LoraShard

Grads = tuple[Tensor | None, ...]


def ops(x: Tensor) -> Any:
    """`training_ops`, or its Triton version on CUDA."""
    return kernels_for(x.device.type, "coterie.kernels.training_ops", "coterie.kernels.training_ops_triton")


class GradientStart(torch.autograd.Function):
    """The identity, with an output that requires a gradient: the backward pass ends at the first block with LoRA."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        return None, None


class RmsNorm(torch.autograd.Function):
    """RMSNorm of x [..., N] as `dtype`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        out, rstd = ops(x).rms_norm(x, weight, eps, dtype)
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        return ops(grad).rms_norm_backward(grad, *ctx.saved_tensors), None, None, None


class AddRmsNorm(torch.autograd.Function):
    """x + y, and its RMSNorm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        total, out, rstd = ops(x).add_rms_norm(x, y, weight, eps, dtype)
        ctx.save_for_backward(total, weight, rstd)
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor | None, grad: Tensor) -> Grads:
        both = ops(grad).rms_norm_backward(grad, *ctx.saved_tensors, total_grad)
        return both, both, None, None, None


class Rope(torch.autograd.Function):
    """Rotary positions: x [T, H, D], cos and sin [T, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return ops(x).rope(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        return ops(grad).rope(grad, *ctx.saved_tensors, inverse=True), None, None


@dataclass(frozen=True)
class ShardRun:
    """Consecutive tokens that use one adapter, and that adapter's shard."""

    tokens: slice
    shard: LoraShard


def shard_runs(fused: FusedLinear, dtype: torch.dtype) -> list[ShardRun]:
    """The adapters that the current forward's tokens use on these layers."""
    shards = ((start, end, fused.shard(name, dtype)) for start, end, name in fused.mixer.routing.segments)
    return [ShardRun(slice(start, end), shard) for start, end, shard in shards if shard is not None]


class _LoraMatmul:
    """x·Wᵀ + b, plus x·(scale·down)ᵀ·upᵀ of each run's adapter, all in the dtype of x."""

    def __init__(self, x: Tensor, fused: FusedLinear) -> None:
        self.weight, self.runs = fused.weight.to(x.dtype), shard_runs(fused, x.dtype)
        self.bias = None if fused.bias is None else fused.bias.to(x.dtype)

    def forward(self, x: Tensor, fp32_out: bool) -> tuple[Tensor, list[Tensor]]:
        """The output, and each run's low-rank activation."""
        out, (deltas, lows) = self.base_forward(x, fp32_out), self.deltas(x)
        add_lora_deltas_(out, deltas)
        return out, lows

    def base_forward(self, x: Tensor, fp32_out: bool) -> Tensor:
        return (linear_fp32_out if fp32_out else F.linear)(x, self.weight, self.bias)

    def deltas(self, x: Tensor) -> tuple[list[LoraDelta], list[Tensor]]:
        """The LoRA deltas, and each run's low-rank activation."""
        deltas, lows = list[LoraDelta](), list[Tensor]()
        for run in self.runs:
            low = x[run.tokens] @ run.shard.down.t()
            deltas += [LoraDelta(run.tokens, outs, low[:, columns], up) for outs, columns, up in run.shard.ups]
            lows.append(low)
        return deltas, lows

    def backward(self, grad: Tensor, x: Tensor, lows: Sequence[Tensor]) -> Tensor:
        """The gradient of x; those of the adapters are accumulated in their parameters."""
        grad = grad.to(x.dtype)
        x_grad = grad @ self.weight
        for run, low in zip(self.runs, lows, strict=True):
            here, low_grad = grad[run.tokens], torch.empty_like(low)
            for outs, columns, up in run.shard.ups:
                torch.mm(here[:, outs], up, out=low_grad[:, columns])
            x_grad[run.tokens].addmm_(low_grad, run.shard.down)
            run.shard.accumulate_grad(x[run.tokens], low, low_grad, here)
        return x_grad


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fused: FusedLinear, fp32_out: bool) -> Tensor:
        ctx.matmul = _LoraMatmul(x, fused)
        out, lows = ctx.matmul.forward(x, fp32_out)
        ctx.save_for_backward(x, *lows)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        x, *lows = ctx.saved_tensors
        return ctx.matmul.backward(grad, x, lows), None, None


def lora_linear(x: Tensor, fused: FusedLinear, fp32_out: bool = False) -> Tensor:
    """[T, in] → [T, Σ out], each run of tokens with its adapter. `fp32_out` as in `linear_fp32_out`."""
    return _LoraLinear.apply(x, fused, fp32_out)


class _SwigluMlp(torch.autograd.Function):
    """The SwiGLU activation is recomputed in the backward instead of saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: FusedLinear, down: FusedLinear) -> Tensor:
        first = _LoraMatmul(x, gate_up)
        deltas, lows = first.deltas(x)
        hidden, summed = ops(x).swiglu(first.base_forward(x, fp32_out=True), deltas, x.dtype)
        second = _LoraMatmul(hidden, down)
        out, more = second.forward(hidden, fp32_out=True)
        ctx.first, ctx.second, ctx.count = first, second, len(lows)
        ctx.save_for_backward(x, summed, *lows, *more)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        x, summed, *lows = ctx.saved_tensors
        hidden, _ = ops(x).swiglu(summed, (), x.dtype)
        hidden_grad = ctx.second.backward(grad, hidden, lows[ctx.count :])
        return ctx.first.backward(ops(x).swiglu_backward(hidden_grad, summed), x, lows[: ctx.count]), None, None


def swiglu_mlp(x: Tensor, gate_up: FusedLinear, down: FusedLinear) -> Tensor:
    """down(silu(gate(x))·up(x)) in fp32: [T, in] → [T, out]. Gate and up are rounded only for the backward."""
    return _SwigluMlp.apply(x, gate_up, down)


class TrainableForward:
    """Embedding, blocks and final norm; the model's weights are frozen."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __call__(self, tokens: Tensor, positions: Tensor, layout: Layout, checkpointing: bool) -> Tensor:
        """[T], [T] → [T, hidden]; `checkpointing`: save one tensor per block and rerun the block in the backward."""
        embedded = self.forward.embed(tokens)
        # The residual stream is in fp32; only the inputs of matmuls are in half precision.
        x, dtype = embedded.to(torch.promote_types(embedded.dtype, torch.float32)), compute_dtype(embedded)
        cos, sin = (table[0] for table in self.forward.rotary(x, positions[None]))
        y: Tensor | None = None
        for i, block in enumerate(self.forward.blocks):
            if torch.is_grad_enabled() and not x.requires_grad and _has_adapter(block):
                x = GradientStart.apply(x, x.new_empty(0, requires_grad=True))
            inputs = i, block, x, y, cos, sin, layout, dtype
            if checkpointing:
                x, y = checkpoint(lambda *args: torch.add(*self._block(*args)), *inputs, use_reentrant=False), None
            else:
                x, y = self._block(*inputs)
        return _add_rms_norm(x, y, self.forward.norm, x.dtype)[1]

    def _block(
        self, i: int, block: Block, x: Tensor, y: Tensor | None, cos: Tensor, sin: Tensor, layout: Layout,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """One decoder layer. The residual stream is x + y, two summands that the next norm adds."""
        x, read = _add_rms_norm(x, y, block.input_norm, dtype)
        x, read = _add_rms_norm(x, self._attend(i, block, read, cos, sin, layout), block.mlp_norm, dtype)
        return x, swiglu_mlp(read, block.gate_up, block.down)

    def _attend(self, i: int, block: Block, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        head_dim = self.forward.head_dim
        queries, keys, _ = heads = [size // head_dim for size in block.qkv.sizes]
        qk, v = lora_linear(x, block.qkv).unflatten(1, (sum(heads), head_dim)).split((queries + keys, keys), dim=1)
        if block.qk_norms is not None:
            parts = zip(qk.split((queries, keys), dim=1), block.qk_norms, strict=True)
            qk = torch.cat([_rms_norm(part, norm, x.dtype) for part, norm in parts], dim=1)
        q, k = Rope.apply(qk, cos, sin).split((queries, keys), dim=1)
        q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        return lora_linear(layout.attend(i, q, k, v, *block.attention).flatten(1), block.out, fp32_out=True)


def _has_adapter(block: Block) -> bool:
    """True if an adapter of the current forward has weights in this block."""
    layers = [layer for fused in (block.qkv, block.out, block.gate_up, block.down) for layer in fused.layers]
    return any(name in layer.pairs for layer in layers for name in layer.routing.names)


def _add_rms_norm(x: Tensor, y: Tensor | None, norm: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if y is None:
        return x, _rms_norm(x, norm, dtype)
    return AddRmsNorm.apply(x, y, norm.weight, norm.variance_epsilon, dtype)


def _rms_norm(x: Tensor, norm: nn.Module, dtype: torch.dtype) -> Tensor:
    return RmsNorm.apply(x, norm.weight, norm.variance_epsilon, dtype)
