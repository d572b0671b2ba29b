"""Per-row LoRA in decode and per-segment LoRA in prefill agree with the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.models.lora import FusedLinear, LoraLinear
from coterie.models.lora_routing import LoraPair, Routing
from tests.kernels.device import DEVICE, HALF, needs_triton

pytestmark = needs_triton
IN, OUT, NAMES = 64, 96, ["a", "b", "c"]
ADAPTERS = [0, 0, 0, -1, -1, 2, 2, 1]


def layers(dtype: torch.dtype) -> list[LoraLinear]:
    """Two layers that read the same; adapter b is on the second alone."""
    draw, routing = torch.Generator(DEVICE).manual_seed(0), Routing()

    def random(*shape: int, kind: torch.dtype) -> nn.Parameter:
        return nn.Parameter((torch.randn(*shape, generator=draw, device=DEVICE) / 4).to(kind), requires_grad=False)

    layers = []
    for i in range(2):
        plain = nn.Linear(IN, OUT, bias=False)
        plain.weight = random(OUT, IN, kind=dtype)
        layer = LoraLinear(plain, routing)
        for name, rank, scale in (("a", 4, 1.5), ("b", 8, 0.3), ("c", 16, 2.0)):
            if i or name != "b":
                wide = (random(rank, IN, kind=torch.float32), random(OUT, rank, kind=torch.float32))
                layer.pairs[name] = LoraPair(*wide, scale)
        layers.append(layer)
    return layers


@pytest.mark.parametrize("epilogue", [None, "residual", "swiglu"])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_each_row_and_each_segment_uses_its_own_adapter(dtype: torch.dtype, epilogue: str | None) -> None:
    from coterie.models.lora_decode import StackedLora, refresh

    fused = FusedLinear(layers(dtype))
    stacked = StackedLora(fused, NAMES)
    refresh([stacked])
    x = torch.randn(len(ADAPTERS), IN, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE).to(dtype)

    def exact(row: Tensor, who: int) -> Tensor:
        outs = []
        for layer in fused.layers:
            out = row @ layer.weight.double().t()
            if who >= 0 and NAMES[who] in layer.pairs:
                own = layer.pairs[NAMES[who]]
                out = out + row @ own.down.double().t() @ own.up.double().t() * own.scale
            outs.append(out)
        return nn.functional.silu(outs[0]) * outs[1] if epilogue == "swiglu" else torch.cat(outs)

    want = torch.stack([exact(row, who) for row, who in zip(x.double(), ADAPTERS, strict=True)])
    runs = [(0, 3, "a"), (3, 5, None), (5, 7, "c"), (7, 8, "b")]
    per_row = stacked.per_row(x, torch.tensor(ADAPTERS, dtype=torch.int32, device=DEVICE), epilogue)  # type: ignore[arg-type]
    per_segment = stacked.per_segment(x, runs, epilogue)  # type: ignore[arg-type]
    off = 1e-4 if dtype == torch.float32 else 0.05 * float(want.abs().mean())
    for got in (per_row, per_segment):
        torch.testing.assert_close(got.double(), want, rtol=off, atol=off)


@pytest.mark.parametrize("swiglu", [False, True])
def test_lora_deltas_are_added_to_split_k_partial_sums(swiglu: bool) -> None:
    from coterie.kernels.decode_ops import lora_delta

    draw = torch.Generator(DEVICE).manual_seed(0)
    wide = torch.randn(3, len(ADAPTERS), 2 * OUT + 24, generator=draw, device=DEVICE)
    up = torch.randn(2 * OUT, 24, generator=draw, device=DEVICE)
    spans = torch.tensor([[0, 8], [8, 12], [12, 24]], dtype=torch.int32, device=DEVICE)
    who = torch.tensor(ADAPTERS, dtype=torch.int32, device=DEVICE)
    got = lora_delta(wide, up, spans, who, swiglu)
    torch.testing.assert_close(got, lora_delta(wide.sum(dim=0), up, spans, who, swiglu), rtol=1e-4, atol=1e-4)
