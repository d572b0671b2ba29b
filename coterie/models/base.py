"""One base model, shared by every policy that is a LoRA adapter on it.

A loaded model is probed once with two short rows: our attention, and our own forward, are used only if their logits
agree with those of the model's own modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coterie.errors import ModelError
from coterie.kernels.matmul import lm_head_logits
from coterie.models.attention import NAME, AttentionParams, KVShape, Layout, Packed, RecordingLayout
from coterie.models.chat import Chat
from coterie.models.forward import Forward, build_forward
from coterie.models.lora import named_parameters, replace_linear_layers
from coterie.models.lora_routing import Routing, Segment
from coterie.models.sharding import empty_model, load_shards, shard_model
from coterie.models.store import load_end_ids, load_model, load_tokenizer, max_context_length
from coterie.models.trainable_forward import TrainableForward
from coterie.types import Weights

PROBE_LENGTHS = (9, 15)


def configure_allocator() -> None:
    """Let CUDA memory segments grow, unless the user configured the allocator. Call before the first allocation.

    Varying lengths fragment the CUDA allocator: after 100 steps PyTorch reserved a sixth more memory than their peak,
    and a tenth more with expandable segments.
    """
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


class Base:
    """A causal language model, its tokenizer, and the adapters on it."""

    def __init__(
        self,
        folder: Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        model: PreTrainedModel | None = None,
        bf16: bool | None = None,
        sharded: bool = False,
        weightless: bool = False,
    ) -> None:
        """`model`: an already loaded one, in eval mode; then the folder needs no weights. `bf16`: whether training
        computes matmuls in bfloat16, whatever the dtype of the weights; None: on a GPU. `sharded`: over all processes,
        which load it together and always run it together. `weightless`: tokenizer, chat, shapes and adapters alone, for
        an engine that has the weights elsewhere."""
        self.folder, self.device = folder, torch.device(device)
        if self.device.type == "cuda":
            configure_allocator()
        self.bf16 = self.device.type == "cuda" if bf16 is None else bf16
        self.tokenizer = load_tokenizer(folder)
        self.chat = Chat(self.tokenizer, load_end_ids(folder))
        self.sharded, self.weightless, self.routing = sharded, weightless, Routing()
        empty = sharded or weightless
        load = empty_model if empty else load_model
        self.model, self.own_attention = _load(load, folder, dtype) if model is None else (model, "sdpa")
        self.model.requires_grad_(False)
        if not empty:
            nn.Module.to(self.model, self.device)
        config = self.model.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.logit_scale = _logit_scale(config)
        # Models without learned or rotary positions have no maximum context; their tokenizers may.
        self.context: int = max_context_length(config) or self.tokenizer.model_max_length
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        self.trunk: nn.Module = self.model.base_model
        self.lm_head: nn.Linear = self.model.get_output_embeddings()
        self.kv_shape: KVShape | None = None
        self.forward: Forward | None = None
        self.trainable_forward: TrainableForward | None = None
        self.checkpointing = False
        self.use_hf_modules = False  # set for full fine-tuning, and for its reference: no `trainable_forward` then
        if weightless:
            self.layers = replace_linear_layers(self.model, self.routing)
            return
        # FSDP gathers the layers in the training precision, so a sharded model runs only under that autocast.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=sharded and self.bf16):
            self._probe()

    def _probe(self) -> None:
        """Replace the linear layers, shard the model if requested, and choose the fastest forward whose logits agree
        with those of the model's own."""
        rows = _probe_rows(self.vocab_size, self.device)
        expected = None if self.sharded else _own_logits(self.model, rows)
        self.layers = replace_linear_layers(self.model, self.routing)
        if expected is None:  # the reference logits come from the sharded model, with its layers replaced
            shard_model(self.model, self.device, gather_bf16=self.bf16 and self.model.dtype == torch.float32)
            load_shards(self.model, self.folder)
            # FSDP fixes the dtype of the gradients in its first pass, so the parameters must require them now.
            self.model.requires_grad_(self.model.dtype == torch.float32)
            expected = _own_logits(self.model, rows)
            self.model.requires_grad_(False)
        self.kv_shape, params = self._probe_attention(rows, expected)
        if self.kv_shape is None:
            self._check_row_by_row(rows, expected)
        # Our own forwards read weights without calling the modules, whose hooks gather sharded ones.
        if self.kv_shape is not None and not self.sharded:
            self.forward = self._probe_forward(rows, expected, params)
        silu = getattr(self.model.config.get_text_config(), "hidden_act", None) == "silu"
        self.trainable_forward = TrainableForward(self.forward) if self.forward is not None and silu else None

    @property
    def native(self) -> bool:
        """True if our attention drives this model."""
        return self.kv_shape is not None

    def check_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Reject empty prompts and unknown token ids: in a batch, one such row would break all others."""
        if not prompt_ids:
            raise ValueError("the prompt is empty: at least one token is needed")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.vocab_size:
            wrong = next(token for token in prompt_ids if not 0 <= token < self.vocab_size)
            last = self.vocab_size - 1
            raise ValueError(f"token {wrong} of the prompt is not in the vocabulary, which is 0 to {last}")

    def enable_checkpointing(self) -> None:
        """Recompute activations in the backward pass (gradient checkpointing) instead of keeping them."""
        # transformers 5.23 has a new name for it, and its old one, the only one before, prints a warning.
        enable = getattr(self.model, "activation_checkpointing_enable", self.model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
        self.model.train()  # transformers checkpoints only in training mode; dropout is zero in these models
        self.checkpointing = True

    @torch.no_grad()
    def load_weights(self, adapter: str | None, weights: Weights | None) -> None:
        """Copy weights into an adapter on this base, or into the model itself; None: nothing to copy."""
        if weights is None:
            return
        own = dict(self.model.named_parameters()) if adapter is None else self.adapter_parameters(adapter)
        for name, parameter in own.items():
            parameter.copy_(weights[name])

    def adapter_parameters(self, name: str) -> dict[str, nn.Parameter]:
        """The parameters of an adapter on this base, by PEFT's names."""
        pairs = {layer: lora.pairs[name] for layer, lora in self.layers.items() if name in lora.pairs}
        return named_parameters(pairs)

    @contextmanager
    def with_own_attention(self) -> Iterator[None]:
        """Run `generate` inside the block: with the model's own attention, and in eval mode, as gradient checkpointing
        switches the KV cache off in training mode."""
        self.model.set_attn_implementation(self.own_attention)
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)
            if self.native:
                self.model.set_attn_implementation(NAME)

    def on_device(self) -> AbstractContextManager[None]:
        """Make the model's GPU the current one: Triton launches on the current device."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def hidden(self, tokens: Tensor, positions: Tensor, layout: Layout, segments: Sequence[Segment] = ()) -> Tensor:
        """Last hidden states of a packed stream of tokens: [T] → [T, hidden size]."""
        with self.on_device():
            if not self.native:
                return self._row_by_row(tokens, layout, segments)
            if self.trainable_forward is None or self.use_hf_modules:
                return self._packed(tokens, positions, layout, segments)
            checkpointing = self.checkpointing and torch.is_grad_enabled()
            with self.routing.on(segments):
                return self.trainable_forward(tokens, positions, layout, checkpointing)

    @torch.inference_mode()
    def hidden_for_inference(
        self, tokens: Tensor, positions: Tensor, layout: Layout, segments: Sequence[Segment] = ()
    ) -> Tensor:
        """As `hidden`, without gradients, by the fastest forward that this model has: for engines."""
        if self.forward is None:
            return self._packed(tokens, positions, layout, segments)
        with self.routing.on(segments):
            return self.forward(tokens, positions, layout)

    def _packed(self, tokens: Tensor, positions: Tensor, layout: Layout, segments: Sequence[Segment] = ()) -> Tensor:
        """The model's own modules, with our attention."""
        options = {"use_cache": False, "output_hidden_states": False, "output_attentions": False}
        inputs: dict[str, Tensor] = {"input_ids": tokens[None]}
        if torch.is_autocast_enabled(self.device.type):
            # The residual stream stays in fp32; only the matmuls run in half precision.
            inputs = {"inputs_embeds": self.model.get_input_embeddings()(tokens[None]).float()}
        with self.routing.on(segments):
            out = self.trunk(**inputs, position_ids=positions[None], layout=layout, **options)
        return out.last_hidden_state[0]

    def _row_by_row(self, tokens: Tensor, layout: Layout, segments: Sequence[Segment]) -> Tensor:
        """For models that our attention cannot drive: one forward per row, with the model's own attention."""
        assert isinstance(layout, Packed) and not any(span.prefix for span in layout.spans) and len(segments) <= 1
        with self.routing.on([(0, 1 << 30, adapter) for _, _, adapter in segments]):
            rows = [tokens[None, span.start : span.start + span.length] for span in layout.spans]
            return torch.cat([self.trunk(input_ids=row, use_cache=False).last_hidden_state[0] for row in rows])

    def logits(self, hidden: Tensor) -> Tensor:
        logits = lm_head_logits(hidden, self.lm_head.weight, self.lm_head.bias)
        if self.logit_scale != 1:
            logits = logits * self.logit_scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    @torch.no_grad()
    def _probe_attention(self, rows: list[Tensor], expected: Tensor) -> tuple[KVShape | None, list[AttentionParams]]:
        """Switch our attention on if its logits agree with the model's own; else None, with the model's own on."""
        if any("longrope" in str(getattr(module, "rope_type", "")) for module in self.model.modules()):
            return None, []  # LongRoPE depends on the longest row, so packed rows would change each other
        layout, positions = RecordingLayout(rows), _positions(rows)
        try:
            self.model.set_attn_implementation(NAME)
            agrees = _agrees(self.logits(self._packed(torch.cat(rows), positions, layout)), expected)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
            agrees = False  # its attention modules have another interface
        if agrees and layout.kv_shape is not None:
            return layout.kv_shape, [layout.params[i] for i in range(layout.kv_shape.layers)]
        self.model.set_attn_implementation(self.own_attention)
        return None, []

    @torch.no_grad()
    def _probe_forward(self, rows: list[Tensor], expected: Tensor, params: list[AttentionParams]) -> Forward | None:
        """Our own forward, if there is one for this architecture and its logits agree with the model's own."""
        assert self.kv_shape is not None
        forward = build_forward(self.model.config.model_type, self.trunk, params, self.kv_shape.head_dim)
        if forward is None:
            return None
        hidden = forward(torch.cat(rows), _positions(rows), RecordingLayout(rows))
        return forward if _agrees(self.logits(hidden), expected) else None

    @torch.no_grad()
    def _check_row_by_row(self, rows: list[Tensor], expected: Tensor) -> None:
        """Check that logits computed from the hidden states, as in training, are those of the model."""
        if self.sharded:  # one forward per row: processes with fewer rows would leave the others waiting in collectives
            raise ModelError(f"{self.folder}: cannot be sharded, as its rows are computed one by one")
        if not _agrees(self.logits(self._row_by_row(torch.cat(rows), RecordingLayout(rows).packed, ())), expected):
            kind = self.model.config.model_type
            raise ModelError(f"{self.folder}: cannot reproduce the logits of a {kind} from its hidden states")


