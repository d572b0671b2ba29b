"""Options shared by the bench commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from coterie.bench.shapes import SHAPES
from coterie.files import check_output_path
from coterie.training.placement import pick_device

Shape = Annotated[str, typer.Option(help=f"Random weights of this shape: {', '.join(SHAPES)}.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each measurement is taken; the median counts.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Quick = Annotated[bool, typer.Option("--quick", help="A smoke test: a tiny shape and little work.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write all numbers to this JSON file.",
        callback=lambda file: check_output_path("--out", file),
    ),
]


def pick(device: str) -> torch.device:
    kind = device.partition(":")[0]  # cuda:1 is the second of several
    if kind not in ("auto", "cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        there = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu; PyTorch sees no GPU here"
        raise typer.BadParameter(f"--device {device}: it is {there}")
    return pick_device(device)


def known(shape: str) -> str:
    if shape not in SHAPES:
        raise typer.BadParameter(f"no shape is called {shape!r}; there are {', '.join(SHAPES)}")
    return shape


def half(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU; a CPU is not faster with it."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32
