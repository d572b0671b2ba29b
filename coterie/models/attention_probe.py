"""Whether our attention can drive a model: asked once, of two short texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coterie.models.attention import Packed, Span

LENGTHS = (9, 15)


class Kept(NamedTuple):
    """The keys, and just so the values, that a model's attention needs again of every token."""

    layers: int
    heads: int
    width: int


class Asked(NamedTuple):
    """What a layer asks of attention."""

    scale: float
    window: int | None


def texts(vocabulary: int, device: torch.device) -> list[Tensor]:
    """Two rows, for a model that does not ask us who sees whom would let the second read the first."""
    number = sum(LENGTHS)
    ids = torch.arange(1, number + 1, device=device) * max(1, vocabulary // (number + 1)) % vocabulary
    return list(ids.split(LENGTHS))


@torch.no_grad()
def alone(model: PreTrainedModel, rows: Sequence[Tensor]) -> Tensor:
    """What the model itself says to each row: [T, vocabulary]."""
    return torch.cat([model(input_ids=row[None], use_cache=False).logits[0] for row in rows])


def alike(ours: Tensor, theirs: Tensor) -> bool:
    """Whether they say the same to all tokens; in half precision to most, for there a real model may say something
    else entirely to a token when one of its first layers rounds the other way."""
    errors = (ours - theirs).float().norm(dim=-1) / theirs.float().norm(dim=-1)
    return bool(errors.max() < 1e-3 if theirs.dtype == torch.float32 else errors.median() < 5e-2)


class Noting:
    """Packs rows, and notes what each layer brings to be kept."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        starts = [sum(len(row) for row in rows[:i]) for i in range(len(rows))]
        spans = [Span(start, len(row)) for start, row in zip(starts, rows, strict=True)]
        self.packed = Packed(spans, rows[0].device)
        self.brought: dict[int, tuple[int, int, int]] = {}
        self.asked: dict[int, Asked] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        self.brought[layer] = (k.shape[0], k.shape[-1], v.shape[-1])
        self.asked[layer] = Asked(scale, window)
        return self.packed.attend(layer, q, k, v, scale, window)

    @property
    def kept(self) -> Kept | None:
        """None where layers differ from each other, or keys from values: one cache would not hold them."""
        shapes = set(self.brought.values())
        if len(shapes) != 1 or sorted(self.brought) != list(range(len(self.brought))):
            return None
        heads, width, value_width = shapes.pop()
        return Kept(len(self.brought), heads, width) if width == value_width else None
