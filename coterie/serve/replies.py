"""Replies of a team or of one role, as coroutines for the engine's loop, and their form in OpenAI's format."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.models.chat import trim
from coterie.models.reply_stream import ReplyStream
from coterie.models.token_text import INCOMPLETE
from coterie.rollout.agent import Player
from coterie.rollout.playable import PlayableTeam, answer_text
from coterie.seeds import stable_hash
from coterie.serve.chat_request import ChatRequest
from coterie.serve.errors import TooLong
from coterie.types import Sampling, Stop, Task

FINISH_REASONS: dict[Stop, str] = {"end": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True)
class Piece:
    """A part of a reply: its text, and the tokens sampled for it with their log-probs."""

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reply:
    """How a reply ended, and what it cost."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


OnPiece = Callable[[Piece], None]


@dataclass
class RoleReply:
    """One role's reply to the messages of a request; `prepare` renders and checks the prompt, `run` samples."""

    team: PlayableTeam
    role: str
    request: ChatRequest
    prompt: tuple[int, ...] = ()
    pending: list[tuple[int, float]] = field(default_factory=list)  # tokens whose text is held back

    @property
    def policy(self) -> str:
        return self.team.players[self.role].policy

    async def prepare(self) -> None:
        self.prompt = self.team.chats[self.policy].prompt(self.request.conversation)
        context = self.team.contexts[self.policy]
        if len(self.prompt) >= context:
            found = f"the messages have {len(self.prompt)} tokens for {self.role}"
            raise TooLong(f"{found}, and its context is {context}, prompt and reply together")

    async def run(self, on_piece: OnPiece) -> Reply:
        sampling, chat = sampling_of(self.team.players[self.role], self.request), self.team.chats[self.policy]
        most, stop = self.request.most_tokens or sampling.max_tokens, (*sampling.stop, *self.request.stops)
        sampling = replace(sampling, max_tokens=most, stop=stop)
        stream = ReplyStream(chat, sampling.stop)

        def on_tokens(ids: Sequence[int], logprobs: Sequence[float]) -> None:
            self.pending += [pair for pair in zip(ids, logprobs, strict=True) if pair[0] not in chat.end_ids]
            if text := stream.feed(ids):
                on_piece(self._piece(text))

        seed = stable_hash(seed_of(self.request), self.role, 0)
        sample = await self.team.engine.sample(self.policy, self.prompt, seed, sampling, on_tokens)
        on_piece(self._piece(stream.finish()))
        return Reply(FINISH_REASONS[sample.stop], len(self.prompt), len(sample.ids))

    def _piece(self, text: str) -> Piece:
        pairs, self.pending = self.pending, []
        return Piece(text, tuple(id for id, _ in pairs), tuple(logprob for _, logprob in pairs))


@dataclass
class TeamReply:
    """The team's answer to the last user message, by its workflow; it comes as one piece."""

    team: PlayableTeam
    request: ChatRequest

    async def prepare(self) -> None:
        """Nothing to check: the prompts of the roles are known only during the episode."""

    async def run(self, on_piece: OnPiece) -> Reply:
        players = {role: self._player(player) for role, player in self.team.players.items()}
        question = next(m["content"] for m in reversed(self.request.conversation) if m["role"] == "user")
        task = Task(f"request-{secrets.token_hex(8)}", question, None)
        episode = await self.team.play(task, players, seed_of(self.request))
        for turn in episode.turns:
            if turn.stop == "length" and not turn.response_ids and turn.api_tokens is None:
                context = self.team.contexts[turn.policy]
                found = f"the prompt of {turn.role} has {len(turn.prompt_ids)} tokens"
                raise TooLong(f"{found}, and its context is {context}, prompt and reply together")
        on_piece(Piece(trim(answer_text(episode.answer), self.request.stops)))
        last = episode.turns[-1].stop if episode.turns else "end"
        prompts, replies = (sum(turn.tokens[i] for turn in episode.turns) for i in (0, 1))
        return Reply(FINISH_REASONS[last], prompts, replies)

    def _player(self, player: Player) -> Player:
        """A role in this request: `max_tokens` limits each role's replies, beside its own limit."""
        sampling = sampling_of(player, self.request)
        most = min(sampling.max_tokens, self.request.most_tokens or sampling.max_tokens)
        return replace(player, sampling=replace(sampling, max_tokens=most))


def sampling_of(player: Player, request: ChatRequest) -> Sampling:
    """How a role samples: as the team was evaluated, with the request's temperature and top_p."""
    requested: dict[str, Any] = {"temperature": request.temperature, "top_p": request.top_p}
    return replace(player.sampling, **{key: value for key, value in requested.items() if value is not None})


def seed_of(request: ChatRequest) -> int:
    return secrets.randbits(62) if request.seed is None else request.seed


def completion(request: ChatRequest, text: str, reply: Reply, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    """A whole `chat.completion`."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": reply.finish_reason,
    }
    return head(request, "chat.completion") | {"choices": [choice], "usage": reply.usage}


def merged(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The log-probs of several pieces as one."""
    known = [part for part in parts if part is not None]
    return {"content": [token for part in known for token in part["content"]], "refusal": None} if known else None


def head(request: ChatRequest, kind: str) -> dict[str, Any]:
    """The fields that every reply and every chunk begins with."""
    identity = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": identity, "object": kind, "created": int(time.time()), "model": request.model}


def chunk(
    start: dict[str, Any], delta: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None = None
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return start | {"choices": [choice]}


def token_logprobs(team: PlayableTeam, policy: str, piece: Piece) -> dict[str, Any]:
    """Log-probs in OpenAI's form. The bytes of a token that is no whole character are null."""
    texts = [str(team.chats[policy].tokenizer.decode([id])) for id in piece.ids]
    tokens = [
        {
            "token": text,
            "logprob": logprob,
            "bytes": None if INCOMPLETE in text else list(text.encode()),
            "top_logprobs": [],
        }
        for text, logprob in zip(texts, piece.logprobs, strict=True)
    ]
    return {"content": tokens, "refusal": None}
