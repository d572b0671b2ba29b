"""Laws of batching: whoever else speaks, is cached, shared or evicted, each row gets what it gets alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from coterie.engines.native.engine import NativeEngine
from coterie.models.base import Base
from coterie.types import Sample, Sampling
from tests.oracle import POLICIES, ask, assert_same, random_ids


def group_of_prompts() -> list[list[int]]:
    """A group with one prompt, prompts that begin alike, one that goes on from another's, and prompts of their own."""
    stem = random_ids(40, seed=1)
    alike = [[*stem[:length], *random_ids(tail, seed=length)] for length, tail in ((40, 0), (40, 5), (20, 9), (39, 1))]
    return [*([stem] * 3), *alike, [*alike[2], 7], stem, *(random_ids(length, seed=length) for length in (1, 30))]


def conversations(engine: NativeEngine, order: Sequence[int], wait: Callable[[int], int]) -> list[list[Sample]]:
    """Two turns each; the requests arrive in this order, after so many turns of the event loop."""
    prompts, policies = group_of_prompts(), list(POLICIES)

    async def talk(n: int) -> list[Sample]:
        for _ in range(wait(n)):
            await asyncio.sleep(0)
        policy, how = policies[n // 8], Sampling(5, temperature=1.0, top_k=0 if n % 2 else 50)
        first = await engine.sample(policy, prompts[n], 7 * n, how)
        second = [*prompts[n], *first.ids, *random_ids(4, seed=n)]
        return [first, await engine.sample(policy, second, 7 * n + 1, how)]

    async def all_of_them() -> list[list[Sample]]:
        return await asyncio.gather(*(talk(n) for n in order))

    said = asyncio.run(all_of_them())
    return [talked for _, talked in sorted(zip(order, said, strict=True), key=lambda pair: pair[0])]


@cache
def alone(base: Base) -> list[list[Sample]]:
    """Every conversation in an engine of its own, no turn of which finds anything in the cache."""
    talks = []
    for n in range(len(group_of_prompts())):
        engine = NativeEngine(base, POLICIES)
        engine.slots.finish = forgetful(engine)  # type: ignore[assignment, method-assign]
        talks += conversations(engine, [n], lambda _: 0)
    return talks


def forgetful(engine: NativeEngine) -> Callable[[Any], None]:
    finish = engine.slots.finish

    def finish_and_evict(row: Any) -> None:
        finish(row)
        engine.slots.invalidate(row.adapter)

    return finish_and_evict


WAYS: dict[str, tuple[int, Callable[[int], int]]] = {
    "all at once": (64, lambda n: 0),
    "three at a time": (3, lambda n: 0),
    "one row, so that each evicts another": (1, lambda n: 0),
    "two rows, dropping in": (2, lambda n: 40 * n % 97),
    "dropping in": (64, lambda n: 13 * n % 29),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_what_is_sampled_does_not_depend_on_batching(base: Base, way: str) -> None:
    rows, wait = WAYS[way]
    order = list(range(len(group_of_prompts())))
    if way != "all at once":
        random.Random(way).shuffle(order)
    engine = NativeEngine(base, POLICIES, rows=rows)
    for ours, theirs in zip(conversations(engine, order, wait), alone(base), strict=True):
        assert_same(ours, theirs)
    assert not engine.slots.running and engine.cache.slots <= 2 * rows


def test_a_groups_prompt_is_computed_once(base: Base, prefilled: list[int]) -> None:
    prompt = random_ids(50, seed=3)
    ask(NativeEngine(base, POLICIES), [("a", prompt, seed, Sampling(4)) for seed in range(8)])
    assert sum(prefilled) == len(prompt) - 1


def test_no_adapter_reads_what_another_has_computed(base: Base, prefilled: list[int]) -> None:
    prompt, engine = random_ids(50, seed=3), NativeEngine(base, POLICIES)
    ask(engine, [(policy, prompt, 0, Sampling(4)) for policy in POLICIES])
    ask(engine, [(policy, prompt, 0, Sampling(4)) for policy in POLICIES])
    assert sum(prefilled) == len(POLICIES) * (len(prompt) - 1)


def test_where_rows_enter_together_fewer_forwards_read_prompts_and_the_same_is_said(
    base: Base, prefilled: list[int]
) -> None:
    asked = [("a", random_ids(9, seed=n), n, Sampling(3 + n % 7)) for n in range(24)]
    one_by_one = ask(NativeEngine(base, POLICIES, rows=8), asked)
    forwards = len(prefilled)
    engine = NativeEngine(base, POLICIES, rows=8)
    engine.decoder.admit_together = 8  # as on a GPU; no more than a quarter of the rows stands empty for it
    assert_same(ask(engine, asked), one_by_one)
    assert len(prefilled) - forwards < forwards
