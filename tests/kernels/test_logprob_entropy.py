"""A law of the learner's kernels: what they read and blame is what the formulas do."""

from __future__ import annotations

import pytest
import torch

from coterie.kernels import logprob_entropy
from tests.kernels.device import DEVICE, HALF, needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("vocabulary", [11, 4096, 9001])
def test_kernels_read_and_blame_as_the_formulas_do(vocabulary: int, dtype: torch.dtype) -> None:
    from coterie.kernels import logprob_entropy_triton

    draw = torch.Generator(DEVICE).manual_seed(vocabulary)
    logits = (3 * torch.randn(5, vocabulary, generator=draw, device=DEVICE)).to(dtype)
    tokens = torch.randint(0, vocabulary, (5,), generator=draw, device=DEVICE)
    factor, by_logprob, by_entropy = torch.rand(3, 5, generator=draw, device=DEVICE) + 0.5
    read = [how.forward(logits, tokens, factor) for how in (logprob_entropy_triton, logprob_entropy)]
    for ours, theirs in zip(*read, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    _, entropy, log_sum = read[1]
    for blame in (None, by_entropy):
        given = logits, tokens, factor, log_sum, entropy, by_logprob, blame, torch.float32
        torch.testing.assert_close(
            logprob_entropy_triton.backward(*given), logprob_entropy.backward(*given), rtol=1e-4, atol=1e-6
        )
