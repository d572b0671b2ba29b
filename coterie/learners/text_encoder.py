"""Frozen text encoder: mean hidden states of a model that is already loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from coterie.models.attention import Packed, Span
from coterie.models.base import Base


class HiddenStates:
    """Encodes a text as the mean hidden state of a base model without adapters; nothing is trained."""

    def __init__(self, base: Base, budget: int) -> None:
        self.base, self.budget = base, budget  # tokens per forward pass

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """[N, D]. An empty text is the zero vector; a text longer than the context is truncated on the left."""
        rows = [self.base.tokenizer.encode(text, add_special_tokens=False)[-self.base.context :] for text in texts]
        out = torch.zeros(len(rows), self.base.hidden_size)
        for part in _pack(rows, self.budget):
            out[part] = self._means([rows[i] for i in part])
        return out

    def _means(self, rows: Sequence[Sequence[int]]) -> Tensor:
        device, lengths = self.base.device, [len(row) for row in rows]
        starts = [sum(lengths[:i]) for i in range(len(rows))]
        tokens = torch.tensor([token for row in rows for token in row], device=device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        layout = Packed([Span(start, length) for start, length in zip(starts, lengths, strict=True)], device)
        hidden = self.base.hidden(tokens, positions, layout, [(0, len(tokens), None)]).float().cpu()
        return torch.stack([states.mean(dim=0) for states in hidden.split(lengths)])


def _pack(rows: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Row indices per forward pass: as many as the budget holds, or a single longer one; empty rows are skipped."""
    part: list[int] = []
    used = 0
    for i, row in enumerate(rows):
        if part and used + len(row) > budget:
            yield part
            part, used = [], 0
        if row:
            part.append(i)
            used += len(row)
    if part:
        yield part
