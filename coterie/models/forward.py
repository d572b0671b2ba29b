"""A forward of our own for decoders that are built like Llama, to sample with: fewer and larger products.

It reads the model's own parameters and computes what the model's own modules compute; the probe says whether it does.
Activations keep the layout in which `product` leaves them, so that few tokens on a CPU are never transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.kernels.matmul import like_product
from coterie.models.attention import Layout
from coterie.models.attention_probe import Asked
from coterie.models.lora import Joined

KINDS = ("llama", "mistral", "qwen2", "qwen3")


@dataclass
class Block:
    """One layer of the model: its own modules, and products that several of them share."""

    before: nn.Module  # norm
    qkv: Joined
    norms: tuple[nn.Module, nn.Module] | None  # of queries and keys, in Qwen 3
    out: Joined
    between: nn.Module  # norm
    gate_up: Joined
    act: nn.Module
    down: Joined
    asked: Asked


class Forward:
    """Embedding, blocks and last norm; the head is the base's."""

    def __init__(self, trunk: Any, asked: Sequence[Asked], width: int) -> None:
        """`asked` says what each layer asks of attention, `width` is that of one head."""
        self.embed, self.rotary, self.norm = trunk.embed_tokens, trunk.rotary_emb, trunk.norm
        self.width = width
        self.blocks = [_block(layer, how) for layer, how in zip(trunk.layers, asked, strict=True)]

    def __call__(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """[T], [T] → [T, hidden]."""
        x = like_product(self.embed(tokens))
        cos, sin = self._turns(x, positions)
        for i, block in enumerate(self.blocks):
            x = x.add_(self._attend(i, block, rms_norm(x, block.before), cos, sin, layout))
            gate, up = block.gate_up(rms_norm(x, block.between)).chunk(2, dim=1)
            x = x.add_(block.down(block.act(gate).mul_(up)))
        return rms_norm(x, self.norm)

    def _turns(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine for every token: [T, 1, width]."""
        cos, sin = self.rotary(x, positions[None])
        sin[..., : self.width // 2].neg_()  # see `_turned`
        return cos[0, :, None], sin[0, :, None]

    def _attend(self, i: int, block: Block, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        # In this order: PyTorch turns a matrix around in twice the time that it takes for three dimensions.
        heads = block.qkv(x).unflatten(1, (-1, self.width)).contiguous()  # [T, all heads, width]
        q_heads, k_heads, _ = (size // self.width for size in block.qkv.sizes)
        if block.norms is None:
            q, k = _turned(heads[:, : q_heads + k_heads], cos, sin).split((q_heads, k_heads), dim=1)
        else:
            q = _turned(rms_norm(heads[:, :q_heads], block.norms[0]), cos, sin)
            k = _turned(rms_norm(heads[:, q_heads : q_heads + k_heads], block.norms[1]), cos, sin)
        q, k, v = (part.transpose(0, 1) for part in (q, k, heads[:, q_heads + k_heads :]))
        return block.out(layout.attend(i, q, k, v, block.asked.scale, block.asked.window).flatten(1))


def rms_norm(x: Tensor, norm: Any) -> Tensor:
    """Not `F.rms_norm`: on a CPU it is as slow, and it changes the layout."""
    wide = x.float()
    size = (wide * wide).sum(dim=-1, keepdim=True).mul_(1 / x.shape[-1]).add_(norm.variance_epsilon).rsqrt_()
    return (wide * size).to(x.dtype).mul_(norm.weight)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions; the minus of its other half is in the sine."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin)


def _block(layer: Any, asked: Asked) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    named = dict(attention.named_children())
    return Block(
        before=layer.input_layernorm,
        qkv=Joined([attention.q_proj, attention.k_proj, attention.v_proj]),
        norms=(named["q_norm"], named["k_norm"]) if "q_norm" in named else None,
        out=Joined([attention.o_proj]),
        between=layer.post_attention_layernorm,
        gate_up=Joined([mlp.gate_proj, mlp.up_proj]),
        act=mlp.act_fn,
        down=Joined([mlp.down_proj]),
        asked=asked,
    )


@torch.no_grad()
def forward_of(kind: str, trunk: Any, asked: Sequence[Asked], width: int) -> Forward | None:
    """None for models that are built in another way."""
    return Forward(trunk, asked, width) if kind in KINDS else None
