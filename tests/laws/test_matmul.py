"""Matmuls on a CPU equal `F.linear` for every number of rows and every memory layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coterie.kernels.matmul import linear, linear_inference


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 64, 95, 96, 97, 200])
@pytest.mark.parametrize(("width", "outs"), [(24, 64), (64, 24), (24, 7)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_inference_is_linear(rows: int, width: int, outs: int, biased: bool) -> None:
    draw = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, width, generator=draw), torch.randn(outs, width, generator=draw)
    bias = torch.randn(outs, generator=draw) if biased else None
    expected = F.linear(x, weight, bias)
    for same in (x, x.t().contiguous().t(), torch.cat([x, x], dim=1)[:, :width]):
        torch.testing.assert_close(linear_inference(same, weight, bias), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(same, x)


def test_no_rows_give_no_rows() -> None:
    with torch.no_grad():
        assert linear(torch.zeros(2, 0, 24), torch.zeros(7, 24)).shape == (2, 0, 7)
