"""Judge models, for the reward `judge`: behind an endpoint, or loaded into this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import torch

from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.remote import Endpoint, EndpointUnusable, RemotePlayer
from coterie.engines.text_player import TextPlayer, TextReply
from coterie.models.base import Base
from coterie.models.store import resolve
from coterie.rewards.judge import JudgeSource
from coterie.types import Message, Sampling


class LocalPlayer:
    """A model in this process that replies in text; concurrent requests share decode steps (continuous batching)."""

    def __init__(self, model: str) -> None:
        self.base = Base(resolve(model), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        make: Any = NativeEngine if self.base.native else HfEngine
        self.engine = make(self.base, {"judge": None})

    async def reply(self, messages: Sequence[Message], seed: int, sampling: Sampling) -> TextReply:
        chat = self.base.chat
        prompt = chat.prompt(messages)
        if len(prompt) >= self.base.context:
            raise ValueError(f"the judge's prompt has {len(prompt)} tokens, and its context is {self.base.context}")
        sample = await self.engine.sample("judge", prompt, seed, sampling)
        text = chat.text(sample.ids, sampling.stop)
        return TextReply(text, sample.stop, len(prompt), len(sample.ids))


_judges: dict[JudgeSource, TextPlayer] = {}


def judge_model(source: JudgeSource) -> TextPlayer:
    """The judge model, built once per process."""
    if source not in _judges:
        local = source.api is None
        _judges[source] = LocalPlayer(source.model) if local else RemotePlayer(_endpoint(source))
    return _judges[source]


def _endpoint(source: JudgeSource) -> Endpoint:
    assert source.api is not None
    key = os.environ.get(source.key_env) if source.key_env else None
    if source.key_env and not key:
        raise EndpointUnusable(f"reward.key_env: the environment variable {source.key_env} is not set")
    return Endpoint(source.api, source.model, key)


async def ask(source: JudgeSource, prompt: str, deadline: float) -> str:
    """The judge model's greedy reply to one prompt."""
    messages: list[Message] = [{"role": "user", "content": prompt}]
    async with asyncio.timeout(deadline):
        reply = await judge_model(source).reply(messages, 0, Sampling(source.max_tokens, temperature=0.0))
    return reply.text
