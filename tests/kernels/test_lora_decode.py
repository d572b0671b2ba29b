"""Products with adapters for prompts and for steps: both say what the definition says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.models.lora import Joined, RoutedLinear
from coterie.models.lora_routing import Pair, Routing
from tests.kernels.device import DEVICE, HALF, needs_triton

pytestmark = needs_triton
IN, OUT, NAMES = 64, 96, ["a", "b", "c"]
WHO = [0, 0, 0, -1, -1, 2, 2, 1]


def layers(dtype: torch.dtype) -> list[RoutedLinear]:
    """Two layers that read the same; adapter b has a part in the second alone."""
    draw, routing = torch.Generator(DEVICE).manual_seed(0), Routing()

    def random(*shape: int, kind: torch.dtype) -> nn.Parameter:
        return nn.Parameter((torch.randn(*shape, generator=draw, device=DEVICE) / 4).to(kind), requires_grad=False)

    made = []
    for i in range(2):
        plain = nn.Linear(IN, OUT, bias=False)
        plain.weight = random(OUT, IN, kind=dtype)
        layer = RoutedLinear(plain, routing)
        for name, rank, scale in (("a", 4, 1.5), ("b", 8, 0.3), ("c", 16, 2.0)):
            if i or name != "b":
                wide = (random(rank, IN, kind=torch.float32), random(OUT, rank, kind=torch.float32))
                layer.pairs[name] = Pair(*wide, scale)
        made.append(layer)
    return made


@pytest.mark.parametrize("then", [None, "sum", "gate"])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_each_row_and_each_run_has_its_own_adapter(dtype: torch.dtype, then: str | None) -> None:
    from coterie.models.lora_decode import Stacked, refresh

    joined = Joined(layers(dtype))
    stacked = Stacked(joined, NAMES)
    refresh([stacked])
    x = torch.randn(len(WHO), IN, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE).to(dtype)

    def exact(row: Tensor, who: int) -> Tensor:
        outs = []
        for layer in joined.layers:
            out = row @ layer.weight.double().t()
            if who >= 0 and NAMES[who] in layer.pairs:
                own = layer.pairs[NAMES[who]]
                out = out + row @ own.down.double().t() @ own.up.double().t() * own.scale
            outs.append(out)
        return nn.functional.silu(outs[0]) * outs[1] if then == "gate" else torch.cat(outs)

    want = torch.stack([exact(row, who) for row, who in zip(x.double(), WHO, strict=True)])
    runs = [(0, 3, "a"), (3, 5, None), (5, 7, "c"), (7, 8, "b")]
    by_row = stacked.by_row(x, torch.tensor(WHO, dtype=torch.int32, device=DEVICE), then)  # type: ignore[arg-type]
    by_run = stacked.by_run(x, runs, then)  # type: ignore[arg-type]
    off = 1e-4 if dtype == torch.float32 else 0.05 * float(want.abs().mean())
    for got in (by_row, by_run):
        torch.testing.assert_close(got.double(), want, rtol=off, atol=off)


@pytest.mark.parametrize("gate", [False, True])
def test_what_an_adapter_is_added_to_may_come_in_parts(gate: bool) -> None:
    from coterie.kernels.decode_ops import lift

    draw = torch.Generator(DEVICE).manual_seed(0)
    wide = torch.randn(3, len(WHO), 2 * OUT + 24, generator=draw, device=DEVICE)
    up = torch.randn(2 * OUT, 24, generator=draw, device=DEVICE)
    spans = torch.tensor([[0, 8], [8, 12], [12, 24]], dtype=torch.int32, device=DEVICE)
    who = torch.tensor(WHO, dtype=torch.int32, device=DEVICE)
    got = lift(wide, up, spans, who, gate)
    torch.testing.assert_close(got, lift(wide.sum(dim=0), up, spans, who, gate), rtol=1e-4, atol=1e-4)
