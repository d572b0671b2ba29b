"""Texts → vectors that never learn, out of a model that is there anyway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from coterie.models.attention import Packed, Span
from coterie.models.base import Base


class HiddenStates:
    """The mean hidden state of a model as it came, without adapters: nothing to download, nothing to train."""

    def __init__(self, base: Base, budget: int) -> None:
        self.base, self.budget = base, budget  # tokens in one forward

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """An empty text is the zero vector; of one that is too long for the model its end counts."""
        rows = [self.base.tokenizer.encode(text, add_special_tokens=False)[-self.base.context :] for text in texts]
        out = torch.zeros(len(rows), self.base.hidden_size)
        for part in _within(rows, self.budget):
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


def _within(rows: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Which rows go together: as many as the budget holds, or one that is longer; empty ones are left out."""
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
