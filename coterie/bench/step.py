"""Speed of a whole training step, against TRL's GRPOTrainer."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from coterie.bench.baselines import trl_steps
from coterie.bench.measure import Row, in_turn, show
from coterie.bench.options import Device, Out, Quick, Repeats, Shape, known, pick
from coterie.bench.training_loop import SAMPLES, Loop
from coterie.config.settings import Learning


def step(
    shape: Shape = "135m",
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts; 8 samples of each.")] = 8,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 256,
    microbatch: Annotated[int | None, typer.Option(min=1, help="Our learning.microbatch_tokens.")] = None,
    repeats: Repeats = 3,
    device: Device = "auto",
    quick: Quick = False,
    out: Out = None,
) -> None:
    """One GRPO step with LoRA: rollout, advantages, update; against TRL's GRPOTrainer: coterie bench step --shape 3b"""
    here, shape = pick(device), "tiny" if quick else known(shape)
    if quick:
        prompts, prompt, max_tokens, repeats = 2, 16, 8, 1
    loop = Loop(shape, here, prompts, prompt, max_tokens, Learning(microbatch_tokens=microbatch))
    mine, _ = in_turn(loop.step, None, repeats, here)
    theirs = None
    if find_spec("trl") is not None:
        theirs = trl_steps(shape, here, prompts, prompt, max_tokens, repeats)
    row = Row(f"{prompts} prompts × {SAMPLES} samples", "coterie", "TRL GRPOTrainer", mine, theirs)
    show(f"step: {shape}, GRPO, LoRA 16, {prompt} + {max_tokens} tokens on {here.type}", [row], out)
