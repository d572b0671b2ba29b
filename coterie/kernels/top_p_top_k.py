"""Only likely tokens: top-k and top-p, without putting the whole vocabulary in order."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST = 2048  # likeliest tokens that are put in order; all only where these are too few


def keep_likely(logits: Tensor, top_p: Tensor, top_k: Tensor, temperature: Tensor) -> Tensor:
    """Minus infinity for tokens outside the k likeliest (0: all) or, of these, outside the smallest set of mass p.

    A token as likely as the last that is kept is kept as well. Temperature 0 is taken as 1, as in the log-probs.
    """
    heat = torch.where(temperature == 0, 1.0, temperature)
    least = _least(logits.float().contiguous(), top_p, top_k, heat, FIRST)
    return logits.masked_fill(logits < least[:, None], -torch.inf)


def _least(logits: Tensor, top_p: Tensor, top_k: Tensor, heat: Tensor, first: int) -> Tensor:
    """The logit of the last token that is kept: [R, V] → [R]."""
    vocabulary = logits.shape[1]
    count = min(vocabulary, max(first, int(top_k.max())))
    ordered = (logits.topk(count) if count < vocabulary else logits.sort(descending=True)).values
    last = ordered.gather(1, (top_k.long().clamp(1, count) - 1)[:, None])[:, 0]
    last = torch.where(top_k > 0, last, -torch.inf)
    mass, everything = (_mass(some, ordered[:, :1], heat, last) for some in (ordered, logits))
    # A token stays if those before it have less than p.
    kept = mass.cumsum(dim=1) - mass < (top_p * everything.sum(dim=1))[:, None]
    kept = (kept & (ordered >= last[:, None])).sum(dim=1).clamp(min=1)
    least = torch.where(top_p < 1, ordered.gather(1, kept[:, None] - 1)[:, 0], last)
    more = (kept == count) & (top_p < 1) & (top_k == 0)
    if count < vocabulary and bool(more.any()):
        least[more] = _least(logits[more], top_p[more], top_k[more], heat[more], vocabulary)
    return least


def _mass(logits: Tensor, top: Tensor, heat: Tensor, last: Tensor) -> Tensor:
    """Where the likeliest token has mass 1, and what is below the last has none."""
    return ((logits - top) / heat[:, None]).exp_().masked_fill_(logits < last[:, None], 0)
