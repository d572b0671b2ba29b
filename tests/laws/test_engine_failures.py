"""Failures and cancellations in the engine affect only their own requests, and no request waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from coterie.engines import vllm
from coterie.engines.native import decode as decode_module
from coterie.engines.native.engine import NativeEngine
from coterie.engines.native.kv_cache import DecodeLayout, KVCache
from coterie.models.base import Base
from coterie.types import Sample, Sampling
from tests.hangs import HANG
from tests.oracle import POLICIES, Request, ask, assert_same, random_ids


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_a_cancelled_request_frees_its_row_and_changes_no_other(
    team_base: Callable[[str], Base], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, steps = team_base("llama"), []

    class Counted(DecodeLayout):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            steps.append(len(self.slots))

    monkeypatch.setattr(decode_module, "DecodeLayout", Counted)
    monkeypatch.setattr(base.chat, "end_ids", frozenset())  # no row ends before max_tokens
    others: list[Request] = [("plain", random_ids(20 + n, n), n, Sampling(20)) for n in range(4)]
    cancelled: Request = ("a", random_ids(20, seed=0), 0, Sampling(480))

    async def with_timeouts(engine: NativeEngine) -> list[Sample | BaseException]:
        requests = [asyncio.wait_for(engine.sample(*cancelled), 0.02), *(engine.sample(*other) for other in others)]
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert engine.driver is not None
        await engine.driver
        return outcomes

    engine = NativeEngine(base, POLICIES, rows=rows)
    late, *samples = asyncio.run(with_timeouts(engine))
    assert isinstance(late, TimeoutError) and len(steps) < 300  # it would have taken 480
    assert_same([s for s in samples if isinstance(s, Sample)], ask(NativeEngine(base, POLICIES), others))
    assert not engine.slots.running and not engine.waiting
    # Its row, cut short, is a prefix like any other.
    short: Request = (*cancelled[:3], Sampling(20))
    assert_same(ask(engine, [short]), ask(NativeEngine(base, POLICIES), [short]))


def test_the_cache_can_be_cleared_as_soon_as_a_request_is_cancelled(team_base: Callable[[str], Base]) -> None:
    """The engine loop has not seen it yet: the row still runs."""
    engine, prompt = NativeEngine(team_base("llama"), POLICIES), random_ids(20, seed=0)
    short: Request = ("a", prompt, 0, Sampling(5))

    async def after_a_cancelled_one() -> Sample:
        late = asyncio.create_task(engine.sample("a", prompt, 0, Sampling(480)))
        while not engine.slots.running:
            await asyncio.sleep(0)
        late.cancel()
        engine.clear()
        return await engine.sample(*short)

    assert_same([asyncio.run(after_a_cancelled_one())], ask(NativeEngine(team_base("llama"), POLICIES), [short]))


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["a step", "a prompt", "growing the cache"])
def test_a_failure_reaches_every_caller_and_the_engine_recovers(
    team_base: Callable[[str], Base], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = team_base("qwen2")
    requests: list[Request] = [("a", random_ids(20 + n, n), n, Sampling(6)) for n in range(5)]
    engine = NativeEngine(base, POLICIES, rows=2)
    expected = ask(engine, requests)

    def fail(*_: Any) -> None:
        raise Broken

    async def outcomes() -> list[Any]:
        samples = (asyncio.wait_for(engine.sample(*request), HANG) for request in requests)
        return await asyncio.gather(*samples, return_exceptions=True)

    engine.clear()
    with monkeypatch.context() as broken:
        places = {
            "a step": (engine.decoder, "sampler"),
            "a prompt": (decode_module, "PrefillLayout"),
            "growing the cache": (KVCache, "reserve"),
        }
        broken.setattr(*places[where], fail)
        assert [type(outcome) for outcome in asyncio.run(outcomes())] == [Broken] * 5
    assert_same(ask(engine, requests), expected)


def test_requests_to_a_dead_server_fail_although_they_cannot_be_aborted(
    team_base: Callable[[str], Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead:
        def __init__(self, *_: Any) -> None: ...

        def add_request(self, *_: Any) -> None: ...

        def step(self) -> None:
            raise RuntimeError("the server died")

        def abort(self, names: list[str]) -> None:
            if names:
                raise RuntimeError("no server")

    monkeypatch.setattr(vllm, "find_spec", lambda name: True)
    monkeypatch.setattr(vllm, "VllmServer", Dead)
    engine = vllm.VllmEngine(team_base("llama"), POLICIES)
    with pytest.raises(RuntimeError, match="the server died"):
        asyncio.run(asyncio.wait_for(engine.sample("plain", (1, 2, 3), 1, Sampling(4)), HANG))


def test_the_cache_is_not_freed_while_rows_run(team_base: Callable[[str], Base]) -> None:
    engine = NativeEngine(team_base("llama"), POLICIES)

    async def cleared_too_soon() -> None:
        running = asyncio.create_task(engine.sample("plain", (1, 2, 3), 1, Sampling(200)))
        while not engine.slots.running:
            await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="still running"):
            engine.clear()
        running.cancel()

    asyncio.run(cleared_too_soon())


def test_slots_are_freed_for_the_first_update_however_many_evaluations_ran_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gpu:
        total_memory = 1 << 30

    cache = KVCache(1, 1, 4, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Gpu)

    def keeps() -> bool:
        cache._reserve_as_one(4, 8)
        cache.clear()
        return cache.whole is not None

    cache.weights_updated()  # weights of a checkpoint
    assert [keeps(), keeps()] == [False, False]
    cache.weights_updated()
    assert keeps()
