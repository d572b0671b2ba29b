"""The learner's kernels on a GPU do what their formulas do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.models import formulas

pytestmark = pytest.mark.gpu


def near(ours: Tensor, theirs: Tensor) -> None:
    exact = ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=1e-5 if exact else 0.04, rtol=1e-5 if exact else 0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_are_their_formulas(dtype: torch.dtype) -> None:
    from coterie.models import slopes

    draw = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=draw, device="cuda").to(kind)

    for x, weight, slope in (
        (random(37, 576, kind=torch.float32), random(576), random(37, 576)),
        (random(37, 7, 24)[:, :5], random(24), random(37, 5, 24)),
    ):
        (ours, size), (theirs, same) = (how.norm(x, weight, 1e-5, dtype) for how in (slopes, formulas))
        near(ours, theirs)
        near(slopes.norm_back(slope, x, weight, size), formulas.norm_back(slope, x, weight, same))
    both, slope = random(37, 2 * 1500), random(37, 1500)
    near(slopes.gated(both), formulas.gated(both))
    near(slopes.gated_back(slope, both), formulas.gated_back(slope, both))
    x, cos, sin = random(37, 12, 64)[:, :9], random(37, 64, kind=torch.float32), random(37, 64, kind=torch.float32)
    for back in (False, True):
        near(slopes.turned(x, cos, sin, back), formulas.turned(x, cos, sin, back))
