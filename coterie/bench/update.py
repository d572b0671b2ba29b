"""Speed of an update, against padded training with Hugging Face and PEFT."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from coterie.algorithms.base import Algorithm
from coterie.bench.baselines import PaddedTraining
from coterie.bench.measure import Row, Timings, in_turn, median, show
from coterie.bench.options import Device, Out, Quick, Repeats, Shape, half, known, pick
from coterie.bench.shapes import adapters_on, base_of, batch_of, lengths, prompts, size_of
from coterie.config.settings import Learning
from coterie.learners.learner import TorchLearner
from coterie.types import Batch

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense half-precision operations a second
AT_ONCE = 8  # padded rows in a forward of the baseline


def update(
    shape: Shape = "135m",
    whole: Annotated[bool, typer.Option("--whole", help="Train all weights instead of an adapter.")] = False,
    rows: Annotated[int, typer.Option(min=8, help="Rows of a batch; in the second workload 8 per prompt.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens of the longest row; the shortest has a quarter.")] = 1024,
    microbatch: Annotated[int | None, typer.Option(min=1, help="Our learning.microbatch_tokens.")] = None,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Turn on our learning.checkpointing.")] = False,
    repeats: Repeats = 3,
    device: Device = "auto",
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Fit a ragged batch, and one of groups that share prompts: coterie bench update --shape 3b

    The baseline pads 8 rows at a time and takes no optimizer step; ours does. Padding tokens are not counted. The
    model FLOPs utilization (mfu) counts 6 operations per weight and token, 4 if the weights are frozen.
    """
    here, shape = pick(device), "tiny" if quick else known(shape)
    rows, length, repeats = (8, 64, 1) if quick else (rows, length, repeats)
    base = base_of(shape, here, torch.float32 if whole else half(here))
    adapter = None if whole else adapters_on(base, 1)[0]
    learning = Learning(microbatch_tokens=microbatch, checkpointing=checkpointing)
    learner = TorchLearner("policy", base, adapter, 1e-6, learning, steps=100)
    padded = PaddedTraining(shape, here, whole, AT_ONCE)
    operations = (6 if whole else 4) * size_of(base.model)
    work = {
        "ragged rows": ragged(rows, length, base.vocab_size),
        "8 samples of each prompt": groups(rows, length, base.vocab_size),
    }
    found = []
    for name, batch in work.items():
        weights = Algorithm().loss_weights(batch)
        mine, theirs = in_turn(
            lambda b=batch, w=weights: _fit(learner, b, w),  # type: ignore[misc]
            lambda b=batch, w=weights: padded.gradients(b, w),  # type: ignore[misc]
            repeats,
            here,
        )
        computed = sum(len(micro.tokens) for micro in learner.microbatches(batch))  # a prompt that rows share once
        found.append(Row(name, "TorchLearner.fit", "plain", mine, theirs, mfu(mine, operations * computed, here)))
    what = "all weights" if whole else "LoRA 16"
    weights_mb = sum(p.numel() * p.element_size() for p in base.model.parameters()) / 1e6
    title = f"update: {shape}, {what}, {rows} rows of up to {length} on {here.type}; weights {weights_mb:.0f} MB"
    show(title, found, out)


def _fit(learner: TorchLearner, batch: Batch, weights: torch.Tensor) -> int:
    learner.fit(batch, weights, Algorithm().loss)
    return len(batch)


def mfu(timings: Timings, operations: int, device: torch.device) -> dict[str, float]:
    """Model FLOPs utilization: the share of the GPU's peak; empty if the peak is not known."""
    if device.type != "cuda":
        return {}
    name = torch.cuda.get_device_name(device)
    peaks = [peak for known_name, peak in PEAKS.items() if known_name in name]
    return {"mfu": operations / median([t.seconds for t in timings]) / peaks[0]} if peaks else {}


def ragged(rows: int, longest: int, vocabulary: int) -> Batch:
    """Rows of a quarter of the longest to the longest; half of the shortest is prompt."""
    sizes = lengths(rows, longest)
    texts = prompts(rows, longest, vocabulary)
    pairs = [(text[: longest // 8], text[longest // 8 : size]) for text, size in zip(texts, sizes, strict=True)]
    return batch_of(pairs)


def groups(rows: int, longest: int, vocabulary: int) -> Batch:
    """Half prompt, half answer; eight answers to each prompt."""
    questions, answers = (prompts(rows, longest // 2, vocabulary, seed) for seed in (0, 1))
    return batch_of([(questions[i // 8], answers[i]) for i in range(rows)])
