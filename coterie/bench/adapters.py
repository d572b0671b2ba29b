"""The cost of several LoRA adapters in one batch, against one adapter."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.bench.measure import Row, in_turn, show, spread
from coterie.bench.options import Device, Out, Quick, Repeats, Shape, half, known, pick
from coterie.bench.sampling import count_tokens, sample_all
from coterie.bench.shapes import adapters_on, base_of, prompts
from coterie.engines.native.engine import NativeEngine

SEVERAL = (4, 8)


def adapters(
    shape: Shape = "135m",
    rows: Annotated[int, typer.Option(min=8, help="Prompts at the same time.")] = 64,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 256,
    repeats: Repeats = 5,
    device: Device = "auto",
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Sample with 4 and 8 adapters in one batch, and with one: coterie bench adapters --shape 3b"""
    here, shape = pick(device), "tiny" if quick else known(shape)
    if quick:
        rows, prompt, max_tokens, repeats = 8, 16, 16, 1
    base = base_of(shape, here, half(here))
    names = [adapter.name for adapter in adapters_on(base, max(SEVERAL))]
    requests, limits = prompts(rows, prompt, base.vocab_size), [max_tokens] * rows
    engines = {n: NativeEngine(base, {name: name for name in names[:n]}, rows) for n in (1, *SEVERAL)}

    def sampled(by: NativeEngine, policies: list[str]) -> int:
        samples = sample_all(by, policies, requests, limits)
        by.clear()
        return count_tokens([sample.ids for sample in samples], limits)

    found = []
    for several in SEVERAL:
        mixed, one = in_turn(
            lambda n=several: sampled(engines[n], names[:n]),  # type: ignore[misc]
            lambda: sampled(engines[1], names[:1]),
            repeats,
            here,
        )
        times = [a.seconds / b.seconds for a, b in zip(mixed, one or (), strict=True)]
        found.append(Row(f"{several} adapters", "mixed", "one", mixed, one, {"times the time": spread(times)}))
    show(f"adapters: {shape}, {rows} rows of {prompt} + {max_tokens} tokens on {here.type}", found, out)
