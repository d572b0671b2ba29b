"""The Triton training kernels (RMSNorm, SwiGLU, RoPE) agree with their PyTorch reference, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.kernels import training_ops
from coterie.kernels.matmul import LoraDelta
from tests.kernels.device import DEVICE, HALF, needs_triton

pytestmark = needs_triton


def near(ours: Tensor, theirs: Tensor) -> None:
    exact = ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=1e-5 if exact else 0.04, rtol=1e-5 if exact else 0.02)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("runs", [[], [(3, 37, (0, 1))], [(0, 5, (0,)), (5, 20, (1, 0)), (30, 33, (1,))]])
def test_swiglu_is_rounded_once_after_all_lora_deltas(
    runs: list[tuple[int, int, tuple[int, ...]]], dtype: torch.dtype
) -> None:
    from coterie.kernels import training_ops_triton

    draw = torch.Generator(DEVICE).manual_seed(0)
    width, rank = 700, 20
    gate_up = torch.randn(37, 2 * width, generator=draw, device=DEVICE)
    deltas = []
    for start, end, halves in runs:
        low = torch.randn(end - start, 2 * rank, generator=draw, device=DEVICE).to(dtype)
        for half in halves:
            up = torch.randn(width, rank, generator=draw, device=DEVICE).to(dtype)
            outs, columns = (slice(half * size, (half + 1) * size) for size in (width, rank))
            deltas.append(LoraDelta(slice(start, end), outs, low[:, columns], up))
    wide = gate_up.double()
    for tokens, outs, low, up in deltas:
        wide[tokens, outs] += low.double() @ up.double().t()
    gate, up = wide.chunk(2, dim=1)
    got, summed = training_ops_triton.swiglu(gate_up, deltas, dtype)
    assert got.dtype == summed.dtype == dtype
    off = max(torch.finfo(dtype).eps / 2, 1e-5)
    torch.testing.assert_close(got.double(), torch.nn.functional.silu(gate) * up, rtol=off, atol=1e-4)
    torch.testing.assert_close(summed.double(), wide, rtol=off, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_kernels_agree_with_the_reference(dtype: torch.dtype) -> None:
    from coterie.kernels import training_ops_triton

    draw = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=draw, device=DEVICE).to(kind)

    for x, weight, grad in (
        (random(37, 576, kind=torch.float32), random(576), random(37, 576)),
        (random(37, 7, 24)[:, :5], random(24), random(37, 5, 24)),
    ):
        (ours, rstd), (theirs, same) = (
            how.rms_norm(x, weight, 1e-5, dtype) for how in (training_ops_triton, training_ops)
        )
        near(ours, theirs)
        near(
            training_ops_triton.rms_norm_backward(grad, x, weight, rstd),
            training_ops.rms_norm_backward(grad, x, weight, same),
        )
        y = random(*x.shape, kind=x.dtype)
        (total, *ours), (reference_total, *theirs) = (
            how.add_rms_norm(x, y, weight, 1e-5, dtype) for how in (training_ops_triton, training_ops)
        )
        near(total, reference_total)
        near(ours[0], theirs[0])
        near(
            training_ops_triton.rms_norm_backward(grad, x, weight, rstd, y),
            training_ops.rms_norm_backward(grad, x, weight, same, y),
        )
    gate_up, grad = random(37, 2 * 1500), random(37, 1500)
    near(training_ops_triton.swiglu_backward(grad, gate_up), training_ops.swiglu_backward(grad, gate_up))
    x, cos, sin = random(37, 12, 64)[:, :9], random(37, 64, kind=torch.float32), random(37, 64, kind=torch.float32)
    for inverse in (False, True):
        near(training_ops_triton.rope(x, cos, sin, inverse), training_ops.rope(x, cos, sin, inverse))