def _probe_rows(vocab_size: int, device: torch.device) -> list[Tensor]:
    """Two rows, so that a model that bypasses our attention is found: its second row attends to the first."""
    number = sum(PROBE_LENGTHS)
    ids = torch.arange(1, number + 1, device=device) * max(1, vocab_size // (number + 1)) % vocab_size
    return list(ids.split(PROBE_LENGTHS))


@torch.no_grad()
def _own_logits(model: PreTrainedModel, rows: Sequence[Tensor]) -> Tensor:
    """Logits of each row alone by the model's own forward: [T, vocabulary]."""
    return torch.cat([model(input_ids=row[None], use_cache=False).logits[0] for row in rows])


def _agrees(ours: Tensor, expected: Tensor) -> bool:
    """True if logits agree on all tokens. In half precision on most: rounding in an early layer can change single
    tokens entirely."""
    errors = (ours - expected).float().norm(dim=-1) / expected.float().norm(dim=-1)
    return bool(errors.max() < 1e-3 if expected.dtype == torch.float32 else errors.median() < 5e-2)


def _positions(rows: list[Tensor]) -> Tensor:
    return torch.cat([torch.arange(len(row), device=row.device) for row in rows])


def _load(
    load: Callable[[Path, torch.dtype, str], PreTrainedModel], folder: Path, dtype: torch.dtype
) -> tuple[PreTrainedModel, str]:
    """The model, and the name of the best attention that transformers has for it."""
    try:
        return load(folder, dtype, "sdpa"), "sdpa"
    except ValueError:  # no SDPA for this architecture
        return load(folder, dtype, "eager"), "eager"


def _logit_scale(config: Any) -> float:
    """The factor on the logits of Granite and Cohere."""
    if getattr(config, "logits_scaling", None):
        return 1 / float(config.logits_scaling)
    return float(getattr(config, "logit_scale", None) or 1)
