"""Rollout speed of the native engine, against Hugging Face generate, its continuous batching and vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated

import torch
import typer

from coterie.bench.baselines import Vllm, continuous, generate
from coterie.bench.conversations import conversation_rows
from coterie.bench.measure import Row, Way, in_turn, show
from coterie.bench.options import Device, Out, Quick, Repeats, half, known, pick
from coterie.bench.sampling import Ids, count_tokens, logprob_gap, sample_all
from coterie.bench.shapes import SHAPES, base_of, lengths, prompts, shaped
from coterie.engines.native.engine import NativeEngine
from coterie.models.base import Base

COMPARED = (8, 32)  # rows and tokens, in full precision
ROUNDS = 4  # of ragged answers, so that requests are queued


def rollout(
    model: Annotated[str, typer.Option(help="A model as in a config: demo, a folder, a hub name.")] = "demo",
    shape: Annotated[
        str | None, typer.Option(help=f"Random weights of this shape instead of a model: {', '.join(SHAPES)}.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="With --shape: prompts at the same time.")] = 64,
    prompt: Annotated[int, typer.Option(min=1, help="With --shape: tokens of each prompt.")] = 256,
    max_tokens: Annotated[
        int | None, typer.Option(min=4, help="The longest answer.  [default: 96; with --shape 256]")
    ] = None,
    others: Annotated[
        bool, typer.Option("--others", help="With --shape: also against continuous batching, and vLLM if installed.")
    ] = False,
    repeats: Repeats = 3,
    device: Device = "auto",
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Sample the same tokens with the native engine and with generate: coterie bench rollout --shape 3b --rows 256

    A model answers chats. With --shape, a model with random weights answers random prompts in three workloads: all
    answers of the longest length; lengths from a quarter of it to all of it; and four times as many of the latter, with
    `--rows` in a batch.
    """
    here = pick(device)
    if shape is None and not quick:
        found = conversation_rows(model, here, max_tokens or 96, repeats)
        show(f"rollout: {model} on {here.type}, {torch.get_num_threads()} threads", found, out)
        return
    shape, max_tokens = known(shape or "tiny"), max_tokens or 256
    if quick:
        shape, rows, prompt, max_tokens, repeats = "tiny", 4, 16, 16, 1
    found = shaped_rows(shape, here, rows, prompt, max_tokens, repeats, others)
    show(f"rollout: {shape}, {rows} rows of {prompt} + {max_tokens} tokens on {here.type}", found, out)


def shaped_rows(
    shape: str, device: torch.device, rows: int, prompt: int, max_tokens: int, repeats: int, others: bool
) -> list[Row]:
    same = same_greedy(shape, device, prompt)  # first: an engine allocates the free memory
    bench = Shaped(shape, device, rows, prompt)
    work = {
        "fixed lengths": [max_tokens] * rows,
        "ragged lengths": lengths(rows, max_tokens),
        f"{ROUNDS * rows} ragged, {rows} at a time": lengths(ROUNDS * rows, max_tokens),
    }
    found = [bench.compare(name, limits, repeats) for name, limits in work.items()]
    gap = logprob_gap(bench.engine, "policy", bench.prompts[:rows], max_tokens)
    found[0].notes = {"logprob_gap": gap, "greedy as generate's": same}
    if others:
        found += bench.others(work["fixed lengths"], repeats)
    return found


class Shaped:
    """Random prompts of one length for random weights of a shape."""

    def __init__(self, shape: str, device: torch.device, rows: int, prompt: int) -> None:
        self.shape, self.device, self.rows = shape, device, rows
        self.base = base_of(shape, device, half(device))
        self.engine = NativeEngine(self.base, {"policy": None}, rows)
        self.baseline = shaped(shape, device, half(device))
        self.prompts = prompts(ROUNDS * rows, prompt, self.base.vocab_size)

    def requests(self, limits: Sequence[int]) -> list[Ids]:
        """One prompt per limit."""
        return self.prompts[: len(limits)]

    def ours(self, limits: Sequence[int]) -> int:
        samples = sample_all(self.engine, ["policy"], self.requests(limits), limits)
        self.engine.clear()
        return count_tokens([sample.ids for sample in samples], limits)

    def theirs(self, limits: Sequence[int]) -> int:
        """`generate` has no queue: it gets batches of `rows` prompts, the next when the longest row is done."""
        samples = []
        for at in range(0, len(limits), self.rows):
            part = slice(at, at + self.rows)
            samples += generate(self.baseline, self.requests(limits)[part], limits[part])
        return count_tokens(samples, limits)

    def compare(self, work: str, limits: Sequence[int], repeats: int) -> Row:
        mine, baselines = in_turn(lambda: self.ours(limits), lambda: self.theirs(limits), repeats, self.device)
        return Row(work, "native", "generate", mine, baselines)

    def others(self, limits: Sequence[int], repeats: int) -> list[Row]:
        mine, theirs = in_turn(
            lambda: self.ours(limits),
            lambda: count_tokens(continuous(self.baseline, self.requests(limits), limits), limits),
            repeats,
            self.device,
        )
        found = [Row("fixed lengths", "native", "generate_batch", mine, theirs)]
        vllm: Way | None = None
        if find_spec("vllm") is not None:
            engine = Vllm(self.shape)
            vllm = lambda: count_tokens(engine(self.requests(limits), limits), limits)  # noqa: E731
        mine, theirs = in_turn(lambda: self.ours(limits), vllm, repeats, self.device)
        return [*found, Row("fixed lengths", "native", "vLLM", mine, theirs)]


def same_greedy(shape: str, device: torch.device, prompt: int) -> str:
    """How many greedy answers equal those of `generate`, in float32 on the same weights."""
    rows, length = COMPARED
    base: Base = base_of(shape, device, torch.float32)
    requests = prompts(rows, prompt, base.vocab_size)
    engine = NativeEngine(base, {"policy": None}, rows)
    ours = sample_all(engine, ["policy"], requests, [length] * rows, temperature=0.0)
    with base.with_own_attention():
        theirs = generate(base.model, requests, [length] * rows, sample=False)
    return f"{sum(a.ids == b for a, b in zip(ours, theirs, strict=True))} of {rows}"
