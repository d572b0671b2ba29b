"""Random-weight models with the shapes of real ones: speed does not depend on the weights; nothing is downloaded."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config

from coterie.games.model import letters
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.lora_targets import DEFAULT_TARGETS
from coterie.types import Batch

NO_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SHAPES: dict[str, PreTrainedConfig] = {
    "tiny": LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True, **NO_SPECIAL_TOKENS,
    ),
    "135m": LlamaConfig(  # SmolLM2-135M
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, **NO_SPECIAL_TOKENS,
    ),
    "1.5b": Qwen2Config(  # Qwen2.5-1.5B
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
        num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True, **NO_SPECIAL_TOKENS,
    ),
    "3b": Qwen2Config(  # Qwen2.5-3B
        vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
        num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True, **NO_SPECIAL_TOKENS,
    ),
}  # fmt: skip


def shaped(shape: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """An unmodified Hugging Face model, created on its device; always the same weights."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(0)
        config = deepcopy(SHAPES[shape])
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return nn.Module.to(model, device).eval()


def base_of(shape: str, device: torch.device, dtype: torch.dtype) -> Base:
    """Such a model as a base for adapters. It has no end-of-turn token: every answer reaches its limit."""
    folder = scratch()
    letters().save_pretrained(folder)
    base = Base(folder, device, dtype, shaped(shape, device, dtype))
    base.chat.end_ids = frozenset({base.vocab_size})
    return base


def scratch() -> Path:
    """A folder until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="coterie-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def adapters_on(base: Base, count: int) -> list[Adapter]:
    """Adapters a0, a1 … on all linear layers; they start as the identity."""
    return [Adapter(f"a{i}", 16, 32.0, DEFAULT_TARGETS).attach(base.layers, seed=i) for i in range(count)]


def size_of(model: PreTrainedModel) -> int:
    """The number of weights in matrix products; a head tied to the embedding counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def prompts(count: int, length: int, vocabulary: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Random tokens, without shared prefixes."""
    draw = torch.Generator().manual_seed(seed)
    return [tuple(row) for row in torch.randint(1, vocabulary, (count, length), generator=draw).tolist()]


def lengths(count: int, most: int) -> list[int]:
    """From a quarter of the longest to the longest, evenly spaced, in random order."""
    steps = [most // 4 + (most - most // 4) * i // max(1, count - 1) for i in range(count)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return [steps[i] for i in order]


def batch_of(rows: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Batch:
    """Prompts and answers with an advantage of 1 or −1."""
    sizes = torch.tensor([len(prompt) + len(answer) for prompt, answer in rows])
    row = torch.repeat_interleave(torch.arange(len(rows)), sizes)
    positions = torch.cat([torch.arange(int(size)) for size in sizes])
    zeros, ones = torch.zeros(len(row)), torch.ones(len(row))
    sampled = positions >= torch.tensor([len(prompt) for prompt, _ in rows])[row]
    return Batch(
        tokens=torch.tensor([token for prompt, answer in rows for token in (*prompt, *answer)]),
        positions=positions, row=row, mask=sampled, logprobs=zeros, old_logprobs=zeros, returns=zeros, values=zeros,
        advantages=torch.where(row % 2 == 0, 1.0, -1.0), ref_logprobs=zeros, temperature=ones, words=ones, turn=row,
        episode=row, role=torch.zeros_like(row), roles=("policy",),
    )  # fmt: skip
