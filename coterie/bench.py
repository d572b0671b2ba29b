"""Measures speed as ratios against a peer, in one run: same model, same prompts, same tokens."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import rich
import torch
import typer
from transformers import LogitsProcessorList

from coterie.bench_games import games
from coterie.console import table
from coterie.engines.hf import Draw
from coterie.engines.native.engine import NativeEngine
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.store import load_model, resolve
from coterie.types import Message, Sampling

app = typer.Typer(help="Measure speed against a peer, in one run.", no_args_is_help=True)
app.command()(games)
Ids = tuple[int, ...]
Talk = list[Message]

SUBJECTS = ("a fox", "the sea", "bread", "seven hills", "a clock", "winter", "an old map", "the moon")
REQUESTS = (
    "Name one thing that {0} needs. One word.",
    "What colour is {0}? Answer in one short sentence, and do not explain why.",
    "Write two sentences about {0}. Then say whether you would rather be {0} or a stone, and give your reason.",
    "I am preparing a talk for my class and must say something about {0} that nobody there has heard before. The "
    "class is young, the room is loud, and I have two minutes. List three points that I could make, each in a line.",
)


@app.callback()
def _bench() -> None:
    """Each measurement is a command of its own."""


app.command()(games)


@dataclass(frozen=True)
class Timing:
    """One way of doing one workload."""

    seconds: float
    tokens: int
    megabytes: float  # resident memory at its peak, over what was there before


@app.command()
def rollout(
    model: Annotated[str, typer.Option(help="A model as in a config: demo, a folder, a hub name.")] = "demo",
    repeats: Annotated[int, typer.Option(help="How often each measurement is taken; the median counts.")] = 3,
    max_tokens: Annotated[int, typer.Option(help="The longest answer.")] = 96,
    out: Annotated[Path | None, typer.Option(help="Write all numbers to this JSON file.")] = None,
) -> None:
    """Sample tokens with the native engine and with Hugging Face generate: coterie bench rollout --repeats 3"""
    base = Base(resolve(model))
    names = ("a", "b", "c", "d")
    for seed, name in enumerate(names):  # they start as no change, so the tokens stay the same
        Adapter(name, 16, 32.0, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")).attach(
            base.layers, seed
        )
    bench = Bench(base, NativeEngine(base, {"base": None} | {name: name for name in names}), max_tokens)
    ragged: list[Talk] = [[{"role": "user", "content": REQUESTS[i % 4].format(SUBJECTS[i // 4])}] for i in range(32)]
    groups = [talk for talk in ragged[3::8] for _ in range(8)]
    results = {
        "32 ragged prompts": bench.compare(ragged, 0.0, repeats),
        "4 prompts × 8 samples": bench.compare(groups, 1.0, repeats),
        "16 conversations of 3 turns": bench.compare(ragged[:16], 0.0, repeats, turns=3),
        "4 adapters mixed, and none": bench.adapters(ragged, names, repeats),
    }
    rich.print(table(f"rollout: {model} on {base.device.type}, {torch.get_num_threads()} threads", rows(results)))
    if out is not None:
        out.write_text(json.dumps({k: {n: [asdict(t) for t in v] for n, v in r.items()} for k, r in results.items()}))


def rows(results: dict[str, dict[str, list[Timing]]]) -> list[dict[str, Any]]:
    """A line per workload: medians, and the ratio with its spread over the repeats."""
    lines = []
    for workload, (ours, peer) in ((w, tuple(r.items())) for w, r in results.items()):
        ratios = [b.seconds / a.seconds for a, b in zip(ours[1], peer[1], strict=True)]
        lines.append(
            {
                "workload": workload,
                "against": f"{ours[0]} / {peer[0]}",
                "tok/s": f"{_median(ours[1], lambda t: t.tokens / t.seconds)} / "
                f"{_median(peer[1], lambda t: t.tokens / t.seconds)}",
                "peak MB": f"{_median(ours[1], lambda t: t.megabytes)} / {_median(peer[1], lambda t: t.megabytes)}",
                "times as fast": f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
            }
        )
    return lines


def _median(timings: list[Timing], number: Callable[[Timing], float]) -> int:
    return round(statistics.median(number(t) for t in timings))


class Bench:
    """The two ways to sample the same tokens: our engine, and `generate` with our sampler."""

    def __init__(self, base: Base, engine: NativeEngine, max_tokens: int) -> None:
        self.base, self.engine, self.max_tokens = base, engine, max_tokens
        self.peer = load_model(base.folder, torch.float32, "sdpa")  # as it comes, without our linear layers

    def compare(self, talks: list[Talk], temperature: float, repeats: int, turns: int = 1) -> dict[str, list[Timing]]:
        self._ours(talks[:2], temperature, turns, ["base"])  # warm up, both
        self._theirs(talks[:2], temperature, turns)
        ours, peers = [], []
        for _ in range(repeats):
            mine, said = self._timed(lambda: self._ours(talks, temperature, turns, ["base"]))
            theirs, heard = self._timed(lambda: self._theirs(talks, temperature, turns))
            same = sum(a == b for a, b in zip(said, heard, strict=True))
            if same < 0.9 * len(said):  # a few may part ways where two tokens are equally likely
                raise RuntimeError(f"only {same} of {len(said)} answers are the same")
            ours.append(mine)
            peers.append(theirs)
        return {"native": ours, "generate": peers}

    def adapters(self, talks: list[Talk], names: Sequence[str], repeats: int) -> dict[str, list[Timing]]:
        mixed, plain = [], []
        for _ in range(repeats):
            mixed.append(self._timed(lambda: self._ours(talks, 0.0, 1, names))[0])
            plain.append(self._timed(lambda: self._ours(talks, 0.0, 1, ["base"]))[0])
        return {"mixed": mixed, "none": plain}

    def _timed(self, play: Callable[[], list[Ids]]) -> tuple[Timing, list[Ids]]:
        with peak_memory() as memory:
            started = time.perf_counter()
            said = play()
            seconds = time.perf_counter() - started
        return Timing(seconds, sum(len(ids) for ids in said), memory[0]), said

    def _ours(self, talks: list[Talk], temperature: float, turns: int, policies: Sequence[str]) -> list[Ids]:
        sampling = Sampling(self.max_tokens, temperature)

        async def talk(i: int) -> list[Ids]:
            read, said = list(talks[i]), []
            prompt = self.base.chat.prompt(read)
            for turn in range(turns):
                answer = await self.engine.sample(policies[i % len(policies)], prompt, 100 * i + turn, sampling)
                said.append(answer.ids)
                read, prompt = self._go_on(read, prompt, answer.ids)
            return said

        async def play() -> list[list[Ids]]:
            return await asyncio.gather(*(talk(i) for i in range(len(talks))))

        said = asyncio.run(play())
        self.engine.clear()
        return [ids for one in said for ids in one]

    def _theirs(self, talks: list[Talk], temperature: float, turns: int) -> list[Ids]:
        reads = [list(talk) for talk in talks]
        prompts = [self.base.chat.prompt(read) for read in reads]
        said: list[list[Ids]] = [[] for _ in talks]
        for turn in range(turns):
            answers = self._generate(prompts, [100 * i + turn for i in range(len(talks))], temperature)
            for i, answer in enumerate(answers):
                said[i].append(answer)
                reads[i], prompts[i] = self._go_on(reads[i], prompts[i], answer)
        return [ids for one in said for ids in one]

    def _go_on(self, read: Talk, prompt: Ids, answer: Ids) -> tuple[Talk, Ids]:
        reply = self.base.chat.text(answer)
        longer: Talk = [*read, {"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
        return longer, self.base.chat.extend(read, prompt, answer, reply, longer) or self.base.chat.prompt(longer)

    @torch.no_grad()
    def _generate(self, prompts: list[Ids], seeds: list[int], temperature: float) -> list[Ids]:
        longest, end = max(map(len, prompts)), min(self.base.chat.end_ids)
        tokens = torch.tensor([[end] * (longest - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        how = Sampling(self.max_tokens, temperature)
        draw = LogitsProcessorList([Draw(self.engine.sampler, longest, seeds, how)] if temperature else [])
        out = self.peer.generate(  # type: ignore[operator]
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=self.max_tokens,
            do_sample=False,
            eos_token_id=sorted(self.base.chat.end_ids),
            pad_token_id=end,
            logits_processor=draw,
        )
        return [self._until_end(row) for row in out[:, longest:].tolist()]

    def _until_end(self, ids: list[int]) -> Ids:
        ends = [i for i, token in enumerate(ids) if token in self.base.chat.end_ids]
        return tuple(ids[: ends[0] + 1] if ends else ids)


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """The most resident memory inside the block over what was there before, in MB, read every 10 ms."""
    peak, done, page = [0.0], threading.Event(), 4096 / 1e6
    statm = Path("/proc/self/statm")
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what an earlier block freed is not this one's to use
    before = int(statm.read_text().split()[1]) if statm.exists() else 0

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], (int(statm.read_text().split()[1]) - before) * page)

    watcher = threading.Thread(target=watch, daemon=True)
    if statm.exists():
        watcher.start()
    try:
        yield peak
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join()
