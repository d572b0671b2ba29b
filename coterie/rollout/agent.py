"""Agents, for `team.solver.say(…)` in a workflow: each renders prompts, samples from the engine and records turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from coterie.config import Config
from coterie.engines.text_player import TextPlayer
from coterie.errors import did_you_mean
from coterie.models.chat import Chat
from coterie.models.reply_stream import ReplyStream
from coterie.prompts import lone_surrogate
from coterie.seeds import stable_hash
from coterie.types import Engine, Message, Sample, Sampling, Turn

Players = Mapping[str, "Player"]  # by role
FixedTurns = Mapping[tuple[str, int], Turn | str]  # by role and its nth turn: a recorded turn, or a text
OnText = Callable[[str, str | None], None]  # called with a role and the next part of its reply, None at its end
SAMPLED = [f.name for f in fields(Turn) if f.default is MISSING]  # the fields that are set when a turn is sampled


@dataclass(frozen=True)
class Player:
    """The policy that plays a role, and how its turns are sampled."""

    policy: str
    sampling: Sampling
    later: tuple[str, ...] = ()  # the policies of its second turn, its third …; the last one plays all that follow

    def policy_at(self, nth: int) -> str:
        """The policy that plays the role's nth turn."""
        return (self.policy, *self.later)[min(nth, len(self.later))]


def players_of(config: Config, policies: Mapping[str, str], evaluating: bool) -> dict[str, Player]:
    """The player of each role; `policies`: the policy of each role's first turn."""
    sampling = config.evaluation_sampling_of if evaluating else config.sampling_of
    later = {name: role.policies[1:] for name, role in config.roles.items()}
    return {role: Player(policy, sampling(role), later[role]) for role, policy in policies.items()}


def truncates_more(sampling: Sampling, role: Sampling) -> bool:
    """True if top-p, top-k or greedy decoding truncates the distribution in a way that the role's sampling does not."""
    top_p = sampling.top_p < 1 and sampling.top_p != role.top_p
    top_k = sampling.top_k > 0 and sampling.top_k != role.top_k
    return top_p or top_k or (sampling.temperature == 0 and role.temperature > 0)


def changed(sampling: Sampling, overrides: Mapping[str, Any]) -> Sampling:
    """The sampling with what a workflow passes to `say`."""
    known = [one.name for one in fields(Sampling)]
    for name in overrides:
        if name not in known:
            raise TypeError(f"say() has no option {name!r}; it takes {', '.join(known)}{did_you_mean(name, known)}")
    return replace(sampling, **overrides)


def as_messages(messages: str | Sequence[Message]) -> list[Message]:
    """A list of messages; a bare string is one user message. Invalid ones raise here, while the workflow's call is
    on the traceback."""
    form = '{"role": "user", "content": "…"}'
    if not isinstance(messages, Iterable) or isinstance(messages, Mapping):
        raise TypeError(f"say() got {messages!r:.80}; it takes a text or a list of messages, as [{form}]")
    conversation = [Message(role="user", content=messages)] if isinstance(messages, str) else list(messages)
    for number, message in enumerate(conversation, 1):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise TypeError(f"say() got {message!r:.80} among its messages; each must be a mapping of texts, as {form}")
        if problem := lone_surrogate(message["content"]):
            raise ValueError(f"say(): message {number} ({message['role']}) {problem}")
    return conversation


