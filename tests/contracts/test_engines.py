"""What every engine owes: the same seed draws the same tokens, and a row ends where it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.router import ClearableEngine, Router
from coterie.models.base import Base
from coterie.types import Sampling
from tests.models import CONTEXT
from tests.oracle import POLICIES, Oracle, ask, pairs, random_adapter, random_ids

ENGINES: dict[str, Any] = {"native": NativeEngine, "hf": HfEngine}
WAYS = {
    "greedy": Sampling(6, temperature=0),
    "free": Sampling(6),
    "hot": Sampling(6, temperature=1.5),
    "likely": Sampling(6, top_p=0.5),
    "few": Sampling(6, temperature=0.8, top_k=3),
    "both": Sampling(6, temperature=1.3, top_p=0.7, top_k=20),
    "greedy and likely": Sampling(6, temperature=0, top_p=0.5),
}


@pytest.fixture(params=["llama", "gemma3"])
def base(request: pytest.FixtureRequest, team_base: Callable[[str], Base]) -> Base:
    return team_base(request.param)


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, base: Base) -> ClearableEngine:
    return ENGINES[request.param](base, POLICIES)


@pytest.mark.parametrize("way", list(WAYS))
def test_a_seed_draws_its_tokens_with_their_logprobs(engine: ClearableEngine, base: Base, way: str) -> None:
    oracle, prompts = Oracle(base, "b"), [random_ids(length, seed=length) for length in (2, 25)]
    samples = ask(engine, [("b", prompt, 50 + n, WAYS[way]) for n, prompt in enumerate(prompts)])
    for n, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
        ids, logprobs = oracle.says(prompt, 50 + n, WAYS[way])
        assert list(sample.ids) == ids
        assert sample.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_an_answer_is_as_long_as_asked_and_says_so(engine: ClearableEngine) -> None:
    prompt = random_ids(10, seed=0)
    for room in (1, 2, 5):
        sample = ask(engine, [("plain", prompt, 1, Sampling(room))])[0]
        assert (len(sample.ids), len(sample.logprobs), sample.stop) == (room, room, "length")


def test_an_end_token_ends_the_answer_and_is_part_of_it(
    engine: ClearableEngine, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [("a", random_ids(5, seed), seed, Sampling(6)) for seed in range(4)]
    free = ask(engine, requests)
    monkeypatch.setattr(base.chat, "end_ids", frozenset({free[0].ids[2], free[1].ids[0], free[2].ids[5]}))
    for sample, whole in zip(ask(engine, requests), free, strict=True):
        ends = [n for n, token in enumerate(whole.ids) if token in base.chat.end_ids]
        assert sample.ids == (whole.ids[: ends[0] + 1] if ends else whole.ids)
        assert len(sample.logprobs) == len(sample.ids)
        assert sample.stop == ("end" if ends else "length")


def test_a_prompt_that_fills_the_context_gets_an_empty_answer(engine: ClearableEngine) -> None:
    for length in (CONTEXT, CONTEXT + 7):
        sample = ask(engine, [("plain", random_ids(length, 0), 1, Sampling(5))])[0]
        assert (sample.ids, sample.logprobs, sample.stop) == ((), (), "length")


def test_prompt_and_answer_never_exceed_the_context(engine: ClearableEngine) -> None:
    prompt = random_ids(CONTEXT - 3, seed=1)
    whole, cut = ask(engine, [("plain", prompt, 1, Sampling(room)) for room in (3, 50)])
    assert len(cut.ids) == 3 and cut.stop == "length"
    assert cut.ids == whole.ids


@pytest.mark.parametrize("kind", list(ENGINES))
def test_a_smaller_context_may_be_asked_for_but_no_larger_one(kind: str, base: Base) -> None:
    small, large = ENGINES[kind](base, POLICIES, context=20), ENGINES[kind](base, POLICIES, context=10 * CONTEXT)
    request = ("plain", random_ids(16, seed=1), 3, Sampling(9))
    assert len(ask(small, [request])[0].ids) == 4
    assert large.context == CONTEXT


def test_a_stop_string_ends_the_answer_and_is_not_in_its_text(engine: ClearableEngine, base: Base) -> None:
    """Also when it is complete just as the room is used up."""
    prompt = random_ids(20, seed=8)
    free = ask(engine, [("plain", prompt, 1, Sampling(24))])[0]
    words = [base.chat.text([token]) for token in free.ids]
    stop = next(word for word in words[3:] if word.isascii() and word.isprintable() and word)
    length = next(n for n in range(1, 25) if stop in base.chat.text(free.ids[:n]))
    for room in (24, length):
        sample = ask(engine, [("plain", prompt, 1, Sampling(room, stop=("never said", stop)))])[0]
        assert (sample.ids, sample.stop) == (free.ids[:length], "stop")
        assert sample.logprobs == pytest.approx(free.logprobs[:length], abs=1e-4)
    text = base.chat.text(sample.ids, (stop,))
    assert text == base.chat.text(sample.ids).partition(stop)[0] and stop not in text


@pytest.mark.parametrize("kind", list(ENGINES))
def test_load_changes_the_version_and_what_is_said(kind: str, model_folder: Callable[[str], Path]) -> None:
    base = Base(model_folder("qwen2"))
    for name in ("a", "b"):
        random_adapter(base, name, 4, ("q_proj", "up_proj"), seed=ord(name))
    engine, prompt = ENGINES[kind](base, {"a": "a", "b": "b"}), random_ids(20, seed=3)
    requests = [(policy, prompt, 4, Sampling(8)) for policy in ("a", "b")]
    before = ask(engine, requests)
    with torch.no_grad():
        for pair in pairs(base, "b").values():
            pair.up.mul_(-1)
    engine.load("b", 3)
    after = ask(engine, requests)
    assert [sample.version for sample in (*before, *after)] == [0, 0, 0, 3]
    assert after[0] == before[0] and after[1].ids != before[1].ids
    assert list(after[1].ids) == Oracle(base, "b").says(prompt, 4, Sampling(8))[0]
    empty = ask(engine, [("b", random_ids(CONTEXT, 0), 4, Sampling(8))])[0]
    assert empty.version == 3


def test_clearing_an_engine_changes_nothing_it_says(engine: ClearableEngine) -> None:
    requests = [("c", random_ids(30, seed=n), n, Sampling(6)) for n in range(3)]
    before = ask(engine, requests)
    engine.clear()
    assert ask(engine, requests) == before


@pytest.mark.parametrize("kind", list(ENGINES))
def test_what_a_models_generation_config_asks_for_is_not_done_behind_our_back(
    kind: str, model_folder: Callable[[str], Path]
) -> None:
    """Qwen2.5 ships with a repetition penalty, for one: the log-probs would be those of another policy."""
    base = Base(model_folder("llama"))
    prompt = random_ids(6, seed=1) * 4
    expected = ask(ENGINES[kind](base, {"plain": None}), [("plain", prompt, 2, Sampling(8))])
    base.model.generation_config.repetition_penalty = 5.0
    base.model.generation_config.min_new_tokens = 3
    assert ask(ENGINES[kind](base, {"plain": None}), [("plain", prompt, 2, Sampling(8))]) == expected
    assert base.model.generation_config.repetition_penalty == 5.0


def test_an_hf_request_that_fails_leaves_the_model_to_our_attention(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Base(model_folder("llama"))
    request = ("plain", random_ids(9, seed=1), 2, Sampling(4))
    expected = ask(NativeEngine(base, {"plain": None}), [request])
    with pytest.raises(IndexError):
        ask(HfEngine(base, {"plain": None}), [("plain", [base.vocabulary + 1], 2, Sampling(4))])
    assert ask(NativeEngine(base, {"plain": None}), [request]) == expected


def test_a_router_sends_each_policy_to_the_engine_of_its_base(team_base: Callable[[str], Base]) -> None:
    llama, gemma = (NativeEngine(team_base(kind), {kind: None}) for kind in ("llama", "gemma3"))
    router = Router({"llama": llama, "gemma3": gemma})
    prompt = random_ids(12, seed=6)
    router.load("gemma3", 4)
    samples = ask(router, [(kind, prompt, 1, Sampling(6)) for kind in ("llama", "gemma3")])
    assert samples == [
        ask(llama, [("llama", prompt, 1, Sampling(6))])[0],
        ask(gemma, [("gemma3", prompt, 1, Sampling(6))])[0],
    ]
    assert [sample.version for sample in samples] == [0, 4]
    router.clear()
    assert llama.cache.slots == gemma.cache.slots == 0


def test_two_event_loops_one_after_the_other_share_an_engine(engine: ClearableEngine) -> None:
    request = ("a", random_ids(20, seed=1), 1, Sampling(5))
    assert ask(engine, [request]) == ask(engine, [request]) == [asyncio.run(engine.sample(*request))]
