"""Our own forward for Llama-shaped decoders, for sampling: fused QKV and gate/up projections, per-run LoRA.

It uses the model's own parameters; `Base` checks that its logits agree with those of the model's modules.
Activations keep the layout of `linear_inference`, so that few tokens on a CPU are never transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.kernels.matmul import match_inference_layout
from coterie.models.attention import AttentionParams, Layout
from coterie.models.lora import FusedLinear

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass
class Block:
    """One decoder layer: its own norms, and its projections as fused linear layers."""

    input_norm: nn.Module
    qkv: FusedLinear
    qk_norms: tuple[nn.Module, nn.Module] | None  # in Qwen 3
    out: FusedLinear
    mlp_norm: nn.Module
    gate_up: FusedLinear
    act: nn.Module
    down: FusedLinear
    attention: AttentionParams


class Forward:
    """Embedding, blocks and final norm; the LM head is in `Base`."""

    def __init__(self, trunk: Any, params: Sequence[AttentionParams], head_dim: int) -> None:
        self.embed, self.rotary, self.norm = trunk.embed_tokens, trunk.rotary_emb, trunk.norm
        self.head_dim = head_dim
        self.blocks = [_block(layer, own) for layer, own in zip(trunk.layers, params, strict=True)]

    def __call__(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """[T], [T] → [T, hidden]."""
        x = match_inference_layout(self.embed(tokens))
        cos, sin = self._rope_tables(x, positions)
        for i, block in enumerate(self.blocks):
            x = x.add_(self._attend(i, block, rms_norm(x, block.input_norm), cos, sin, layout))
            gate, up = block.gate_up(rms_norm(x, block.mlp_norm)).chunk(2, dim=1)
            x = x.add_(block.down(block.act(gate).mul_(up)))
        return rms_norm(x, self.norm)

    def _rope_tables(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine for every token: [T, 1, head_dim]."""
        cos, sin = self.rotary(x, positions[None])
        sin[..., : self.head_dim // 2].neg_()  # see `apply_rope`
        return cos[0, :, None], sin[0, :, None]

    def _attend(self, i: int, block: Block, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        # Unflatten before `contiguous`: PyTorch copies a transposed matrix half as fast as a three-dimensional tensor.
        heads = block.qkv(x).unflatten(1, (-1, self.head_dim)).contiguous()  # [T, all heads, head_dim]
        q_heads, k_heads, _ = (size // self.head_dim for size in block.qkv.sizes)
        if block.qk_norms is None:
            q, k = apply_rope(heads[:, : q_heads + k_heads], cos, sin).split((q_heads, k_heads), dim=1)
        else:
            q = apply_rope(rms_norm(heads[:, :q_heads], block.qk_norms[0]), cos, sin)
            k = apply_rope(rms_norm(heads[:, q_heads : q_heads + k_heads], block.qk_norms[1]), cos, sin)
        q, k, v = (part.transpose(0, 1) for part in (q, k, heads[:, q_heads + k_heads :]))
        return block.out(layout.attend(i, q, k, v, *block.attention).flatten(1))


def rms_norm(x: Tensor, norm: Any) -> Tensor:
    """Not `F.rms_norm`: on a CPU it is no faster, and it changes the memory layout."""
    wide = x.float()
    rstd = (wide * wide).sum(dim=-1, keepdim=True).mul_(1 / x.shape[-1]).add_(norm.variance_epsilon).rsqrt_()
    return (wide * rstd).to(x.dtype).mul_(norm.weight)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions; the minus sign of the rotated half is in `sin`."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin)


def _block(layer: Any, params: AttentionParams) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    named = dict(attention.named_children())
    return Block(
        input_norm=layer.input_layernorm,
        qkv=FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj]),
        qk_norms=(named["q_norm"], named["k_norm"]) if "q_norm" in named else None,
        out=FusedLinear([attention.o_proj]),
        mlp_norm=layer.post_attention_layernorm,
        gate_up=FusedLinear([mlp.gate_proj, mlp.up_proj]),
        act=mlp.act_fn,
        down=FusedLinear([mlp.down_proj]),
        attention=params,
    )


@torch.no_grad()
def build_forward(model_type: str, trunk: Any, params: Sequence[AttentionParams], head_dim: int) -> Forward | None:
    """None for architectures that are not Llama-shaped."""
    return Forward(trunk, params, head_dim) if model_type in MODEL_TYPES else None
