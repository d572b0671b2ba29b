"""Skinny GEMMs agree with the product in full precision, and are deterministic."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.device import DEVICE, HALF, ON_GPU, needs_triton

pytestmark = needs_triton
# Rows, outputs, width: tiles that are full and not, several splits and one, several tiles of rows.
SHAPES = [(1, 70, 200), (8, 1280, 2048), (24, 1024, 1376), (33, 500, 4104), (64, 1536, 576), (64, 8250, 328)]
TALL = [(70, 500, 4104), (129, 640, 1376), (256, 8250, 328)]
PROGRAMS = 8  # instead of 132 for the interpreter, to whom each takes long
if not ON_GPU:
    SHAPES, TALL = [(1, 70, 200), (24, 128, 1376), (64, 650, 328)], [(70, 100, 1032), (256, 330, 328)]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "outs", "width"), SHAPES)
def test_a_gemm_with_swiglu_is_rounded_once(rows: int, outs: int, width: int, with_bias: bool) -> None:
    from coterie.kernels.skinny_gemm import swiglu_gemm

    draw = torch.Generator(DEVICE).manual_seed(rows)
    x = torch.randn(rows, width, device=DEVICE, generator=draw).to(HALF)
    w = (torch.randn(2 * outs, width, device=DEVICE, generator=draw) * width**-0.5).to(HALF)
    bias = torch.randn(2 * outs, device=DEVICE, generator=draw).to(HALF) if with_bias else None
    exact = F.linear(x.double(), w.double(), None if bias is None else bias.double())
    gate, up = exact.split(outs, dim=1)
    got = swiglu_gemm(x, w, bias)
    torch.testing.assert_close(got.double(), F.silu(gate) * up, rtol=2**-8, atol=1e-4)
    assert torch.equal(got, swiglu_gemm(x, w, bias))


@pytest.mark.parametrize(("rows", "outs", "width"), [*SHAPES, *TALL])
def test_split_k_partial_sums_add_up_to_the_product(
    rows: int, outs: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.kernels import skinny_gemm

    if not ON_GPU:
        monkeypatch.setattr(skinny_gemm, "PROGRAMS", PROGRAMS)
    draw = torch.Generator(DEVICE).manual_seed(rows)
    x = torch.randn(rows, width, device=DEVICE, generator=draw).to(HALF)
    w = (torch.randn(outs, width, device=DEVICE, generator=draw) * width**-0.5).to(HALF)
    got = skinny_gemm.split_k(x, w)
    assert got.shape[1:] == (rows, outs)
    torch.testing.assert_close(got.sum(dim=0).double(), F.linear(x.double(), w.double()), rtol=0, atol=1e-4)
    assert torch.equal(got, skinny_gemm.split_k(x, w))


@pytest.mark.parametrize("splits", [0, 1, 4])
def test_add_rms_norm_sums_split_k_partial_sums(splits: int) -> None:
    from coterie.kernels.decode_ops import add_rms_norm

    draw = torch.Generator(DEVICE).manual_seed(splits)
    norm = torch.nn.RMSNorm(576, eps=1e-5, device=DEVICE, dtype=HALF)
    norm.variance_epsilon = norm.eps
    x = torch.randn(5, 576, device=DEVICE, generator=draw)
    y = torch.randn(splits, 5, 576, device=DEVICE, generator=draw)
    want = x + y.sum(dim=0)
    got = add_rms_norm(x, y if splits else None, norm)
    torch.testing.assert_close(x, want, rtol=0, atol=1e-5)
    rstd = (want.pow(2).mean(dim=1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(got.float(), want * rstd, rtol=2**-7, atol=1e-3)
