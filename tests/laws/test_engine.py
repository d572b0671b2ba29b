"""The native engine samples what Hugging Face generates, on any adapter, and reuses its KV cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from coterie.engines.native.decode import EagerDecoder
from coterie.engines.native.engine import NativeEngine
from coterie.engines.native.slots import MIN_SHARED
from coterie.models.base import Base
from coterie.models.lora_routing import LoraPair
from coterie.types import Sample, Sampling
from tests.oracle import POLICIES, Oracle, Request, ask, assert_same, pairs, random_adapter, random_ids

GREEDY = Sampling(max_tokens=5, temperature=0)
LENGTHS = (1, 2, 3, 7, 8, 9, 16, 31, 40, 63)  # around the sliding window of 8, the shortest shared start, a stride


def assert_greedy(oracle: Oracle, prompts: Sequence[list[int]], samples: Sequence[Sample]) -> None:
    """The tokens of `generate`, and the log-probs of a plain forward.

    Where two tokens are as good as each other in float32, each side may take its own; rare enough for one row.
    """
    rows = list(zip(samples, oracle.greedy(prompts, GREEDY.max_tokens), strict=True))
    different = [i for i, (sample, theirs) in enumerate(rows) if sample.ids != theirs]
    for i in different:
        ours, theirs = rows[i][0].ids, rows[i][1]
        at = next(k for k, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
        tied = oracle.logprobs([prompts[i]] * 2, [ours[: at + 1], theirs[: at + 1]])
        assert float(tied[0][-1]) == pytest.approx(float(tied[1][-1]), abs=1e-4)
    assert len(different) <= 1
    for sample, expected in zip(samples, oracle.logprobs(prompts, [s.ids for s in samples]), strict=True):
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("policies", [["plain"], ["a", "b", "c"]], ids=["no adapter", "adapters"])
def test_greedy_is_what_hugging_face_generates_and_conversations_reuse_their_cache(
    base: Base, policies: list[str], prefilled: list[int]
) -> None:
    engine, oracles = NativeEngine(base, POLICIES), {policy: Oracle(base, POLICIES[policy]) for policy in policies}
    speakers = [policies[n // 5 % len(policies)] for n in range(50)]
    prompts = [random_ids(LENGTHS[n // 5], seed=n) for n in range(50)]
    todo = sum(len(prompt) - 1 for prompt in prompts)
    for turn in range(3):
        samples = ask(engine, [(policy, prompt, 0, GREEDY) for policy, prompt in zip(speakers, prompts, strict=True)])
        for policy, oracle in oracles.items():
            own = [i for i in range(50) if speakers[i] == policy]
            assert_greedy(oracle, [prompts[i] for i in own], [samples[i] for i in own])
        assert sum(prefilled) == todo
        prefilled.clear()
        whole = [[*prompt, *sample.ids] for prompt, sample in zip(prompts, samples, strict=True)]
        prompts = [[*ids, *random_ids(3 + turn + n // 15, seed=n)] for n, ids in enumerate(whole)]
        known = [len(ids) - 1 for ids in whole]  # the last token was sampled but not computed
        todo = sum(len(p) - 1 - (k if k >= MIN_SHARED else 0) for p, k in zip(prompts, known, strict=True))


def test_adapters_change_the_samples(base: Base) -> None:
    """Without this the tests about adapters would pass for an engine that ignores them."""
    engine, prompt = NativeEngine(base, POLICIES), random_ids(30, seed=5)
    answers = ask(engine, [(policy, prompt, 0, GREEDY) for policy in POLICIES])
    assert len({answer.logprobs for answer in answers}) == len(POLICIES)


def test_a_batch_of_mixed_adapters_gives_each_row_what_it_gets_alone(base: Base) -> None:
    requests: list[Request] = [
        (policy, random_ids(length, seed=length), seed, Sampling(6, temperature))
        for seed, (policy, length, temperature) in enumerate(
            (policy, length, temperature)
            for temperature in (0.0, 1.0)
            for length in (1, 40)
            for policy in ("b", "plain", "c", "a")
        )
    ]
    together = ask(NativeEngine(base, POLICIES), requests)
    assert_same(together, [ask(NativeEngine(base, POLICIES), [request])[0] for request in requests])
    for policy, adapter in POLICIES.items():
        rows = [i for i, request in enumerate(requests) if request[0] == policy and request[3].temperature == 0]
        expected = Oracle(base, adapter).greedy([requests[i][1] for i in rows], 6)
        assert [together[i].ids for i in rows] == expected


def test_chunked_prefill_computes_what_one_prefill_computes(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Request] = [
        ("ab"[n % 2], random_ids(length, seed=length), n, Sampling(8)) for n, length in enumerate((60, 3, 25, 7, 33))
    ]
    whole = ask(NativeEngine(base, POLICIES), requests)
    monkeypatch.setattr(EagerDecoder, "prefill_tokens", 7)
    assert_same(ask(NativeEngine(base, POLICIES), requests), whole)


def test_a_row_does_not_wait_for_a_waiting_row_to_share_two_more_tokens(base: Base, prefilled: list[int]) -> None:
    """The second shares the system prompt with the first; the third and the fourth share more with the second."""
    system, end = random_ids(MIN_SHARED, seed=1), random_ids(9, seed=2)
    prompts = [[*system, *start, *end] for start in ([3, 3], [4, 5, 6, 6, 6], [4, 5, 7], [4, 5, 6, 6, 6, 8])]
    requests: list[Request] = [("a", prompt, n, Sampling(4)) for n, prompt in enumerate(prompts)]
    together = ask(NativeEngine(base, POLICIES), requests)
    own = [len(prompt) - 1 - MIN_SHARED for prompt in prompts]
    assert prefilled == [MIN_SHARED + own[0], own[1] + own[2], own[3] - 5]
    assert_same(together, [ask(NativeEngine(base, POLICIES), [request])[0] for request in requests])


def test_rows_longer_than_the_sliding_window_agree_with_hugging_face(team_base: Callable[[str], Base]) -> None:
    base = team_base("gemma3")
    window = base.model.config.sliding_window
    prompts = [random_ids(length, seed=length) for length in (window - 2, window, window + 1, 5 * window)]
    answers = ask(NativeEngine(base, POLICIES), [("plain", p, 0, Sampling(3 * window, 0)) for p in prompts])
    oracle = Oracle(base)
    assert [answer.ids for answer in answers] == oracle.greedy(prompts, 3 * window)
    oracle.model.config.sliding_window = 512
    assert [answer.ids for answer in answers] != oracle.greedy(prompts, 3 * window)  # so the window matters


@pytest.mark.parametrize("version", [0, 5])
def test_changed_weights_evict_what_the_old_ones_computed(
    model_folder: Callable[[str], Path], prefilled: list[int], version: int
) -> None:
    """Whatever the new version: a restored run may return to an earlier one."""
    base, policies = movable_base(model_folder), {"a": "a", "b": "b", "plain": None}
    engine, prompt = NativeEngine(base, policies), random_ids(40, seed=9)
    requests: list[Request] = [(policy, prompt, 1, Sampling(12)) for policy in policies]
    before = ask(engine, requests)
    move(pairs(base, "a"))
    engine.weights_changed("a", version)
    prefilled.clear()
    after = ask(engine, requests)
    assert sum(prefilled) == len(prompt) - 1  # only the one that moved
    assert [sample.version for sample in after] == [version, 0, 0]
    assert_same(after, ask(NativeEngine(base, policies), requests))
    assert after[0].ids != before[0].ids


def test_a_row_that_ran_while_weights_changed_is_no_prefix_for_others(model_folder: Callable[[str], Path]) -> None:
    base = movable_base(model_folder)
    engine, prompt = NativeEngine(base, {"a": "a"}), random_ids(40, seed=9)

    async def change_meanwhile() -> Sample:
        running = asyncio.create_task(engine.sample("a", prompt, 1, Sampling(12, temperature=0)))
        while not engine.slots.running:
            await asyncio.sleep(0)
        move(pairs(base, "a"))
        engine.weights_changed("a", 1)
        await running
        return await engine.sample("a", prompt, 2, Sampling(12))

    assert_same(
        [asyncio.run(change_meanwhile())], ask(NativeEngine(base, {"a": "a"}), [("a", prompt, 2, Sampling(12))])
    )


def movable_base(model_folder: Callable[[str], Path]) -> Base:
    base = Base(model_folder("qwen3"))
    for name in ("a", "b"):
        random_adapter(base, name, 4, ("q_proj", "v_proj", "up_proj"), seed=ord(name))
    return base


@torch.no_grad()
def move(adapter: dict[str, LoraPair]) -> None:
    """Change the weights in place, as training does."""
    for pair in adapter.values():
        pair.up.mul_(-2)


def test_a_row_keeps_what_it_had_when_the_cache_grows(base: Base) -> None:
    engine, ids, beside = NativeEngine(base, POLICIES, rows=4), random_ids(10, seed=2), random_ids(30, seed=4)
    capacities = []
    for turn in range(3):
        requests: list[Request] = [("b", ids, turn, Sampling(6)), ("c", beside, turn, Sampling(3))]
        samples = ask(engine, requests)
        assert_same(samples, ask(NativeEngine(base, POLICIES), requests))
        capacities.append(engine.cache.capacity)
        ids = [*ids, *samples[0].ids, *random_ids(45, seed=turn)]
    assert capacities[-1] > capacities[0]


async def talk(engine: NativeEngine, speaker: int, turns: int, done: list[int]) -> list[Sample]:
    """A conversation: each prompt is the last one with its reply and three new tokens."""
    prompt, samples = random_ids(MIN_SHARED + 9, seed=speaker), []
    for turn in range(turns):
        samples.append(await engine.sample("a", prompt, 10 * speaker + turn, Sampling(4)))
        done.append(speaker)
        prompt = [*prompt, *samples[-1].ids, *random_ids(3, seed=turn)]
    return samples


def test_conversations_go_on_before_others_begin_and_no_prompt_is_computed_twice(
    base: Base, prefilled: list[int]
) -> None:
    """Twelve conversations with room for four in the cache: in order of arrival each second turn would find nothing."""

    async def all_of(engine: NativeEngine) -> list[list[Sample]]:
        return await asyncio.gather(*(talk(engine, speaker, 3, []) for speaker in range(12)))

    together = asyncio.run(all_of(NativeEngine(base, POLICIES, rows=2)))
    # Later turns: three new tokens and the reply's last one, which no step computed, but not the last of all.
    assert sum(prefilled) == 12 * (MIN_SHARED + 9 - 1 + 2 * (3 + 1 - 1))
    alone = [asyncio.run(talk(NativeEngine(base, POLICIES), speaker, 3, [])) for speaker in range(12)]
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other)


def test_a_waiting_request_is_overtaken_only_so_often(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.engines.native.engine.OVERTAKEN", 3)
    done: list[int] = []

    async def both(engine: NativeEngine) -> None:
        await asyncio.gather(talk(engine, 0, 6, done), talk(engine, 1, 1, done))

    asyncio.run(both(NativeEngine(base, POLICIES, rows=1)))
    assert done == [0, 0, 0, 1, 0, 0, 0]
