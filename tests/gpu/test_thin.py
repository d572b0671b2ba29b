"""Laws of the product with a gate: it says what the product in full precision says, twice the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
SHAPES = [(1, 70, 200), (8, 1280, 2048), (24, 1024, 1376), (33, 500, 4097), (64, 1536, 576), (64, 8250, 328)]
HALF = torch.bfloat16


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "outs", "width"), SHAPES)
def test_a_product_with_a_gate_is_the_gate_of_the_rounded_product(
    rows: int, outs: int, width: int, with_bias: bool
) -> None:
    from coterie.models.thin import gate_product

    draw = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(rows, width, device="cuda", generator=draw).to(HALF)
    w = (torch.randn(2 * outs, width, device="cuda", generator=draw) * width**-0.5).to(HALF)
    bias = torch.randn(2 * outs, device="cuda", generator=draw).to(HALF) if with_bias else None
    exact = F.linear(x.double(), w.double(), None if bias is None else bias.double())
    gate, up = exact.to(HALF).split(outs, dim=1)
    got = gate_product(x, w, bias)
    # Either factor may have been rounded the other way.
    torch.testing.assert_close(got.float(), (F.silu(gate) * up).float(), rtol=2**-6, atol=2e-3)
    assert torch.equal(got, gate_product(x, w, bias))
