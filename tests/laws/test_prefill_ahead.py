"""Prefilling waiting prompts while other rows decode changes no sample."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.engines.native import decode as decode_module
from coterie.engines.native.decode import EagerDecoder, Tokens, segments
from coterie.engines.native.engine import NativeEngine
from coterie.engines.native.kv_cache import FlashPrefillLayout, KVCache, PrefillLayout
from coterie.engines.native.slots import Row
from coterie.models.base import Base
from coterie.types import Sample, Sampling
from tests.hangs import HANG
from tests.oracle import POLICIES, Request, assert_same, pairs, random_adapter, random_ids


class Ahead(EagerDecoder):
    """Calls `meanwhile` after its steps and before their tokens are returned, as the CUDA graph decoder does."""

    def __init__(self, engine: NativeEngine) -> None:
        super().__init__(engine.base, engine.cache, engine.sampler)
        self.engine, self.busy = engine, False
        self.early: list[int] = []  # tokens prefilled ahead, in each forward
        self.decoded: list[int] = []  # rows in each step

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Tokens]:
        tokens = super().decode(rows, meanwhile)
        slots, self.busy = self.engine.slots.rows[: len(rows)], True
        meanwhile()
        self.busy = False
        assert self.engine.slots.rows[: len(rows)] == slots == rows  # no row moves while steps run
        assert len(ready(self.engine)) <= self.engine.ahead
        self.decoded.append(len(rows))
        return tokens

    def prefill(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        if self.busy:
            self.early.append(sum(counts))
        super().prefill(rows, counts)


class Scattered(Ahead):
    """Decodes rows in any slots, as the CUDA graph decoder does."""

    compact = False

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Tokens]:
        order = sorted(rows, key=lambda row: row.adapter or "")
        starts, ones = [row.length - 1 for row in order], [1] * len(order)
        layout = PrefillLayout(self.cache, [row.slot for row in order], starts, ones)
        tokens = torch.tensor([row.ids[row.length - 1] for row in order])
        runs = segments([row.adapter for row in order], ones)
        ids, logprobs = self._sample(
            order, self.base.logits(self.base.hidden_for_inference(tokens, layout.positions, layout, runs))
        )
        by_row = {row: ([token], [logprob]) for row, token, logprob in zip(order, ids, logprobs, strict=True)}
        self.busy = True
        meanwhile()
        self.busy = False
        self.decoded.append(len(rows))
        return [by_row[row] for row in rows]


def ready(engine: NativeEngine) -> list[Row]:
    return [row for row in engine.waiting if row.slot >= 0]


def ahead_engine(base: Base, rows: int, kind: type[Ahead] = Ahead) -> tuple[NativeEngine, Ahead]:
    engine = NativeEngine(base, POLICIES, rows=rows)
    decoder = engine.decoder = kind(engine)
    engine.slots.compact = decoder.compact
    return engine, decoder


async def sample_all(engine: NativeEngine, requests: Sequence[Request]) -> list[Sample]:
    """All at once; no request waits forever."""
    return await asyncio.gather(*(asyncio.wait_for(engine.sample(*request), HANG) for request in requests))


def ask(engine: NativeEngine, requests: Sequence[Request]) -> list[Sample]:
    return asyncio.run(sample_all(engine, requests))


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(HANG):
        while not happened():
            await asyncio.sleep(0)


def idle(engine: NativeEngine) -> bool:
    """No row waits or runs, and no slot is in use; slots are evicted in the order in which their rows finished."""
    held = [row for row in engine.slots.rows if row is not None and not row.finished]
    order = [0 if row is None else row.finished for row in engine.slots.rows]
    return not (engine.waiting or engine.slots.running or held) and engine.slots.eviction_order.tolist() == order


def ragged(count: int) -> list[Request]:
    """Prompts and answers of all lengths, adapters in turn."""
    names = list(POLICIES)
    return [
        (names[n % 4], random_ids(1 + 11 * n % 37, seed=n), n, Sampling(1 + 5 * n % 9, temperature=n % 3 / 2))
        for n in range(count)
    ]


def groups(count: int) -> list[Request]:
    """Four prompts with a common prefix, each requested many times."""
    stem = random_ids(30, seed=1)
    prompts = [[*stem, *random_ids(3 * tail, seed=tail)] for tail in range(4)]
    return [("ab"[n % 2], prompts[n // 4 % 4], n, Sampling(1 + 5 * n % 9)) for n in range(count)]


def twins(count: int) -> list[Request]:
    """Every prompt is requested twice: one of the two may be ready when the other is prefilled."""
    return [("c", random_ids(20, seed=n // 2), n, Sampling(1 + 5 * n % 9)) for n in range(count)]


ALL = (ragged, groups, twins)
# Which prompts wait together does not depend on the model: the others are tried once each.
CASES = [("llama", 1, how) for how in ALL] + [("llama", 8, how) for how in ALL]
CASES += [("qwen2", 8, twins), ("qwen3", 8, groups), ("gemma3", 8, ragged), ("gemma3", 1, groups)]


@pytest.mark.parametrize(("kind", "rows", "how"), CASES)
def test_prompts_prefilled_ahead_are_computed_once_and_change_no_sample(
    kind: str, rows: int, how: Callable[[int], list[Request]], team_base: Callable[[str], Base], prefilled: list[int]
) -> None:
    base, requests = team_base(kind), how(30)
    expected = ask(NativeEngine(base, POLICIES, rows=rows), requests)
    todo = sum(prefilled)
    prefilled.clear()
    engine, decoder = ahead_engine(base, rows)
    assert_same(ask(engine, requests), expected)
    assert sum(prefilled) == todo and len(decoder.early) > 2
    assert idle(engine) and engine.cache.slots <= 2 * rows


def test_without_compact_slots_no_row_moves_and_samples_are_the_same(
    team_base: Callable[[str], Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, requests = team_base("llama"), [*ragged(30), *groups(30)]
    expected = ask(NativeEngine(base, POLICIES, rows=8), requests)
    monkeypatch.delattr(KVCache, "swap")
    engine, decoder = ahead_engine(base, 8, Scattered)
    assert_same(ask(engine, requests), expected)
    assert len(decoder.early) > 2 and max(decoder.decoded) == 8 and idle(engine)


@pytest.mark.parametrize("kind", [Ahead, Scattered])
def test_a_row_too_long_for_all_slots_waits_until_fewer_are_in_use(
    team_base: Callable[[str], Base], kind: type[Ahead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU with room for so many cached tokens."""
    base, tokens = team_base("llama"), 640
    talker, long = ("b", random_ids(5, seed=2), 2, Sampling(40)), ("a", random_ids(250, seed=1), 1, Sampling(9))
    requests = [*ragged(12), talker, long, *ragged(12)]
    expected = ask(NativeEngine(base, POLICIES), requests)

    def max_slots(cache: KVCache, slots: int, capacity: int) -> int:
        return min(slots, max(1, tokens // cache._rounded(max(capacity, cache.capacity))))

    monkeypatch.setattr(KVCache, "max_slots", max_slots)
    engine, decoder = ahead_engine(base, 8, kind)
    taken: list[int] = []
    reserve = KVCache.reserve

    def watched(cache: KVCache, slots: int, capacity: int) -> None:
        reserve(cache, slots, capacity)
        taken.append(cache.slots * cache.capacity)

    monkeypatch.setattr(KVCache, "reserve", watched)
    assert_same(ask(engine, requests), expected)
    assert max(taken) <= tokens and max(decoder.decoded) == 8 and idle(engine)


@pytest.mark.parametrize("together", [1, 8])
def test_conversations_continue_while_others_are_prefilled_ahead(base: Base, together: int) -> None:
    requests = ragged(20)

    async def talk(engine: NativeEngine, n: int) -> list[Sample]:
        policy, prompt, seed, sampling = requests[n]
        (first,) = await sample_all(engine, [(policy, prompt, seed, sampling)])
        longer = [*prompt, *first.ids, *random_ids(n % 5 + 1, seed=n)]
        return [first, *await sample_all(engine, [(policy, longer, seed + 100, sampling)])]

    async def all_of_them(engine: NativeEngine) -> list[list[Sample]]:
        return await asyncio.gather(*(talk(engine, n) for n in range(len(requests))))

    engine, decoder = ahead_engine(base, rows=8)
    decoder.admit_together = together
    plain = asyncio.run(all_of_them(NativeEngine(base, POLICIES)))
    for ours, theirs in zip(asyncio.run(all_of_them(engine)), plain, strict=True):
        assert_same(ours, theirs)
    assert len(decoder.early) > 3 and idle(engine)


@pytest.mark.parametrize("room", [2, 4, 5])
def test_rows_without_a_slot_are_not_prefilled_ahead(
    team_base: Callable[[str], Base], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, requests = team_base("llama"), ragged(20)
    expected = ask(NativeEngine(base, POLICIES), requests)
    monkeypatch.setattr(KVCache, "max_slots", lambda cache, slots, capacity: min(slots, room))
    engine, decoder = ahead_engine(base, rows=4)
    assert_same(ask(engine, requests), expected)
    assert max(decoder.decoded) == min(room, 4) and engine.cache.slots == room and idle(engine)
    assert bool(decoder.early) == (room > 4)


def test_rows_prefilled_ahead_run_as_soon_as_one_slot_is_free(team_base: Callable[[str], Base]) -> None:
    """Others wait until two fit: one prefill costs a GPU's host the same for one prompt as for eight."""
    engine, decoder = ahead_engine(team_base("llama"), rows=8)
    decoder.admit_together = 8
    lengths = [3, *[12] * 7, *[9] * 2]
    requests: list[Request] = [("a", random_ids(9, seed=n), n, Sampling(t)) for n, t in enumerate(lengths)]
    ask(engine, requests)
    assert decoder.decoded[:12] == [8] * 12


def test_the_eager_decoder_prefills_nothing_ahead(team_base: Callable[[str], Base]) -> None:
    engine = NativeEngine(team_base("llama"), POLICIES, rows=2)

    async def watch() -> None:
        asking = asyncio.create_task(sample_all(engine, ragged(8)))
        while not asking.done():
            assert not ready(engine)
            await asyncio.sleep(0)
        await asking

    asyncio.run(watch())


def test_a_cancelled_ready_row_frees_its_slot_and_stays_as_a_prefix(
    team_base: Callable[[str], Base], prefilled: list[int]
) -> None:
    base = team_base("llama")
    engine, _ = ahead_engine(base, rows=1)
    running, cancelled, last = (("a", random_ids(30, seed=n), n, Sampling(12, temperature=0)) for n in range(3))

    async def cancel_one() -> list[Sample]:
        others = [asyncio.create_task(engine.sample(*running))]
        await until(lambda: engine.slots.running)
        abandoned = asyncio.create_task(engine.sample(*cancelled))
        others.append(asyncio.create_task(engine.sample(*last)))
        await until(lambda: ready(engine))
        abandoned.cancel()
        return await asyncio.wait_for(asyncio.gather(*others), HANG)

    assert_same(asyncio.run(cancel_one()), ask(NativeEngine(base, POLICIES), [running, last]))
    assert idle(engine)
    engine, _ = ahead_engine(base, rows=2)
    prefilled.clear()
    asyncio.run(cancel_one())
    assert sum(prefilled) == 3 * 29
    ask(engine, [cancelled])
    assert sum(prefilled) == 3 * 29


def movable(model_folder: Callable[[str], Path]) -> Base:
    base = Base(model_folder("qwen3"))
    for name in ("a", "b", "c"):
        random_adapter(base, name, 4, ("q_proj", "v_proj", "up_proj"), seed=ord(name))
    return base


def test_a_row_prefilled_with_old_weights_is_prefilled_again(
    model_folder: Callable[[str], Path], prefilled: list[int]
) -> None:
    """Although a running row has the same prefix, computed with the old weights."""
    base = movable(model_folder)
    engine, _ = ahead_engine(base, rows=8)
    prompt = random_ids(40, seed=9)
    running: list[Request] = [("c", random_ids(20, seed=n), n, Sampling(12)) for n in range(7)]
    running.append(("a", prompt, 7, Sampling(12)))
    waiting: list[Request] = [(policy, prompt, 1, Sampling(6)) for policy in "ab"]

    async def change_meanwhile() -> list[Sample]:
        asking = [asyncio.create_task(sample_all(engine, requests)) for requests in (running, waiting)]
        await until(lambda: len(ready(engine)) == 2)
        prefilled.clear()
        with torch.no_grad():
            for pair in pairs(base, "a").values():
                pair.up.mul_(-2)
        engine.weights_changed("a", 1)
        return (await asyncio.gather(*asking))[1]

    before = ask(NativeEngine(base, POLICIES), waiting)
    after = asyncio.run(change_meanwhile())
    assert sum(prefilled) == 39  # of the row whose weights have changed
    assert_same(after, ask(NativeEngine(base, POLICIES), waiting))
    assert after[0].ids != before[0].ids and after[1].ids == before[1].ids
    assert [sample.version for sample in after] == [1, 0]


def test_clearing_an_engine_loses_no_ready_row(team_base: Callable[[str], Base]) -> None:
    base = team_base("llama")
    engine, _ = ahead_engine(base, rows=1)
    first, second = (("b", random_ids(30, seed=n), n, Sampling(5)) for n in range(2))

    async def clear_between() -> list[Sample]:
        answers = [asyncio.create_task(sample_all(engine, [request])) for request in (first, second)]
        await answers[0]
        assert len(ready(engine)) == 1 and not engine.slots.running
        engine.clear()
        return [sample for (sample,) in await asyncio.gather(*answers)]

    assert_same(asyncio.run(clear_between()), ask(NativeEngine(base, POLICIES), [first, second]))


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["a step", "prefilling ahead"])
def test_a_failure_reaches_ready_rows_and_the_engine_recovers(
    team_base: Callable[[str], Base], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, decoder = ahead_engine(team_base("qwen2"), rows=8)
    requests = ragged(14)
    expected = ask(engine, requests)
    engine.clear()
    before = len(decoder.early)

    def fail_when_some_are_ready(name: str) -> Callable[..., Any]:
        right = getattr(decode_module, name)

        def either(*arguments: Any) -> Any:
            if ready(engine) and (name == "DecodeLayout" or (decoder.busy and len(decoder.early) > before + 1)):
                raise Broken
            return right(*arguments)

        return either

    async def outcomes() -> list[Any]:
        waiting = (asyncio.wait_for(engine.sample(*request), HANG) for request in requests)
        return await asyncio.gather(*waiting, return_exceptions=True)

    with monkeypatch.context() as broken:
        name = "DecodeLayout" if where == "a step" else "PrefillLayout"
        broken.setattr(decode_module, name, fail_when_some_are_ready(name))
        assert Broken in (failed := [type(outcome) for outcome in asyncio.run(outcomes())])
    assert set(failed) <= {Broken, Sample} and not engine.slots.rows and not engine.waiting
    decoder.busy = False
    assert_same(ask(engine, requests), expected)


def test_the_flash_prefill_layout_is_one_transfer_of_aligned_arrays() -> None:
    cache = KVCache(1, 1, 16, torch.float32, torch.device("cpu"))
    layout = FlashPrefillLayout(cache, slots=[4, 2, 7], starts=[0, 5, 1], counts=[3, 1, 2], tokens=np.arange(100, 106))
    assert layout.tokens.tolist() == [100, 101, 102, 103, 104, 105]
    assert layout.slots.tolist() == [4, 4, 4, 2, 7, 7] and layout.positions.tolist() == [0, 1, 2, 5, 1, 2]
    assert layout.key_slots.tolist() == [4] * 3 + [2] * 6 + [7] * 3
    assert layout.key_positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert layout.varlen.cu_seqlens_q.tolist() == [0, 3, 4, 6] and layout.varlen.cu_seqlens_k.tolist() == [0, 3, 9, 12]
    sent = [layout.tokens, layout.slots, layout.positions, layout.key_slots, layout.key_positions, *layout.varlen[:2]]
    assert len({x.untyped_storage().data_ptr() for x in sent}) == 1  # type: ignore[union-attr]
    assert all(x.data_ptr() % 16 == sent[0].data_ptr() % 16 for x in sent)  # type: ignore[union-attr]
