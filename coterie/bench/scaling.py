"""Two checks of scaling: the time per token with many queued rows, and memory over many training steps."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from coterie.bench.measure import Row, in_turn, median, show
from coterie.bench.options import Device, Out, Quick, Repeats, Shape, half, known, pick
from coterie.bench.sampling import count_tokens, sample_all
from coterie.bench.shapes import base_of, prompts
from coterie.bench.training_loop import Loop
from coterie.engines.native.engine import NativeEngine

WAITING = (32, 64, 128, 256, 512)
SETTLED = 10  # steps after which memory should not grow any more
LONGEST = 5  # every fifth step has the maximum length


def scaling(
    shape: Shape = "135m",
    at_once: Annotated[int, typer.Option("--rows", min=1, help="Rows decoded at once: engine.rows.")] = 32,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 128,
    steps: Annotated[int, typer.Option(min=2, help="Training steps in which memory is watched.")] = 100,
    repeats: Repeats = 3,
    device: Device = "auto",
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Queue more and more rows; train for many steps and watch memory: coterie bench scaling --shape 3b"""
    here, shape = pick(device), "tiny" if quick else known(shape)
    waiting = WAITING[:2] if quick else WAITING
    if quick:
        at_once, prompt, max_tokens, steps, repeats = 16, 8, 4, 3, 1
    found = queued_rows(shape, here, at_once, waiting, (prompt, max_tokens), repeats)
    taken = memory(shape, here, prompt, max_tokens, steps)
    settled = min(SETTLED, steps // 2)
    title = f"scaling: {shape}, rows of {prompt} + {max_tokens} tokens, {at_once} at once, on {here.type}"
    show(title, found, out, memory=taken)
    print(f"  training: {taken[settled - 1]:.0f} MB after {settled} steps, {taken[-1]:.0f} after {steps}")


def queued_rows(
    shape: str, device: torch.device, at_once: int, waiting: Sequence[int], sizes: tuple[int, int], repeats: int
) -> list[Row]:
    """Time per token for each number of queued rows, against the smallest number."""
    base = base_of(shape, device, half(device))
    engine = NativeEngine(base, {"policy": None}, at_once)
    requests = prompts(max(waiting), sizes[0], base.vocab_size)

    def sampled(rows: int) -> int:
        limits = [sizes[1]] * rows
        samples = sample_all(engine, ["policy"], requests[:rows], limits)
        engine.clear()
        return count_tokens([sample.ids for sample in samples], limits)

    found = []
    for rows in waiting:
        mine, few = in_turn(lambda n=rows: sampled(n), lambda: sampled(waiting[0]), repeats, device)  # type: ignore[misc]
        cost = 1e6 / median([timing.speed for timing in mine])
        found.append(Row(f"{rows} rows wait", "native", f"{waiting[0]} rows", mine, few, {"µs a token": cost}))
    return found


def memory(shape: str, device: torch.device, prompt: int, most: int, steps: int) -> list[float]:
    """Memory reserved by the process after each training step, in MB.

    Lengths vary from step to step, which can fragment the allocator. Every fifth step has the maximum length, so that
    its need does not look like growth.
    """
    loop, draw = Loop(shape, device, 2, prompt, most), random.Random(0)
    taken = []
    for n in range(steps):
        shorter = draw.randint(-(-prompt // 4), prompt), draw.randint(-(-most // 4), most)
        loop.set_lengths(*(shorter if n % LONGEST else (prompt, most)), seed=n)
        loop.step()
        gc.collect()
        taken.append(reserved(device))
    return taken


def reserved(device: torch.device) -> float:
    """On a GPU the allocator's reserved memory, which grows with fragmentation; on a CPU the resident set."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) / 1e6
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 / 1e6 if statm.exists() else 0.0
