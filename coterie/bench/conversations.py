"""Chats with a real model, sampled by the native engine and by Hugging Face `generate`: the same tokens from both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch
from transformers import LogitsProcessorList

from coterie.bench.measure import Row, Timing, timed
from coterie.bench.options import half
from coterie.bench.sampling import Ids, logprob_gap
from coterie.engines.hf import SamplerLogitsProcessor
from coterie.engines.native.engine import NativeEngine
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.lora_targets import DEFAULT_TARGETS
from coterie.models.store import load_model, resolve
from coterie.types import Message, Sampling

Conversation = list[Message]
Conversations = list[Conversation]

SUBJECTS = ("a fox", "the sea", "bread", "seven hills", "a clock", "winter", "an old map", "the moon")
REQUESTS = (
    "Name one thing that {0} needs. One word.",
    "What colour is {0}? Answer in one short sentence, and do not explain why.",
    "Write two sentences about {0}. Then say whether you would rather be {0} or a stone, and give your reason.",
    "I am preparing a talk for my class and must say something about {0} that nobody there has heard before. The "
    "class is young, the room is loud, and I have two minutes. List three points that I could make, each in a line.",
)


def conversation_rows(model: str, device: torch.device, max_tokens: int, repeats: int) -> list[Row]:
    """Four workloads of rollouts: ragged prompts, groups of samples, multi-turn conversations, mixed adapters."""
    base = Base(resolve(model), device)
    names = ("a", "b", "c", "d")
    for seed, name in enumerate(names):  # they start as the identity, so the tokens do not change
        Adapter(name, 16, 32.0, DEFAULT_TARGETS).attach(base.layers, seed)
    bench = ConversationBench(base, NativeEngine(base, {"base": None} | {name: name for name in names}), max_tokens)
    questions = [REQUESTS[i % 4].format(SUBJECTS[i // 4]) for i in range(32)]
    ragged: Conversations = [[{"role": "user", "content": question}] for question in questions]
    groups = [conversation for conversation in ragged[3::8] for _ in range(8)]
    found = [
        bench.compare("32 ragged prompts", ragged, 0.0, repeats),
        bench.compare("4 prompts × 8 samples", groups, 1.0, repeats),
        bench.compare("16 conversations of 3 turns", ragged[:16], 0.0, repeats, turns=3),
        bench.adapters("4 adapters mixed", ragged, names, repeats),
    ]
    if half(device) != torch.float32:  # a run's precision on a GPU; tokens are identical in float32 only
        light = Base(base.folder, device, half(device))
        prompts = [light.chat.prompt(conversation) for conversation in ragged]
        engine = NativeEngine(light, {"base": None})
        found[0].notes["gap in half precision"] = logprob_gap(engine, "base", prompts, max_tokens)
    return found


class ConversationBench:
    """Samples the same tokens with the native engine and with `generate`, with our sampler as logits processor."""

    def __init__(self, base: Base, engine: NativeEngine, max_tokens: int) -> None:
        self.base, self.engine, self.max_tokens = base, engine, max_tokens
        # Unmodified, without our linear layers.
        self.baseline = torch.nn.Module.to(load_model(base.folder, torch.float32, "sdpa"), base.device)

    def compare(self, work: str, conversations: Conversations, temperature: float, repeats: int, turns: int = 1) -> Row:
        self._ours(conversations[:2], temperature, turns, ["base"])  # warm up, both
        self._theirs(conversations[:2], temperature, turns)
        ours, baselines = [], []
        for _ in range(repeats):
            mine, answers = self._timed(lambda: self._ours(conversations, temperature, turns, ["base"]))
            theirs, baseline_answers = self._timed(lambda: self._theirs(conversations, temperature, turns))
            same = sum(a == b for a, b in zip(answers, baseline_answers, strict=True))
            if same < 0.9 * len(answers):  # a few may differ where two tokens are equally likely
                raise RuntimeError(f"only {same} of {len(answers)} answers are the same")
            ours.append(mine)
            baselines.append(theirs)
        return Row(work, "native", "generate", ours, baselines)

    def adapters(self, work: str, conversations: Conversations, names: Sequence[str], repeats: int) -> Row:
        mixed, plain = [], []
        for _ in range(repeats):
            mixed.append(self._timed(lambda: self._ours(conversations, 0.0, 1, names))[0])
            plain.append(self._timed(lambda: self._ours(conversations, 0.0, 1, ["base"]))[0])
        return Row(work, "native", "native, none", mixed, plain)

    def _timed(self, play: Callable[[], list[Ids]]) -> tuple[Timing, list[Ids]]:
        answers: list[Ids] = []

        def way() -> int:
            answers.extend(play())
            return sum(len(ids) for ids in answers)

        return timed(way, self.base.device), answers

    def _ours(self, conversations: Conversations, temperature: float, turns: int, policies: Sequence[str]) -> list[Ids]:
        sampling = Sampling(self.max_tokens, temperature)

        async def conversation(i: int) -> list[Ids]:
            messages, answers = list(conversations[i]), []
            prompt = self.base.chat.prompt(messages)
            for turn in range(turns):
                answer = await self.engine.sample(policies[i % len(policies)], prompt, 100 * i + turn, sampling)
                answers.append(answer.ids)
                messages, prompt = self._continue(messages, prompt, answer.ids)
            return answers

        async def play() -> list[list[Ids]]:
            return await asyncio.gather(*(conversation(i) for i in range(len(conversations))))

        answers = asyncio.run(play())
        self.engine.clear()
        return [ids for one in answers for ids in one]

    def _theirs(self, conversations: Conversations, temperature: float, turns: int) -> list[Ids]:
        histories = [list(conversation) for conversation in conversations]
        prompts = [self.base.chat.prompt(messages) for messages in histories]
        answers: list[list[Ids]] = [[] for _ in conversations]
        for turn in range(turns):
            replies = self._generate(prompts, [100 * i + turn for i in range(len(conversations))], temperature)
            for i, answer in enumerate(replies):
                answers[i].append(answer)
                histories[i], prompts[i] = self._continue(histories[i], prompts[i], answer)
        return [ids for one in answers for ids in one]

    def _continue(self, messages: Conversation, prompt: Ids, answer: Ids) -> tuple[Conversation, Ids]:
        reply = self.base.chat.text(answer)
        more: Conversation = [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
        return more, self.base.chat.extend(messages, prompt, answer, reply, more) or self.base.chat.prompt(more)

    @torch.no_grad()
    def _generate(self, prompts: list[Ids], seeds: list[int], temperature: float) -> list[Ids]:
        longest, end = max(map(len, prompts)), min(self.base.chat.end_ids)
        tokens = torch.tensor([[end] * (longest - len(p)) + list(p) for p in prompts], device=self.base.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.base.device)
        how = Sampling(self.max_tokens, temperature)
        processors = [SamplerLogitsProcessor(self.engine.sampler, longest, seeds, how)] if temperature else []
        draw = LogitsProcessorList(processors)
        out = self.baseline.generate(  # type: ignore[operator]
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=self.max_tokens,
            do_sample=False,
            eos_token_id=sorted(self.base.chat.end_ids),
            pad_token_id=end,
            logits_processor=draw,
        )
        return [self._until_end(row) for row in out[:, longest:].tolist()]

    def _until_end(self, ids: list[int]) -> Ids:
        ends = [i for i, token in enumerate(ids) if token in self.base.chat.end_ids]
        return tuple(ids[: ends[0] + 1] if ends else ids)
