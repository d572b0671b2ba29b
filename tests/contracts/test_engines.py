"""The contract of every engine: a seed reproduces its tokens, and a row ends where it should."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.router import Router
from coterie.engines.vllm import VllmEngine
from coterie.models.base import Base
from coterie.models.lora_targets import DEFAULT_TARGETS
from coterie.types import Engine, Sampling
from tests.models import CONTEXT, SHAPE, tiny_tokenizer
from tests.oracle import POLICIES, Oracle, ask, distribution, pairs, random_adapter, random_ids

ENGINES: dict[str, Any] = {"native": NativeEngine, "hf": HfEngine, "vllm": VllmEngine}
OUR_NOISE = ("native", "hf")  # the same seed draws the same tokens in these
ABSENT = find_spec("vllm") is None
alive: list[VllmEngine] = []
WAYS = {
    "greedy": Sampling(6, temperature=0),
    "free": Sampling(6),
    "hot": Sampling(6, temperature=1.5),
    "likely": Sampling(6, top_p=0.5),
    "few": Sampling(6, temperature=0.8, top_k=3),
    "both": Sampling(6, temperature=1.3, top_p=0.7, top_k=20),
    "greedy and likely": Sampling(6, temperature=0, top_p=0.5),
}


def on(engines: Sequence[str], *kinds: str) -> list[Any]:
    """Engines with models that they can drive: vLLM has no attention for heads as small as our tiny models'."""
    where = {engine: ("wide",) if engine == "vllm" else kinds for engine in engines}
    skip = pytest.mark.skipif(ABSENT, reason="vllm is not installed")
    return [
        pytest.param((engine, kind), id=f"{engine}-{kind}", marks=[skip] if engine == "vllm" else [])
        for engine in engines
        for kind in where[engine]
    ]


def made(name: str, base: Base, policies: dict[str, str | None], **options: Any) -> Any:
    """An engine. vLLM engines are kept alive: deleting one breaks the others of the process."""
    engine = ENGINES[name](base, policies, **options)
    alive.extend([engine] if name == "vllm" else [])
    return engine


def wide(folder: Path) -> Path:
    """A tiny llama with heads of 32."""
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(**SHAPE | {"num_hidden_layers": 2, "head_dim": 32, "tie_word_embeddings": True})
    ).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folder_of(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda kind: wide(tmp_path_factory.mktemp("wide")) if kind == "wide" else model_folder(kind))


@pytest.fixture(scope="session")
def wide_base(folder_of: Callable[[str], Path]) -> Callable[[], Base]:
    @cache
    def make() -> Base:
        base = Base(folder_of("wide"))
        for name, rank, targets in (("a", 4, ["q_proj", "down_proj"]), ("b", 2, DEFAULT_TARGETS), ("c", 8, ["o_proj"])):
            random_adapter(base, name, rank, targets, seed=rank)
        return base

    return make


@pytest.fixture(scope="session")
def started() -> Callable[[str, Base], Engine]:
    """An engine on a base. vLLM takes seconds to start, so there is one for all tests."""

    def fresh(name: str, base: Base) -> Engine:
        return made(name, base, POLICIES, rows=16)

    once = cache(fresh)
    return lambda name, base: once(name, base) if name == "vllm" else fresh(name, base)


@pytest.fixture(params=on(list(ENGINES), "llama", "gemma3"))
def setting(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name of an engine, and of the model that it drives."""
    return request.param


@pytest.fixture
def base(setting: tuple[str, str], team_base: Callable[[str], Base], wide_base: Callable[[], Base]) -> Base:
    return wide_base() if setting[1] == "wide" else team_base(setting[1])


@pytest.fixture
def engine(setting: tuple[str, str], base: Base, started: Callable[[str, Base], Engine]) -> Engine:
    return started(setting[0], base)


@pytest.mark.parametrize("way", list(WAYS))
def test_a_seed_draws_its_tokens_with_their_logprobs(
    setting: tuple[str, str], engine: Engine, base: Base, way: str
) -> None:
    if (setting[0], way) == ("vllm", "greedy and likely"):
        pytest.skip("vLLM cuts nothing away at temperature 0")
    oracle, prompts = Oracle(base, "b"), [random_ids(length, seed=length) for length in (2, 25)]
    requests = [("b", prompt, 50 + n, WAYS[way]) for n, prompt in enumerate(prompts)]
    samples = ask(engine, requests)
    assert [sample.ids for sample in ask(engine, requests)] == [sample.ids for sample in samples]
    for n, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
        assert sample.logprobs == pytest.approx(expected_logprobs(oracle, prompt, sample.ids, WAYS[way]), abs=1e-4)
        if setting[0] in OUR_NOISE or way == "greedy":
            assert list(sample.ids) == oracle.says(prompt, 50 + n, WAYS[way])[0]


def expected_logprobs(oracle: Oracle, prompt: list[int], ids: Sequence[int], sampling: Sampling) -> list[float]:
    """The log-prob of every token in the model's distribution after temperature, top-k and top-p."""
    logits = oracle.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return [float(distribution(row, sampling)[token].log()) for row, token in zip(logits, ids, strict=True)]


@pytest.mark.parametrize(
    ("prompt", "complaint"), [([], "the prompt is empty"), ([3, 99999], "token 99999"), ([-1], "token -1")]
)
def test_an_empty_prompt_or_an_unknown_token_is_refused(engine: Engine, prompt: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ask(engine, [("plain", prompt, 0, Sampling(3))])


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}])
def test_invalid_sampling_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: got {next(iter(wrong.values()))}, expected a"):
        Sampling(**wrong)


