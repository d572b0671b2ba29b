"""The Triton top-k/top-p mask, inside a CUDA graph, keeps the same tokens as the PyTorch reference."""

from __future__ import annotations

from itertools import cycle, product

import pytest
import torch

from coterie.kernels.top_p_top_k import top_k_top_p
from tests.kernels.device import DEVICE, ON_GPU, needs_triton

pytestmark = needs_triton
CUTS = list(product([0.0, 0.7, 1.0], [1.0, 0.95, 0.3, 1e-6], [0, 1, 50, 3000]))  # temperature, top_p, top_k
BLOCK = 512  # for the interpreter, with a vocabulary of 700: two loads
if not ON_GPU:  # it takes 0.1 s a row: every top_p with every top_k once
    CUTS = [(temperature, *cut[1:]) for temperature, cut in zip(cycle([0.7, 1.0, 0.0]), CUTS[:16], strict=False)]


@pytest.mark.parametrize("vocabulary", [700, 49152, 151936] if ON_GPU else [700])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_kernel_masks_the_same_tokens_as_the_reference(
    vocabulary: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.kernels import top_p_top_k_triton

    if not ON_GPU:
        monkeypatch.setattr(top_p_top_k_triton, "BLOCK", BLOCK)
    temperature, top_p, top_k = (torch.tensor(column, device=DEVICE) for column in zip(*CUTS, strict=True))
    logits = scale * torch.randn(
        len(CUTS), vocabulary, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(vocabulary)
    )
    logits[::3] = logits[::3].round(decimals=1)  # many ties
    state = torch.zeros(len(CUTS), 8, dtype=torch.int32, device=DEVICE)
    floats = state.view(torch.float32)
    floats[:, 4], floats[:, 5], state[:, 6] = temperature, top_p, top_k.int()
    state[1, 1] = -1  # idle
    want, got = top_k_top_p(logits, top_p, top_k, temperature), logits.clone()
    want[1] = logits[1]
    top_p_top_k_triton.top_k_top_p(got, state, 5, 6, 4)
    parted = want.isinf() != got.isinf()
    # Sums are rounded: one level of ties at the threshold may go either way.
    border = torch.where(parted, logits, torch.nan)
    assert all(len(row[~row.isnan()].unique()) <= 1 for row in border)
    assert torch.equal(got[~parted], want[~parted])
