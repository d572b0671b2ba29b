"""Packed varlen attention agrees with padded attention, with and without shared prefixes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.kernels import varlen_attention
from coterie.kernels.varlen_attention import VarlenRows
from coterie.models.attention import Packed, Span

HEADS, KEY_HEADS, WIDTH = 4, 2, 8
ALONE = [Span(0, 3), Span(3, 5), Span(8, 1), Span(9, 6)]
SHARED = [Span(0, 4), Span(4, 3, ((0, 4),)), Span(7, 1, ((0, 4),)), Span(8, 2), Span(10, 5, ((8, 2),))]
BRANCHING = [Span(0, 6), Span(6, 3, ((0, 4),)), Span(9, 2, ((0, 4), (6, 2))), Span(11, 4, ((0, 1),))]


def reference_flash(q: Tensor, k: Tensor, v: Tensor, rows: VarlenRows, scale: float, window: int | None) -> Tensor:
    """What the flash kernel computes: every row alone, its queries being the last of its tokens."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    outs = []
    for i in range(len(rows.cu_seqlens_q) - 1):
        mine, theirs = (slice(int(ends[i]), int(ends[i + 1])) for ends in (rows.cu_seqlens_q, rows.cu_seqlens_k))
        scores = torch.einsum("qhd,khd->hqk", q[mine], k[theirs]) * scale
        at = torch.arange(scores.shape[2])[None] - torch.arange(scores.shape[1])[:, None]
        late = scores.shape[2] - scores.shape[1]
        hidden = at > late
        if window is not None:
            hidden |= at <= late - window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        outs.append(torch.einsum("hqk,khd->qhd", weights, v[theirs]))
        assert scores.shape[1] <= rows.max_seqlen_q and scores.shape[2] <= rows.max_seqlen_k
    return torch.cat(outs)


def attended(spans: list[Span], window: int | None) -> list[Tensor]:
    """The output, and the gradients of queries, keys and values."""
    size = spans[-1].start + spans[-1].length
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(HEADS, size, WIDTH, generator=draw, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(KEY_HEADS, size, WIDTH, generator=draw, dtype=torch.float64).requires_grad_() for _ in "kv")
    out = Packed(spans).attend(0, q, k, v, 0.4, window)
    by = torch.randn(out.shape, generator=draw, dtype=torch.float64)
    return [out, *torch.autograd.grad((out * by).sum(), [q, k, v])]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("spans", [ALONE, SHARED, BRANCHING], ids=["alone", "shared", "branching"])
def test_varlen_rows_attend_as_padded_rows(
    spans: list[Span], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    padded = attended(spans, window)
    monkeypatch.setattr(varlen_attention, "is_supported", lambda q, v: True)
    monkeypatch.setattr(varlen_attention, "flash_attention", reference_flash)
    torch.testing.assert_close(attended(spans, window), padded, rtol=1e-9, atol=1e-12)


def test_rows_without_shared_prefixes_copy_no_keys() -> None:
    assert Packed(ALONE)._varlen.key_index is None
    assert Packed(SHARED)._varlen.key_index is not None


def test_cpu_and_full_precision_use_padded_attention() -> None:
    x = torch.zeros(2, 3, 8)
    assert not varlen_attention.is_supported(x, x) and not varlen_attention.is_supported(x.bfloat16(), x.bfloat16())
