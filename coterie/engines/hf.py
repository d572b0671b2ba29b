"""Hugging Face `generate` as the engine: slow, for models that the native engine cannot drive, and as a test oracle.

The same seed gives the same tokens as in the native engine: a logits processor draws the token with the native
sampler's noise and masks all others, so that `generate`'s greedy search picks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from coterie.engines.requests import reply_room
from coterie.kernels.sampling import Sampler, rng_key
from coterie.kernels.top_p_top_k import top_k_top_p
from coterie.models.base import Base
from coterie.models.chat import StopText
from coterie.types import OnTokens, Sample, Sampling, Stop, Weights
from coterie.watchdog import watchdog_paused


class HfEngine:
    """One `generate` call per request, on the learner's own weights."""

    def __init__(self, base: Base, policies: dict[str, str | None], rows: int = 1, context: int | None = None) -> None:
        self.base, self.policies = base, dict(policies)
        self.context = min(context or base.context, base.context)
        self.sampler = Sampler(base.vocab_size, base.device)
        self.versions = dict.fromkeys(policies, 0)

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        self.base.load_weights(self.policies[policy], weights)
        self.versions[policy] = version

    def clear(self) -> None:
        """Nothing is cached between requests."""

    async def sample(
        self,
        policy: str,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: Sampling,
        on_tokens: OnTokens | None = None,
    ) -> Sample:
        await asyncio.sleep(0)
        if not (room := reply_room(self.base, self.context, prompt_ids, sampling)):
            return Sample((), (), "length", self.versions[policy])
        processor = SamplerLogitsProcessor(self.sampler, len(prompt_ids), [seed], sampling)
        stops = _StopStrings(self.base.tokenizer, sampling.stop)
        with watchdog_paused():
            ids = self._generate(self.policies[policy], prompt_ids, room, processor, stops)
        stop: Stop = "end" if ids[-1] in self.base.chat.end_ids else "stop" if stops.reached else "length"
        logprobs = [row[0] for row in processor.logprobs]
        if on_tokens is not None:
            on_tokens(ids, logprobs)
        return Sample(tuple(ids), tuple(logprobs), stop, self.versions[policy])

    @torch.no_grad()
    def _generate(
        self, adapter: str | None, prompt: Sequence[int], room: int, processor: LogitsProcessor, stops: _StopStrings
    ) -> list[int]:
        tokens = torch.tensor([list(prompt)], device=self.base.device)
        # A segment without end: `generate` feeds the whole prompt first, then one token at a time.
        with self.base.with_own_attention(), _no_defaults(self.base), self.base.routing.on([(0, 1 << 30, adapter)]):
            out = self.base.model.generate(  # type: ignore[operator]
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=room,
                do_sample=False,
                eos_token_id=sorted(self.base.chat.end_ids),
                pad_token_id=min(self.base.chat.end_ids),
                logits_processor=LogitsProcessorList([processor]),
                stopping_criteria=StoppingCriteriaList([stops] if stops.detector.stops else []),
            )
        return out[0, len(prompt) :].tolist()


@contextmanager
def _no_defaults(base: Base) -> Iterator[None]:
    """Unset the model's generation config: a repetition penalty, for example, would change the distribution."""
    defaults, base.model.generation_config = base.model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        base.model.generation_config = defaults


class SamplerLogitsProcessor(LogitsProcessor):
    """Masks all tokens but the one that the native sampler draws, and records its log-prob."""

    def __init__(self, sampler: Sampler, prompt: int, seeds: Sequence[int], sampling: Sampling) -> None:
        """`prompt`: the prompt length of the rows; every row has its own seed."""
        self.sampler, self.prompt, self.seeds, self.sampling = sampler, prompt, seeds, sampling
        self.logprobs: list[list[float]] = []  # of each step, one per row

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        sampling, rows, device = self.sampling, len(scores), scores.device
        temperature = torch.full((rows,), float(sampling.temperature), device=device)
        position = input_ids.shape[1] - self.prompt
        keys = torch.tensor([rng_key(seed, position) for seed in self.seeds], dtype=torch.int32, device=device)
        if sampling.top_p < 1 or sampling.top_k:
            top_p = torch.full_like(temperature, sampling.top_p)
            scores = top_k_top_p(scores, top_p, torch.full((rows,), sampling.top_k, device=device), temperature)
        ids, logprobs = self.sampler(scores, temperature, keys)
        self.logprobs.append(logprobs.tolist())
        return torch.full_like(scores, -torch.inf).scatter(1, ids[:, None], 0.0)


class _StopStrings(StoppingCriteria):
    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self.detector = StopText(tokenizer, stops)
        self.reached = False

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        self.reached = self.detector.feed(int(input_ids[0, -1]))
        return torch.tensor([self.reached], device=input_ids.device)
