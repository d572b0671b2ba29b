"""One set of weights, shared by every policy that is a LoRA adapter on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coterie.errors import ModelError
from coterie.kernels.matmul import lm_head_logits
from coterie.models.attention import NAME, Layout, Packed
from coterie.models.attention_probe import Asked, Kept, Noting, alike, alone, texts
from coterie.models.chat import Chat
from coterie.models.forward import Forward, forward_of
from coterie.models.lora import route
from coterie.models.lora_routing import Routing, Segment
from coterie.models.store import load_end_ids, load_model, load_tokenizer, max_context_length
from coterie.models.trainable_forward import Learned


def configure_allocator() -> None:
    """Let CUDA memory segments grow, unless the user configured the allocator. Call before the first allocation.

    Varying lengths fragment the CUDA allocator: after 100 steps PyTorch reserved a sixth more memory than their peak,
    and a tenth more with expandable segments.
    """
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


class Base:
    """A causal language model, its tokenizer, and the adapters that live on it."""

    def __init__(
        self,
        folder: Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        model: PreTrainedModel | None = None,
        bf16: bool | None = None,
    ) -> None:
        """`model`: one that is at hand already, in eval mode; then the folder needs no weights. `bf16`: whether
        products are computed in bfloat16 while it learns, whatever the weights are in; None: on a GPU."""
        self.folder, self.device = folder, torch.device(device)
        if self.device.type == "cuda":
            configure_allocator()
        self.bf16 = self.device.type == "cuda" if bf16 is None else bf16
        self.tokenizer = load_tokenizer(folder)
        self.chat = Chat(self.tokenizer, load_end_ids(folder))
        self.model, self.own_attention = _load(folder, dtype) if model is None else (model, "sdpa")
        nn.Module.to(self.model.requires_grad_(False), self.device)
        config = self.model.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.logit_scale = _logit_scale(config)
        # Models without learned or rotary positions name no longest text; their tokenizers may.
        self.context: int = max_context_length(config) or self.tokenizer.model_max_length
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        rows = texts(self.vocab_size, self.device)
        theirs = alone(self.model, rows)
        self.routing = Routing()
        self.layers = route(self.model, self.routing)
        self.trunk: nn.Module = self.model.base_model
        self.lm_head: nn.Linear = self.model.get_output_embeddings()
        self.kept, asked = self._try_ours(rows, theirs)
        if self.kept is None:
            self._must_agree(rows, theirs)
        self.forward = self._try_forward(rows, theirs, asked) if self.kept is not None else None
        silu = getattr(config, "hidden_act", None) == "silu"
        self.trainable_forward = Learned(self.forward) if self.forward is not None and silu else None
        self.use_hf_modules = False  # whether its own weights are learned, or stand beside such as their reference

    @property
    def native(self) -> bool:
        """Whether our attention drives this model."""
        return self.kept is not None

    @contextmanager
    def with_own_attention(self) -> Iterator[None]:
        """The model's own attention inside the block, for its own `generate`; and no training, or a model that learns
        with checkpoints would forget all keys."""
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
        """Kernels of our own go to the current GPU, which need not be the model's."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def hidden(self, tokens: Tensor, positions: Tensor, layout: Layout, segments: Sequence[Segment] = ()) -> Tensor:
        """Last hidden states of a flat stream of tokens: [T] → [T, width]."""
        with self.on_device():
            if not self.native:
                return self._row_by_row(tokens, layout, segments)
            if self.trainable_forward is None or self.use_hf_modules:
                return self._together(tokens, positions, layout, segments)
            again = self.model.is_gradient_checkpointing and torch.is_grad_enabled()
            with self.routing.on(segments):
                return self.trainable_forward(tokens, positions, layout, again)

    @torch.inference_mode()
    def hidden_for_inference(
        self, tokens: Tensor, positions: Tensor, layout: Layout, segments: Sequence[Segment] = ()
    ) -> Tensor:
        """As `hidden`, without gradients and as fast as this model goes: for an engine."""
        if self.forward is None:
            return self._together(tokens, positions, layout, segments)
        with self.routing.on(segments):
            return self.forward(tokens, positions, layout)

    def _together(self, tokens: Tensor, positions: Tensor, layout: Layout, segments: Sequence[Segment] = ()) -> Tensor:
        plain = {"use_cache": False, "output_hidden_states": False, "output_attentions": False}
        given: dict[str, Tensor] = {"input_ids": tokens[None]}
        if torch.is_autocast_enabled(self.device.type):
            # What every layer adds to stays in full precision; only the products have half.
            given = {"inputs_embeds": self.model.get_input_embeddings()(tokens[None]).float()}
        with self.routing.on(segments):
            out = self.trunk(**given, position_ids=positions[None], layout=layout, **plain)
        return out.last_hidden_state[0]

    def _row_by_row(self, tokens: Tensor, layout: Layout, segments: Sequence[Segment]) -> Tensor:
        """For models that our attention cannot drive: each row alone, with the model's own."""
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
    def _try_ours(self, rows: list[Tensor], theirs: Tensor) -> tuple[Kept | None, list[Asked]]:
        """Turns our attention on and says what it keeps; None, and off again, if it differs from the model's own."""
        if any("longrope" in str(getattr(module, "rope_type", "")) for module in self.model.modules()):
            return None, []  # how it turns a row depends on the longest that is read with it
        layout, positions = Noting(rows), _positions(rows)
        try:
            self.model.set_attn_implementation(NAME)
            agreed = alike(self.logits(self._together(torch.cat(rows), positions, layout)), theirs)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
            agreed = False  # its attention speaks another language than ours
        if agreed and layout.kept is not None:
            return layout.kept, [layout.asked[i] for i in range(layout.kept.layers)]
        self.model.set_attn_implementation(self.own_attention)
        return None, []

    @torch.no_grad()
    def _try_forward(self, rows: list[Tensor], theirs: Tensor, asked: list[Asked]) -> Forward | None:
        """Our own forward, where there is one for this kind of model and it agrees with the model's."""
        assert self.kept is not None
        forward = forward_of(self.model.config.model_type, self.trunk, asked, self.kept.width)
        if forward is None:
            return None
        hidden = forward(torch.cat(rows), _positions(rows), Noting(rows))
        return forward if alike(self.logits(hidden), theirs) else None

    @torch.no_grad()
    def _must_agree(self, rows: list[Tensor], theirs: Tensor) -> None:
        """Learning reads hidden states and takes the head's word for the rest."""
        if not alike(self.logits(self._row_by_row(torch.cat(rows), Noting(rows).packed, ())), theirs):
            kind = self.model.config.model_type
            raise ModelError(f"{self.folder}: a {kind} computes its logits in a way that we do not know")


def _positions(rows: list[Tensor]) -> Tensor:
    return torch.cat([torch.arange(len(row), device=row.device) for row in rows])


def _load(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, str]:
    """The model, and the name of the best attention that transformers has for it."""
    try:
        return load_model(folder, dtype, "sdpa"), "sdpa"
    except ValueError:  # transformers has none that is fused for this kind
        return load_model(folder, dtype, "eager"), "eager"


def _logit_scale(config: Any) -> float:
    """What Granite and Cohere multiply their logits by."""
    if getattr(config, "logits_scaling", None):
        return 1 / float(config.logits_scaling)
    return float(getattr(config, "logit_scale", None) or 1)
