"""Laws of reading ahead: prompts that are read while others speak change nothing that anyone says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.engines.native import decode as step_module
from coterie.engines.native.decode import Eager, Said, segments
from coterie.engines.native.engine import NativeEngine
from coterie.engines.native.kv_cache import Flash, Prefill, SlotCache
from coterie.engines.native.slots import Row
from coterie.models.base import Base
from coterie.types import Sample, Sampling
from tests.hangs import HANG
from tests.oracle import POLICIES, Request, assert_same, pairs, random_adapter, random_ids


class Ahead(Eager):
    """Has prompts read after its steps and before what they said is heard, as steps on a GPU do."""

    def __init__(self, engine: NativeEngine) -> None:
        super().__init__(engine.base, engine.cache, engine.sampler)
        self.engine, self.busy = engine, False
        self.early: list[int] = []  # tokens that were read ahead, in each forward
        self.spoke: list[int] = []  # rows in each step

    @torch.inference_mode()
    def advance(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Said]:
        said = super().advance(rows, meanwhile)
        seats, self.busy = self.engine.seats.rows[: len(rows)], True
        meanwhile()
        self.busy = False
        assert self.engine.seats.rows[: len(rows)] == seats == rows  # nobody moves while steps run
        assert len(ready(self.engine)) <= self.engine.few
        self.spoke.append(len(rows))
        return said

    def read(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        if self.busy:
            self.early.append(sum(counts))
        super().read(rows, counts)


class Scattered(Ahead):
    """Takes its steps wherever rows sit, as steps on a GPU do."""

    gathered = False

    @torch.inference_mode()
    def advance(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Said]:
        order = sorted(rows, key=lambda row: row.adapter or "")
        starts, ones = [row.length - 1 for row in order], [1] * len(order)
        layout = Prefill(self.cache, [row.slot for row in order], starts, ones)
        tokens = torch.tensor([row.ids[row.length - 1] for row in order])
        runs = segments([row.adapter for row in order], ones)
        ids, logprobs = self._draw(
            order, self.base.logits(self.base.hidden_for_inference(tokens, layout.positions, layout, runs))
        )
        said = {row: ([token], [logprob]) for row, token, logprob in zip(order, ids, logprobs, strict=True)}
        self.busy = True
        meanwhile()
        self.busy = False
        self.spoke.append(len(rows))
        return [said[row] for row in rows]


def ready(engine: NativeEngine) -> list[Row]:
    return [row for row in engine.waiting if row.slot >= 0]


def reader(base: Base, rows: int, kind: type[Ahead] = Ahead) -> tuple[NativeEngine, Ahead]:
    engine = NativeEngine(base, POLICIES, rows=rows)
    steps = engine.steps = kind(engine)
    engine.seats.gathered = steps.gathered
    return engine, steps


async def asked(engine: NativeEngine, requests: Sequence[Request]) -> list[Sample]:
    """All at once; nobody waits for ever."""
    return await asyncio.gather(*(asyncio.wait_for(engine.sample(*request), HANG) for request in requests))


def ask(engine: NativeEngine, requests: Sequence[Request]) -> list[Sample]:
    return asyncio.run(asked(engine, requests))


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(HANG):
        while not happened():
            await asyncio.sleep(0)


def at_rest(engine: NativeEngine) -> bool:
    """Nobody waits or speaks, and no slot is held for anyone."""
    held = [row for row in engine.seats.rows if row is not None and not row.finished]
    return not (engine.waiting or engine.seats.speaking or held)


def ragged(count: int) -> list[Request]:
    """Prompts and answers of all lengths, adapters in turn."""
    names = list(POLICIES)
    return [
        (names[n % 4], random_ids(1 + 11 * n % 37, seed=n), n, Sampling(1 + 5 * n % 9, temperature=n % 3 / 2))
        for n in range(count)
    ]


def groups(count: int) -> list[Request]:
    """Four prompts that begin alike, each asked many times."""
    stem = random_ids(30, seed=1)
    prompts = [[*stem, *random_ids(3 * tail, seed=tail)] for tail in range(4)]
    return [("ab"[n % 2], prompts[n // 4 % 4], n, Sampling(1 + 5 * n % 9)) for n in range(count)]


def twins(count: int) -> list[Request]:
    """Every prompt is asked twice: one of the two may be ready when the other is read."""
    return [("c", random_ids(20, seed=n // 2), n, Sampling(1 + 5 * n % 9)) for n in range(count)]


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("requests", [ragged(30), groups(30), twins(30)], ids=["ragged", "groups", "twins"])
def test_what_is_read_ahead_is_read_once_and_the_same_is_said(
    base: Base, requests: list[Request], rows: int, prefilled: list[int]
) -> None:
    expected = ask(NativeEngine(base, POLICIES, rows=rows), requests)
    todo = sum(prefilled)
    prefilled.clear()
    engine, steps = reader(base, rows)
    assert_same(ask(engine, requests), expected)
    assert sum(prefilled) == todo and len(steps.early) > 2
    assert at_rest(engine) and engine.cache.slots <= 2 * rows


def test_where_steps_find_rows_anywhere_nobody_moves_and_the_same_is_said(
    team_base: Callable[[str], Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, requests = team_base("llama"), [*ragged(30), *groups(30)]
    expected = ask(NativeEngine(base, POLICIES, rows=8), requests)
    monkeypatch.delattr(SlotCache, "swap")
    engine, steps = reader(base, 8, Scattered)
    assert_same(ask(engine, requests), expected)
    assert len(steps.early) > 2 and max(steps.spoke) == 8 and at_rest(engine)


@pytest.mark.parametrize("kind", [Ahead, Scattered])
def test_a_row_so_long_that_fewer_fit_waits_until_they_do(
    team_base: Callable[[str], Base], kind: type[Ahead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, whose memory has so much room for keys and values."""
    base, tokens = team_base("llama"), 640
    talker, long = ("b", random_ids(5, seed=2), 2, Sampling(40)), ("a", random_ids(250, seed=1), 1, Sampling(9))
    requests = [*ragged(12), talker, long, *ragged(12)]
    expected = ask(NativeEngine(base, POLICIES), requests)

    def most(cache: SlotCache, slots: int, capacity: int) -> int:
        return min(slots, max(1, tokens // cache._rounded(max(capacity, cache.capacity))))

    monkeypatch.setattr(SlotCache, "most", most)
    engine, steps = reader(base, 8, kind)
    taken: list[int] = []
    reserve = SlotCache.reserve

    def watched(cache: SlotCache, slots: int, capacity: int) -> None:
        reserve(cache, slots, capacity)
        taken.append(cache.slots * cache.capacity)

    monkeypatch.setattr(SlotCache, "reserve", watched)
    assert_same(ask(engine, requests), expected)
    assert max(taken) <= tokens and max(steps.spoke) == 8 and at_rest(engine)


@pytest.mark.parametrize("together", [1, 8])
def test_conversations_go_on_from_what_they_said_while_others_are_read_ahead(base: Base, together: int) -> None:
    requests = ragged(20)

    async def talk(engine: NativeEngine, n: int) -> list[Sample]:
        policy, prompt, seed, sampling = requests[n]
        (first,) = await asked(engine, [(policy, prompt, seed, sampling)])
        longer = [*prompt, *first.ids, *random_ids(n % 5 + 1, seed=n)]
        return [first, *await asked(engine, [(policy, longer, seed + 100, sampling)])]

    async def all_of_them(engine: NativeEngine) -> list[list[Sample]]:
        return await asyncio.gather(*(talk(engine, n) for n in range(len(requests))))

    engine, steps = reader(base, rows=8)
    steps.together = together
    plain = asyncio.run(all_of_them(NativeEngine(base, POLICIES)))
    for ours, theirs in zip(asyncio.run(all_of_them(engine)), plain, strict=True):
        assert_same(ours, theirs)
    assert len(steps.early) > 3 and at_rest(engine)


@pytest.mark.parametrize("room", [2, 4, 5])
def test_whom_memory_has_no_slot_for_nobody_reads_ahead(
    team_base: Callable[[str], Base], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, requests = team_base("llama"), ragged(20)
    expected = ask(NativeEngine(base, POLICIES), requests)
    monkeypatch.setattr(SlotCache, "most", lambda cache, slots, capacity: min(slots, room))
    engine, steps = reader(base, rows=4)
    assert_same(ask(engine, requests), expected)
    assert max(steps.spoke) == min(room, 4) and engine.cache.slots == room and at_rest(engine)
    assert bool(steps.early) == (room > 4)


def test_who_has_been_read_joins_though_few_have_room(team_base: Callable[[str], Base]) -> None:
    """Others would wait until two have: to read a prompt alone takes a GPU's host as long as to read eight."""
    engine, steps = reader(team_base("llama"), rows=8)
    steps.together = 8
    lengths = [3, *[12] * 7, *[9] * 2]
    requests: list[Request] = [("a", random_ids(9, seed=n), n, Sampling(t)) for n, t in enumerate(lengths)]
    ask(engine, requests)
    assert steps.spoke[:12] == [8] * 12


def test_steps_that_are_taken_on_the_spot_read_nobody_ahead(team_base: Callable[[str], Base]) -> None:
    engine = NativeEngine(team_base("llama"), POLICIES, rows=2)

    async def watch() -> None:
        asking = asyncio.create_task(asked(engine, ragged(8)))
        while not asking.done():
            assert not ready(engine)
            await asyncio.sleep(0)
        await asking

    asyncio.run(watch())


def test_one_who_is_read_and_gives_up_leaves_the_slot_and_a_beginning(
    team_base: Callable[[str], Base], prefilled: list[int]
) -> None:
    base = team_base("llama")
    engine, _ = reader(base, rows=1)
    speaking, given_up, last = (("a", random_ids(30, seed=n), n, Sampling(12, temperature=0)) for n in range(3))

    async def lose_patience() -> list[Sample]:
        others = [asyncio.create_task(engine.sample(*speaking))]
        await until(lambda: engine.seats.speaking)
        impatient = asyncio.create_task(engine.sample(*given_up))
        others.append(asyncio.create_task(engine.sample(*last)))
        await until(lambda: ready(engine))
        impatient.cancel()
        return await asyncio.wait_for(asyncio.gather(*others), HANG)

    assert_same(asyncio.run(lose_patience()), ask(NativeEngine(base, POLICIES), [speaking, last]))
    assert at_rest(engine)
    engine, _ = reader(base, rows=2)
    prefilled.clear()
    asyncio.run(lose_patience())
    assert sum(prefilled) == 3 * 29
    ask(engine, [given_up])
    assert sum(prefilled) == 3 * 29


def movable(model_folder: Callable[[str], Path]) -> Base:
    base = Base(model_folder("qwen3"))
    for name in ("a", "b", "c"):
        random_adapter(base, name, 4, ("q_proj", "v_proj", "up_proj"), seed=ord(name))
    return base


def test_after_load_one_who_was_read_with_the_old_weights_is_read_anew(
    model_folder: Callable[[str], Path], prefilled: list[int]
) -> None:
    """Though one who speaks began as it does, with the old weights."""
    base = movable(model_folder)
    engine, _ = reader(base, rows=8)
    prompt = random_ids(40, seed=9)
    speakers: list[Request] = [("c", random_ids(20, seed=n), n, Sampling(12)) for n in range(7)]
    speakers.append(("a", prompt, 7, Sampling(12)))
    waiting: list[Request] = [(policy, prompt, 1, Sampling(6)) for policy in "ab"]

    async def load_meanwhile() -> list[Sample]:
        asking = [asyncio.create_task(asked(engine, requests)) for requests in (speakers, waiting)]
        await until(lambda: len(ready(engine)) == 2)
        prefilled.clear()
        with torch.no_grad():
            for pair in pairs(base, "a").values():
                pair.up.mul_(-2)
        engine.weights_changed("a", 1)
        return (await asyncio.gather(*asking))[1]

    before = ask(NativeEngine(base, POLICIES), waiting)
    after = asyncio.run(load_meanwhile())
    assert sum(prefilled) == 39  # of the one whose weights have moved
    assert_same(after, ask(NativeEngine(base, POLICIES), waiting))
    assert after[0].ids != before[0].ids and after[1].ids == before[1].ids
    assert [sample.version for sample in after] == [1, 0]


def test_clearing_an_engine_loses_nobody_who_was_read(team_base: Callable[[str], Base]) -> None:
    base = team_base("llama")
    engine, _ = reader(base, rows=1)
    first, second = (("b", random_ids(30, seed=n), n, Sampling(5)) for n in range(2))

    async def clear_between() -> list[Sample]:
        answers = [asyncio.create_task(asked(engine, [request])) for request in (first, second)]
        await answers[0]
        assert len(ready(engine)) == 1 and not engine.seats.speaking
        engine.clear()
        return [sample for (sample,) in await asyncio.gather(*answers)]

    assert_same(asyncio.run(clear_between()), ask(NativeEngine(base, POLICIES), [first, second]))


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["a step", "reading ahead"])
def test_a_failure_reaches_those_who_were_read_and_the_engine_goes_on_after_it(
    team_base: Callable[[str], Base], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, steps = reader(team_base("qwen2"), rows=8)
    requests = ragged(14)
    expected = ask(engine, requests)
    engine.clear()
    before = len(steps.early)

    def fail_when_some_are_ready(name: str) -> Callable[..., Any]:
        right = getattr(step_module, name)

        def either(*arguments: Any) -> Any:
            if ready(engine) and (name == "Decode" or (steps.busy and len(steps.early) > before + 1)):
                raise Broken
            return right(*arguments)

        return either

    async def outcomes() -> list[Any]:
        waiting = (asyncio.wait_for(engine.sample(*request), HANG) for request in requests)
        return await asyncio.gather(*waiting, return_exceptions=True)

    with monkeypatch.context() as broken:
        name = "Decode" if where == "a step" else "Prefill"
        broken.setattr(step_module, name, fail_when_some_are_ready(name))
        assert Broken in (failed := [type(outcome) for outcome in asyncio.run(outcomes())])
    assert set(failed) <= {Broken, Sample} and not engine.seats.rows and not engine.waiting
    steps.busy = False
    assert_same(ask(engine, requests), expected)


def test_what_a_gpu_needs_to_know_of_prompts_is_sent_as_one_and_cut_where_kernels_like_it() -> None:
    cache = SlotCache(1, 1, 16, torch.float32, torch.device("cpu"))
    layout = Flash(cache, slots=[4, 2, 7], starts=[0, 5, 1], counts=[3, 1, 2], tokens=np.arange(100, 106))
    assert layout.tokens.tolist() == [100, 101, 102, 103, 104, 105]
    assert layout.rows.tolist() == [4, 4, 4, 2, 7, 7] and layout.positions.tolist() == [0, 1, 2, 5, 1, 2]
    assert layout.key_rows.tolist() == [4] * 3 + [2] * 6 + [7] * 3
    assert layout.key_at.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert layout.ragged.q_ends.tolist() == [0, 3, 4, 6] and layout.ragged.k_ends.tolist() == [0, 3, 9, 12]
    sent = [layout.tokens, layout.rows, layout.positions, layout.key_rows, layout.key_at, *layout.ragged[:2]]
    assert len({x.untyped_storage().data_ptr() for x in sent}) == 1  # type: ignore[union-attr]
    assert all(x.data_ptr() % 16 == sent[0].data_ptr() % 16 for x in sent)  # type: ignore[union-attr]