class RecordingAgent:
    """One role in one episode: renders prompts, samples turns and records them."""

    def __init__(
        self,
        role: str,
        player: Player,
        chats: Mapping[str, Chat],
        engine: Engine,
        seed: int,
        turns: list[Turn | None],
        fixed_turns: FixedTurns,
        on_text: OnText | None = None,
        text_players: Mapping[str, TextPlayer] | None = None,
    ) -> None:
        self.role, self.player, self.chats, self.engine, self.seed = role, player, chats, engine, seed
        self.turns = turns  # of the whole episode, in the order of requests; None while a turn is being sampled
        self.fixed_turns, self.on_text, self.text_players = fixed_turns, on_text, text_players or {}
        self.history: list[tuple[list[Message], Turn]] = []
        self.requests = 0

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
        """Sample the role's reply. A conversation that continues an earlier turn reuses that turn's token ids.

        `sampling` overrides max_tokens, temperature, top_p, top_k or stop for this turn. Turns sampled with a top_p,
        top_k or greedy override are excluded from training: the learner scores the full distribution.
        """
        conversation = as_messages(messages)
        if self._text_player is not None:
            turn = await self._reply((), sampling, conversation)
            turn.messages = conversation
            return turn
        turn = await self._reply(self._prompt(conversation, self.chat), sampling)
        turn.messages = conversation
        if turn.response_ids:
            self.history.append((conversation, turn))
        return turn

    async def say_ids(self, ids: Sequence[int], **sampling: Any) -> Turn:
        """Sample a continuation of exactly these token ids, without a chat template."""
        if self._text_player is not None:
            raise ValueError(f"{self.role} is played by text alone and cannot continue token ids; call say(messages)")
        return await self._reply(tuple(ids), sampling)

    @property
    def chat(self) -> Chat:
        """The chat template of the policy that plays the role's next turn."""
        if self._text_player is not None:
            raise ValueError(f"{self.role} is played by text alone and has no chat template or tokenizer")
        return self.chats[self.player.policy_at(self.requests)]

    @property
    def _text_player(self) -> TextPlayer | None:
        """The endpoint or person that plays the role's next turn; None if an engine samples it."""
        return self.text_players.get(self.player.policy_at(self.requests))

    async def _reply(
        self, prompt: tuple[int, ...], sampling: Mapping[str, Any], conversation: Sequence[Message] = ()
    ) -> Turn:
        text_player = self._text_player
        index, nth = len(self.turns), self.requests
        seen = tuple(i for i, turn in enumerate(self.turns) if turn is not None)
        self.turns.append(None)
        self.requests += 1
        fixed, started = self.fixed_turns.get((self.role, nth)), time.time()
        if fixed is None and text_player is not None:
            turn = await self._ask(text_player, conversation, nth, changed(self.player.sampling, sampling))
        elif fixed is None:
            turn = await self._sample(prompt, nth, changed(self.player.sampling, sampling))
        else:
            await asyncio.sleep(0)  # yield as sampling would, so that concurrent roles keep their order
            turn = self._replay(prompt, nth, fixed)
        turn.seen, turn.started, turn.ended = seen, round(started, 3), round(time.time(), 3)
        self.turns[index] = turn
        return turn

    async def _sample(self, prompt: tuple[int, ...], nth: int, sampling: Sampling) -> Turn:
        policy = self.player.policy_at(nth)
        seed = stable_hash(self.seed, self.role, nth)
        if self.on_text is None:
            sample = await self.engine.sample(policy, prompt, seed, sampling)
        else:
            sample = await self._stream(policy, prompt, seed, sampling, self.on_text)
        return Turn(
            role=self.role,
            policy=policy,
            version=sample.version,
            round=nth,
            prompt_ids=prompt,
            response_ids=sample.ids,
            logprobs=sample.logprobs,
            temperature=sampling.temperature,
            text=self.chats[policy].text(sample.ids, sampling.stop),
            stop=sample.stop,
            trainable=not truncates_more(sampling, self.player.sampling),
        )

    async def _ask(self, player: TextPlayer, messages: Sequence[Message], nth: int, sampling: Sampling) -> Turn:
        """A turn without token ids, which is never trained on."""
        reply = await player.reply(messages, stable_hash(self.seed, self.role, nth), sampling)
        if self.on_text is not None:
            self.on_text(self.role, reply.text)
            self.on_text(self.role, None)
        return Turn(
            role=self.role,
            policy=self.player.policy_at(nth),
            version=0,
            round=nth,
            prompt_ids=(),
            response_ids=(),
            logprobs=(),
            temperature=sampling.temperature,
            text=reply.text,
            stop=reply.stop,
            trainable=False,
            api_tokens=(reply.prompt_tokens, reply.completion_tokens),
        )

    async def _stream(
        self, policy: str, prompt: tuple[int, ...], seed: int, sampling: Sampling, on_text: OnText
    ) -> Sample:
        """Sample a reply, and give out its text while it is sampled."""
        stream = ReplyStream(self.chats[policy], sampling.stop)
        sample = await self.engine.sample(
            policy, prompt, seed, sampling, lambda ids, _: on_text(self.role, stream.feed(ids))
        )
        on_text(self.role, stream.finish())
        on_text(self.role, None)
        return sample

    def _replay(self, prompt: tuple[int, ...], nth: int, fixed: Turn | str) -> Turn:
        if isinstance(fixed, str):
            policy = self.player.policy_at(nth)
            return Turn(self.role, policy, 0, nth, prompt, (), (), 1.0, fixed, "end", trainable=False)
        if fixed.prompt_ids != prompt:
            raise ValueError(
                f"turn {nth} of {self.role} got a different prompt when its episode was replayed: a workflow may "
                "depend only on its task and on the replies"
            )
        # Only the sampled fields: reward and credit of the original episode do not apply here.
        return Turn(**{name: getattr(fixed, name) for name in SAMPLED}, trainable=False, replayed=True)

    def _prompt(self, messages: list[Message], chat: Chat) -> tuple[int, ...]:
        for earlier, turn in reversed(self.history):
            # Token ids of another tokenizer cannot be reused.
            if len(messages) > len(earlier) + 1 and self.chats[turn.policy] is chat:
                extended = chat.extend(earlier, turn.prompt_ids, turn.response_ids, turn.text, messages)
                if extended is not None:
                    return extended
        return chat.prompt(messages)


class AgentTeam:
    """The agents of one episode: `team.solver` or `team["solver"]`."""

    def __init__(self, agents: Iterable[RecordingAgent]) -> None:
        self._agents = {agent.role: agent for agent in agents}

    def __getitem__(self, role: str) -> RecordingAgent:
        if role not in self._agents:
            raise KeyError(f"no role is called {role!r}; this team has {', '.join(self._agents)}")
        return self._agents[role]

    def __getattr__(self, role: str) -> RecordingAgent:
        if role.startswith("_"):
            raise AttributeError(role)
        return self[role]
