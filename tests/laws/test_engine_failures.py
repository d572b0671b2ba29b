"""Laws of what goes wrong in the engine: it stays with those it concerns, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from coterie.engines import vllm
from coterie.engines.native import decode as step_module
from coterie.engines.native.engine import NativeEngine
from coterie.engines.native.kv_cache import Decode, SlotCache
from coterie.models.base import Base
from coterie.types import Sample, Sampling
from tests.hangs import HANG
from tests.oracle import POLICIES, Request, ask, assert_same, random_ids


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_a_request_that_nobody_waits_for_frees_its_row_and_changes_no_other(
    team_base: Callable[[str], Base], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, steps = team_base("llama"), []

    class Counted(Decode):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            steps.append(len(self.slots))

    monkeypatch.setattr(step_module, "Decode", Counted)
    monkeypatch.setattr(base.chat, "end_ids", frozenset())  # nobody ends a turn before the room is used up
    others: list[Request] = [("plain", random_ids(20 + n, n), n, Sampling(20)) for n in range(4)]
    given_up: Request = ("a", random_ids(20, seed=0), 0, Sampling(480))

    async def some_lose_patience(engine: NativeEngine) -> list[Sample | BaseException]:
        impatient = [asyncio.wait_for(engine.sample(*given_up), 0.02), *(engine.sample(*other) for other in others)]
        said = await asyncio.gather(*impatient, return_exceptions=True)
        assert engine.driver is not None
        await engine.driver
        return said

    engine = NativeEngine(base, POLICIES, rows=rows)
    late, *samples = asyncio.run(some_lose_patience(engine))
    assert isinstance(late, TimeoutError) and len(steps) < 300  # it would have taken 480
    assert_same([s for s in samples if isinstance(s, Sample)], ask(NativeEngine(base, POLICIES), others))
    assert engine.seats.speaking == 0 and not engine.waiting
    # Its row, cut short, is a beginning like any other.
    short: Request = (*given_up[:3], Sampling(20))
    assert_same(ask(engine, [short]), ask(NativeEngine(base, POLICIES), [short]))


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["a step", "a prompt", "making room"])
def test_a_failure_reaches_every_caller_and_the_engine_goes_on_after_it(
    team_base: Callable[[str], Base], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = team_base("qwen2")
    requests: list[Request] = [("a", random_ids(20 + n, n), n, Sampling(6)) for n in range(5)]
    engine = NativeEngine(base, POLICIES, rows=2)
    expected = ask(engine, requests)

    def fail(*_: Any) -> None:
        raise Broken

    async def outcomes() -> list[Any]:
        asked = (asyncio.wait_for(engine.sample(*request), HANG) for request in requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    engine.clear()
    with monkeypatch.context() as broken:
        places = {
            "a step": (engine.steps, "sampler"),
            "a prompt": (step_module, "Prefill"),
            "making room": (SlotCache, "reserve"),
        }
        broken.setattr(*places[where], fail)
        assert [type(outcome) for outcome in asyncio.run(outcomes())] == [Broken] * 5
    assert_same(ask(engine, requests), expected)


def test_who_waits_for_a_server_that_dies_is_told_although_it_cannot_be_asked_to_drop_anyone(
    team_base: Callable[[str], Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead:
        def __init__(self, *_: Any) -> None: ...

        def ask(self, *_: Any) -> None: ...

        def step(self) -> None:
            raise RuntimeError("the server died")

        def drop(self, names: list[str]) -> None:
            if names:
                raise RuntimeError("nobody is there")

    monkeypatch.setattr(vllm, "find_spec", lambda name: True)
    monkeypatch.setattr(vllm, "Server", Dead)
    engine = vllm.VllmEngine(team_base("llama"), POLICIES)
    with pytest.raises(RuntimeError, match="the server died"):
        asyncio.run(asyncio.wait_for(engine.sample("plain", (1, 2, 3), 1, Sampling(4)), HANG))


def test_the_memory_of_who_still_speaks_is_not_given_back(team_base: Callable[[str], Base]) -> None:
    engine = NativeEngine(team_base("llama"), POLICIES)

    async def cleared_too_soon() -> None:
        speaking = asyncio.create_task(engine.sample("plain", (1, 2, 3), 1, Sampling(200)))
        while not engine.seats.speaking:
            await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="still speaks"):
            engine.clear()
        speaking.cancel()

    asyncio.run(cleared_too_soon())


def test_slots_make_way_for_the_first_update_however_often_the_team_was_measured_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gpu:
        total_memory = 1 << 30

    cache = SlotCache(1, 1, 4, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Gpu)

    def keeps() -> bool:
        cache._reserve_as_one(4, 8)
        cache.clear()
        return cache.whole is not None

    cache.learned()  # weights of a checkpoint
    assert [keeps(), keeps()] == [False, False]
    cache.learned()
    assert keeps()
