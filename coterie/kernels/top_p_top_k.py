"""Top-k and top-p (nucleus) masks on logits, without sorting the whole vocabulary: the PyTorch reference."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST = 2048  # the likeliest tokens, sorted first; the whole vocabulary only if their mass is below p


def top_k_top_p(logits: Tensor, top_p: Tensor, top_k: Tensor, temperature: Tensor) -> Tensor:
    """Mask with −∞ all tokens outside the k likeliest (0: no limit) or, of these, outside the smallest set of mass p.

    Ties with the last kept token are kept as well. Temperature 0 counts as 1, as in the log-probs.
    """
    temperature = torch.where(temperature == 0, 1.0, temperature)
    threshold = _threshold(logits.float().contiguous(), top_p, top_k, temperature, FIRST)
    return logits.masked_fill(logits < threshold[:, None], -torch.inf)


def _threshold(logits: Tensor, top_p: Tensor, top_k: Tensor, temperature: Tensor, first: int) -> Tensor:
    """The logit of the last token that is kept: [R, V] → [R]."""
    vocabulary = logits.shape[1]
    count = min(vocabulary, max(first, int(top_k.max())))
    ordered = (logits.topk(count) if count < vocabulary else logits.sort(descending=True)).values
    kth = ordered.gather(1, (top_k.long().clamp(1, count) - 1)[:, None])[:, 0]
    kth = torch.where(top_k > 0, kth, -torch.inf)
    mass, total = (_mass(some, ordered[:, :1], temperature, kth) for some in (ordered, logits))
    # A token is kept if the tokens before it have a mass below p.
    kept = mass.cumsum(dim=1) - mass < (top_p * total.sum(dim=1))[:, None]
    kept = (kept & (ordered >= kth[:, None])).sum(dim=1).clamp(min=1)
    threshold = torch.where(top_p < 1, ordered.gather(1, kept[:, None] - 1)[:, 0], kth)
    more = (kept == count) & (top_p < 1) & (top_k == 0)
    if count < vocabulary and bool(more.any()):
        threshold[more] = _threshold(logits[more], top_p[more], top_k[more], temperature[more], vocabulary)
    return threshold


def _mass(logits: Tensor, top: Tensor, temperature: Tensor, kth: Tensor) -> Tensor:
    """Unnormalized probabilities; the likeliest token has mass 1, tokens below the k-th have none."""
    return ((logits - top) / temperature[:, None]).exp_().masked_fill_(logits < kth[:, None], 0)
