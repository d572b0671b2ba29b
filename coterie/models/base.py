"""One set of weights, shared by every policy that is a LoRA adapter on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from coterie.chat import Chat
from coterie.models.attention import NAME, Layout, Packed, Span
from coterie.models.lora import Adapter, Routing, Segment, linear, route
from coterie.models.store import load_end_ids, load_model, load_tokenizer


class Base:
    """A causal language model, its tokenizer, and the adapters that live on it."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.folder, self.device = folder, torch.device(device)
        self.tokenizer = load_tokenizer(folder)
        self.chat = Chat(self.tokenizer, load_end_ids(folder))
        self.model = load_model(folder, dtype, "sdpa").requires_grad_(False)
        nn.Module.to(self.model, self.device)
        self.routing = Routing()
        self.layers = route(self.model, self.routing)
        self.trunk: nn.Module = self.model.base_model
        self.head: nn.Linear = self.model.get_output_embeddings()
        config = self.model.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.context: int = config.max_position_embeddings
        self.width: int = config.hidden_size
        self.vocabulary: int = config.vocab_size
        self.adapters: dict[str, Adapter] = {}
        self.native = True
        self.native = self._can_attend()
        self.attention("coterie" if self.native else "sdpa")

    def attention(self, name: str) -> None:
        """Switch the model's attention: ours, or one of transformers' for its own `generate`."""
        self.model.set_attn_implementation(NAME if name == "coterie" else name)

    def hidden(self, tokens: Tensor, positions: Tensor, layout: Layout, segments: Sequence[Segment] = ()) -> Tensor:
        """Last hidden states of a flat stream of tokens: [T] → [T, width]."""
        if not self.native:
            return self._row_by_row(tokens, layout, segments)
        with self.routing.on(segments):
            out = self.trunk(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, layout=layout, **self._plain()
            )
        return out.last_hidden_state[0]

    def _row_by_row(self, tokens: Tensor, layout: Layout, segments: Sequence[Segment]) -> Tensor:
        """For models that our attention cannot drive: each row alone, with the model's own."""
        assert isinstance(layout, Packed) and not any(span.prefix for span in layout.spans)
        with self.routing.on([(0, 1 << 30, adapter) for _, _, adapter in segments[:1]]):
            rows = [tokens[None, span.start : span.start + span.length] for span in layout.spans]
            return torch.cat([self.trunk(input_ids=row, use_cache=False).last_hidden_state[0] for row in rows])

    def logits(self, hidden: Tensor) -> Tensor:
        logits = linear(hidden, self.head.weight, self.head.bias)
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    def _plain(self) -> dict[str, bool]:
        return {"output_hidden_states": False, "output_attentions": False}

    @torch.no_grad()
    def _can_attend(self) -> bool:
        """Whether our attention gives what the model's own gives; asked once, of a short text."""
        ids = torch.arange(4, 28, device=self.device) % self.vocabulary
        theirs = self.trunk(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        try:
            self.attention("coterie")
            ours = self.hidden(
                ids, torch.arange(len(ids), device=self.device), Packed([Span(0, len(ids))], self.device)
            )
        except (TypeError, ValueError, AttributeError, IndexError):  # its attention speaks another language than ours
            return False
        error = (ours - theirs).float().norm() / theirs.float().norm()
        return bool(error < (1e-3 if theirs.dtype == torch.float32 else 5e-2))
