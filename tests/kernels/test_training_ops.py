"""The learner's kernels on a GPU do what their formulas do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.kernels import training_ops
from tests.kernels.device import DEVICE, HALF, needs_triton

pytestmark = needs_triton


def near(ours: Tensor, theirs: Tensor) -> None:
    exact = ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=1e-5 if exact else 0.04, rtol=1e-5 if exact else 0.02)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("runs", [[], [(3, 37, (0, 1))], [(0, 5, (0,)), (5, 20, (1, 0)), (30, 33, (1,))]])
def test_a_gate_is_rounded_once_after_all_that_adapters_add(
    runs: list[tuple[int, int, tuple[int, ...]]], dtype: torch.dtype
) -> None:
    from coterie.kernels import training_ops_triton

    draw = torch.Generator(DEVICE).manual_seed(0)
    width, rank = 700, 20
    both = torch.randn(37, 2 * width, generator=draw, device=DEVICE)
    lifts = []
    for start, end, halves in runs:
        low = torch.randn(end - start, 2 * rank, generator=draw, device=DEVICE).to(dtype)
        for half in halves:
            up = torch.randn(width, rank, generator=draw, device=DEVICE).to(dtype)
            outs, columns = (slice(half * size, (half + 1) * size) for size in (width, rank))
            lifts.append(training_ops.Lift(slice(start, end), outs, low[:, columns], up))
    wide = both.double()
    for tokens, outs, low, up in lifts:
        wide[tokens, outs] += low.double() @ up.double().t()
    gate, up = wide.chunk(2, dim=1)
    got, kept = training_ops_triton.gated(both, lifts, dtype)
    assert got.dtype == kept.dtype == dtype
    off = max(torch.finfo(dtype).eps / 2, 1e-5)
    torch.testing.assert_close(got.double(), torch.nn.functional.silu(gate) * up, rtol=off, atol=1e-4)
    torch.testing.assert_close(kept.double(), wide, rtol=off, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_kernels_are_their_formulas(dtype: torch.dtype) -> None:
    from coterie.kernels import training_ops_triton

    draw = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=draw, device=DEVICE).to(kind)

    for x, weight, slope in (
        (random(37, 576, kind=torch.float32), random(576), random(37, 576)),
        (random(37, 7, 24)[:, :5], random(24), random(37, 5, 24)),
    ):
        (ours, size), (theirs, same) = (how.norm(x, weight, 1e-5, dtype) for how in (training_ops_triton, training_ops))
        near(ours, theirs)
        near(training_ops_triton.norm_back(slope, x, weight, size), training_ops.norm_back(slope, x, weight, same))
        y = random(*x.shape, kind=x.dtype)
        (total, *ours), (sum_of_both, *theirs) = (
            how.add_norm(x, y, weight, 1e-5, dtype) for how in (training_ops_triton, training_ops)
        )
        near(total, sum_of_both)
        near(ours[0], theirs[0])
        near(
            training_ops_triton.norm_back(slope, x, weight, size, y), training_ops.norm_back(slope, x, weight, same, y)
        )
    both, slope = random(37, 2 * 1500), random(37, 1500)
    near(training_ops_triton.gated_back(slope, both), training_ops.gated_back(slope, both))
    x, cos, sin = random(37, 12, 64)[:, :9], random(37, 64, kind=torch.float32), random(37, 64, kind=torch.float32)
    for back in (False, True):
        near(training_ops_triton.turned(x, cos, sin, back), training_ops.turned(x, cos, sin, back))
