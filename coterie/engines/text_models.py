"""Models that are asked in text, for the reward `judge`: behind an endpoint, or loaded into this process."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import torch

from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.remote import Endpoint, EndpointUnusable, RemotePlayer
from coterie.engines.text_player import TextPlayer, TextReply
from coterie.models.base import Base
from coterie.models.store import resolve
from coterie.types import Message, Sampling


class LocalPlayer:
    """A model in this process that replies in text; requests that arrive together share decode steps."""

    def __init__(self, model: str) -> None:
        self.base = Base(resolve(model), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        make: Any = NativeEngine if self.base.native else HfEngine
        self.engine = make(self.base, {"judge": None})

    async def reply(self, messages: list[Message], seed: int, sampling: Sampling) -> TextReply:
        chat = self.base.chat
        prompt = chat.prompt(messages)
        if len(prompt) >= self.base.context:
            raise ValueError(f"the judge's prompt has {len(prompt)} tokens, and its context is {self.base.context}")
        sample = await self.engine.sample("judge", prompt, seed, sampling)
        text = chat.text(sample.ids, sampling.stop)
        return TextReply(text, sample.stop, len(prompt), len(sample.ids))


_players: dict[Any, Any] = {}


def player_of(source: Any) -> TextPlayer:
    """Who judges; made once per process."""
    if source not in _players:
        _players[source] = LocalPlayer(source.model) if source.api is None else RemotePlayer(_endpoint(source))
    player: TextPlayer = _players[source]
    return player


def _endpoint(source: Any) -> Endpoint:
    key = os.environ.get(source.key_env) if source.key_env else None
    if source.key_env and not key:
        raise EndpointUnusable(f"reward.key_env: the environment variable {source.key_env} is not set")
    return Endpoint(source.api, source.model, key)


async def ask(source: Any, prompt: str, deadline: float) -> str:
    """A greedy reply to one prompt."""
    messages: list[Message] = [{"role": "user", "content": prompt}]
    async with asyncio.timeout(deadline):
        reply = await player_of(source).reply(messages, 0, Sampling(source.max_tokens, temperature=0.0))
    return reply.text