def test_a_reply_has_max_tokens_and_stop_reason_length(engine: Engine) -> None:
    prompt = random_ids(10, seed=0)
    for room in (1, 2, 5):
        sample = ask(engine, [("plain", prompt, 1, Sampling(room))])[0]
        assert (len(sample.ids), len(sample.logprobs), sample.stop) == (room, room, "length")


def test_an_end_token_ends_the_answer_and_is_part_of_it(
    engine: Engine, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [("a", random_ids(5, seed), seed, Sampling(6)) for seed in range(4)]
    free = ask(engine, requests)
    monkeypatch.setattr(base.chat, "end_ids", frozenset({free[0].ids[2], free[1].ids[0], free[2].ids[5]}))
    for sample, whole in zip(ask(engine, requests), free, strict=True):
        ends = [n for n, token in enumerate(whole.ids) if token in base.chat.end_ids]
        assert sample.ids == (whole.ids[: ends[0] + 1] if ends else whole.ids)
        assert len(sample.logprobs) == len(sample.ids)
        assert sample.stop == ("end" if ends else "length")


def test_a_prompt_that_fills_the_context_gets_an_empty_answer(engine: Engine) -> None:
    for length in (CONTEXT, CONTEXT + 7):
        sample = ask(engine, [("plain", random_ids(length, 0), 1, Sampling(5))])[0]
        assert (sample.ids, sample.logprobs, sample.stop) == ((), (), "length")


def test_prompt_and_answer_never_exceed_the_context(engine: Engine) -> None:
    prompt = random_ids(CONTEXT - 3, seed=1)
    whole, cut = ask(engine, [("plain", prompt, 1, Sampling(room)) for room in (3, 50)])
    assert len(cut.ids) == 3 and cut.stop == "length"
    assert cut.ids == whole.ids


def test_engine_context_may_be_smaller_than_the_models_but_not_larger(setting: tuple[str, str], base: Base) -> None:
    small, large = (made(setting[0], base, POLICIES, context=context) for context in (20, 10 * CONTEXT))
    request = ("plain", random_ids(16, seed=1), 3, Sampling(9))
    assert len(ask(small, [request])[0].ids) == 4
    assert large.context == CONTEXT


def test_a_stop_string_ends_the_answer_and_is_not_in_its_text(engine: Engine, base: Base) -> None:
    """Also when it is completed by the last token of max_tokens."""
    prompt = random_ids(20, seed=8)
    free = ask(engine, [("plain", prompt, 1, Sampling(24))])[0]
    words = [base.chat.text([token]) for token in free.ids]
    stop = next(word for word in words[3:] if word.isascii() and word.isprintable() and word)
    length = next(n for n in range(1, 25) if stop in base.chat.text(free.ids[:n]))
    for room in (24, length):
        sample = ask(engine, [("plain", prompt, 1, Sampling(room, stop=("never sampled", stop)))])[0]
        assert (sample.ids, sample.stop) == (free.ids[:length], "stop")
        assert sample.logprobs == pytest.approx(free.logprobs[:length], abs=1e-4)
    text = base.chat.text(sample.ids, (stop,))
    assert text == base.chat.text(sample.ids).partition(stop)[0] and stop not in text


@pytest.mark.parametrize("where", on(list(ENGINES), "qwen2"))
def test_changed_weights_change_the_version_and_the_samples(
    where: tuple[str, str], folder_of: Callable[[str], Path]
) -> None:
    base = Base(folder_of(where[1]))
    for name in ("a", "b"):
        random_adapter(base, name, 4, ("q_proj", "up_proj"), seed=ord(name))
    engine, prompt = made(where[0], base, {"a": "a", "b": "b"}), random_ids(20, seed=3)
    requests = [(policy, prompt, 4, Sampling(8)) for policy in ("a", "b")]
    before = ask(engine, requests)
    with torch.no_grad():
        for pair in pairs(base, "b").values():
            pair.up.mul_(-1)
    engine.weights_changed("b", 3)
    after = ask(engine, requests)
    assert [sample.version for sample in (*before, *after)] == [0, 0, 0, 3]
    assert after[0] == before[0] and after[1].ids != before[1].ids
    expected = expected_logprobs(Oracle(base, "b"), prompt, after[1].ids, Sampling(8))
    assert after[1].logprobs == pytest.approx(expected, abs=1e-4)
    empty = ask(engine, [("b", random_ids(CONTEXT, 0), 4, Sampling(8))])[0]
    assert empty.version == 3


def test_clearing_an_engine_changes_no_sample(engine: Engine) -> None:
    requests = [("c", random_ids(30, seed=n), n, Sampling(6)) for n in range(3)]
    before = ask(engine, requests)
    engine.clear()
    assert ask(engine, requests) == before


@pytest.mark.parametrize("where", on(list(ENGINES), "llama"))
def test_a_fully_trained_model_samples_with_its_current_weights(
    where: tuple[str, str], folder_of: Callable[[str], Path]
) -> None:
    base, prompt = Base(folder_of(where[1])), random_ids(20, seed=3)
    engine = made(where[0], base, {"all": None})
    before = ask(engine, [("all", prompt, 4, Sampling(8))])[0]
    with torch.no_grad():
        for name, parameter in base.model.named_parameters():
            if "down_proj" in name or "q_proj" in name or "embed" in name:
                parameter.mul_(-0.9)
    torch.autograd.graph.increment_version(list(base.model.parameters()))
    engine.weights_changed("all", 1)
    after = ask(engine, [("all", prompt, 4, Sampling(8))])[0]
    assert after.ids != before.ids and after.version == 1
    oracle = Oracle(base)
    oracle.model.load_state_dict(base.model.state_dict())
    expected = expected_logprobs(oracle, prompt, after.ids, Sampling(8))
    assert after.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("where", on(list(ENGINES), "llama"))
def test_a_models_generation_config_does_not_change_the_distribution(
    where: tuple[str, str], folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Qwen2.5 ships with a repetition penalty, for example: the log-probs would be those of another policy."""
    plain = folder_of(where[1])
    habits = shutil.copytree(plain, tmp_path / "habits")
    GenerationConfig(eos_token_id=2, repetition_penalty=5.0, min_new_tokens=3).save_pretrained(habits)
    prompt = random_ids(6, seed=1) * 4
    expected = ask(made(where[0], Base(plain), {"plain": None}), [("plain", prompt, 2, Sampling(8))])
    base = Base(habits)
    assert base.model.generation_config.repetition_penalty == 5.0
    assert ask(made(where[0], base, {"plain": None}), [("plain", prompt, 2, Sampling(8))]) == expected
    assert base.model.generation_config.repetition_penalty == 5.0


@pytest.mark.skipif(not ABSENT, reason="vllm is installed")
def test_without_vllm_its_engine_says_what_to_install(team_base: Callable[[str], Base]) -> None:
    with pytest.raises(ValueError, match=r"vllm is not installed; `pip install -e '\.\[vllm\]'`"):
        VllmEngine(team_base("llama"), POLICIES)


def test_an_hf_request_that_fails_leaves_the_model_to_our_attention(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Base(model_folder("llama"))
    request = ("plain", random_ids(9, seed=1), 2, Sampling(4))
    expected = ask(NativeEngine(base, {"plain": None}), [request])
    with pytest.raises(IndexError), monkeypatch.context() as unchecked:
        unchecked.setattr(base, "check_prompt", lambda *_: None)
        ask(HfEngine(base, {"plain": None}), [("plain", [base.vocab_size + 1], 2, Sampling(4))])
    assert ask(NativeEngine(base, {"plain": None}), [request]) == expected


def test_a_router_sends_each_policy_to_the_engine_of_its_base(team_base: Callable[[str], Base]) -> None:
    llama, gemma = (NativeEngine(team_base(kind), {kind: None}) for kind in ("llama", "gemma3"))
    router = Router({"llama": llama, "gemma3": gemma})
    prompt = random_ids(12, seed=6)
    router.weights_changed("gemma3", 4)
    samples = ask(router, [(kind, prompt, 1, Sampling(6)) for kind in ("llama", "gemma3")])
    assert samples == [
        ask(llama, [("llama", prompt, 1, Sampling(6))])[0],
        ask(gemma, [("gemma3", prompt, 1, Sampling(6))])[0],
    ]
    assert [sample.version for sample in samples] == [0, 4]
    router.clear()
    assert llama.cache.slots == gemma.cache.slots == 0


def test_two_event_loops_one_after_the_other_share_an_engine(engine: Engine) -> None:
    request = ("a", random_ids(20, seed=1), 1, Sampling(5))
    assert ask(engine, [request]) == ask(engine, [request]) == [asyncio.run(engine.sample(*request))]
