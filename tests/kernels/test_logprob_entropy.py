"""The Triton log-prob and entropy kernels agree with the PyTorch reference, forward and backward."""

from __future__ import annotations

import pytest
import torch

from coterie.kernels import logprob_entropy
from tests.kernels.device import DEVICE, HALF, needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("vocabulary", [11, 4096, 9001])
def test_kernels_agree_with_the_reference(vocabulary: int, dtype: torch.dtype) -> None:
    from coterie.kernels import logprob_entropy_triton

    draw = torch.Generator(DEVICE).manual_seed(vocabulary)
    logits = (3 * torch.randn(5, vocabulary, generator=draw, device=DEVICE)).to(dtype)
    tokens = torch.randint(0, vocabulary, (5,), generator=draw, device=DEVICE)
    factor, grad_logprob, grad_entropy = torch.rand(3, 5, generator=draw, device=DEVICE) + 0.5
    found = [how.forward(logits, tokens, factor) for how in (logprob_entropy_triton, logprob_entropy)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    _, entropy, logsumexp = found[1]
    for second in (None, grad_entropy):
        arguments = logits, tokens, factor, logsumexp, entropy, grad_logprob, second, torch.float32
        torch.testing.assert_close(
            logprob_entropy_triton.backward(*arguments), logprob_entropy.backward(*arguments), rtol=1e-4, atol=1e-6
        )
