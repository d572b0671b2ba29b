"""Plain Hugging Face `generate`: the slow oracle, and the engine of models that ours cannot drive.

The same seed draws the same tokens as in the native engine: our noise is added to the scores, and
`generate` takes the largest.
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

from coterie.engines.request_checks import must_be_readable
from coterie.kernels.sampling import Sampler, draw_key
from coterie.kernels.top_p_top_k import keep_likely
from coterie.models.base import Base
from coterie.models.chat import StopText
from coterie.types import Sample, Sampling, Stop
from coterie.watchdog import watchdog_paused


class HfEngine:
    """One `generate` call per request, on the learner's own weights."""

    def __init__(self, base: Base, policies: dict[str, str | None], rows: int = 1, context: int | None = None) -> None:
        self.base, self.policies = base, dict(policies)
        self.context = min(context or base.context, base.context)
        self.sampler = Sampler(base.vocab_size, base.device)
        self.versions = dict.fromkeys(policies, 0)

    def weights_changed(self, policy: str, version: int) -> None:
        self.versions[policy] = version

    def clear(self) -> None:
        """Nothing is kept between requests."""

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        await asyncio.sleep(0)
        must_be_readable(prompt_ids, self.base.vocab_size)
        room = min(sampling.max_tokens, self.context - len(prompt_ids))
        if room <= 0:
            return Sample((), (), "length", self.versions[policy])
        draw = SamplerLogitsProcessor(self.sampler, len(prompt_ids), [seed], sampling)
        said = _AtStopText(self.base.tokenizer, sampling.stop)
        with watchdog_paused():
            ids = self._generate(self.policies[policy], prompt_ids, room, draw, said)
        stop: Stop = "end" if ids[-1] in self.base.chat.end_ids else "stop" if said.reached else "length"
        return Sample(tuple(ids), tuple(row[0] for row in draw.logprobs), stop, self.versions[policy])

    @torch.no_grad()
    def _generate(
        self, adapter: str | None, prompt: Sequence[int], room: int, draw: SamplerLogitsProcessor, said: _AtStopText
    ) -> list[int]:
        tokens = torch.tensor([list(prompt)], device=self.base.device)
        # A segment without end: `generate` feeds the whole prompt first and then one token at a time.
        with self.base.with_own_attention(), _without_habits(self.base), self.base.routing.on([(0, 1 << 30, adapter)]):
            out = self.base.model.generate(  # type: ignore[operator]
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=room,
                do_sample=False,
                eos_token_id=sorted(self.base.chat.end_ids),
                pad_token_id=min(self.base.chat.end_ids),
                logits_processor=LogitsProcessorList([draw]),
                stopping_criteria=StoppingCriteriaList([said] if said.watch.stops else []),
            )
        return out[0, len(prompt) :].tolist()


@contextmanager
def _without_habits(base: Base) -> Iterator[None]:
    """What a model's generation config asks of `generate`, a repetition penalty say, would bend the distribution."""
    habits, base.model.generation_config = base.model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        base.model.generation_config = habits


class SamplerLogitsProcessor(LogitsProcessor):
    """Leaves each row one token to choose: the one that the native sampler would draw."""

    def __init__(self, sampler: Sampler, prompt: int, seeds: Sequence[int], sampling: Sampling) -> None:
        """`prompt` is the length of the rows before anything was drawn; every row has its own seed."""
        self.sampler, self.prompt, self.seeds, self.sampling = sampler, prompt, seeds, sampling
        self.logprobs: list[list[float]] = []  # of each step, one per row

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        how, rows, device = self.sampling, len(scores), scores.device
        temperature = torch.full((rows,), float(how.temperature), device=device)
        position = input_ids.shape[1] - self.prompt
        keys = torch.tensor([draw_key(seed, position) for seed in self.seeds], dtype=torch.int32, device=device)
        if how.top_p < 1 or how.top_k:
            top_p, top_k = torch.full_like(temperature, how.top_p), torch.full((rows,), how.top_k, device=device)
            scores = keep_likely(scores, top_p, top_k, temperature)
        ids, logprobs = self.sampler(scores, temperature, keys)
        self.logprobs.append(logprobs.tolist())
        return torch.full_like(scores, -torch.inf).scatter(1, ids[:, None], 0.0)


class _AtStopText(StoppingCriteria):
    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self.watch = StopText(tokenizer, stops)
        self.reached = False

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        self.reached = self.watch.feed(int(input_ids[0, -1]))
        return torch.tensor([self.reached], device=input_ids.device)
