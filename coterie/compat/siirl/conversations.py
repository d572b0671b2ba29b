"""The conversations of a graph's episode: what each agent reads, and what the agents that depend on it continue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from coterie.compat.siirl.env import Observation
from coterie.compat.siirl.hooks import PRE, Hooks, Ids
from coterie.types import Agent, Task, Turn


class Conversation(NamedTuple):
    """Token ids of one tokenizer, and how many of them its agent had read before it spoke."""

    ids: Ids
    tokenizer: Any
    start: int = 0

    @property
    def text(self) -> str:
        """With control tokens: the action that environments get."""
        return str(self.tokenizer.decode(self.ids))

    def ids_for(self, tokenizer: Any) -> tuple[Ids, Ids]:
        """What the agent read and what it added, in the ids of a tokenizer."""
        parts = self.ids[: self.start], self.ids[self.start :]
        if same_vocabulary(self.tokenizer, tokenizer):
            return parts
        read, added = (encoded(tokenizer, str(self.tokenizer.decode(part))) for part in parts)
        return read, added


@dataclass(frozen=True)
class Speaker:
    """An agent of the graph in one episode."""

    role: str
    agent: Agent
    hooks: Hooks
    reads: tuple[str, ...]  # the roles whose replies it reads; none: the task alone
    observes: bool  # it gets the environment's observations


class Conversations:
    """Each agent's conversation up to its last reply, or the observation that replaced it, and the turns so far.

    reasoner → actor     the actor continues the reasoner's conversation; in the next round the reasoner continues
                         the actor's, or what the environment showed after it
    left, right          both continue the task, and neither reads the other
    left, right → judge  the judge reads what left read, then what left and right added
    """

    def __init__(self, speakers: Sequence[Speaker], task: Task, prompt_length: int | None = None) -> None:
        self.speakers, self.task, self.prompt_length = speakers, task, prompt_length
        self.outputs: dict[str, Conversation] = {}  # by role: what dependent agents continue
        self.seen: list[Observation] = [None] * len(speakers)
        self.news: list[str | None] = [None] * len(speakers)  # the new part of each observation; None: from `reset`
        self.last: tuple[str, str | None] = "", None  # the last role whose conversation was replaced, by which new part
        self.turns: list[Turn] = []
        self.truncated = 0  # prompts longer than `prompt_length`

    async def speak(self, place: int, number: int) -> Turn:
        """The agent's turn in round `number`."""
        speaker = self.speakers[place]
        tokenizer, hooks = speaker.agent.chat.tokenizer, speaker.hooks
        seen, self.seen[place] = self.seen[place] if speaker.observes else None, None
        shown = encoded(tokenizer, seen) if isinstance(seen, str) else seen
        prompt = self._prompt(place, number, shown)
        first = None if self.news[place] is not None else shown  # later observations are part of the prompt
        read = hooks.pre(tokenizer, prompt, shown) if PRE in hooks.functions else [*prompt, *(first or [])]
        if PRE not in hooks.functions:
            prompt = read  # but not a hook's additions, which are for this agent only
        turn = await speaker.agent.say_ids(self._shortened(read))
        # A replayed reply, of `coterie check` or a counterfactual, is text without ids.
        output = hooks.post(tokenizer, prompt, turn.response_ids or encoded(tokenizer, turn.text))
        start = len(prompt) if output[: len(prompt)] == prompt else 0
        self.outputs[speaker.role] = Conversation(output, tokenizer, start)
        self.turns.append(turn)
        return turn

    def actions(self, place: int) -> list[str]:
        """The conversations of all agents that have spoken in this round, up to this one."""
        return [self.outputs[speaker.role].text for speaker in self.speakers[: place + 1]]

    def observe(self, place: int, actions: Sequence[str], seen: Sequence[Observation]) -> None:
        """Store an environment's observations after this agent's reply. The last one replaces its conversation, as in
        siiRL, so that hooks that ignore `obs` read it too; an empty one (None, "" or []) does not."""
        tokenizer = self.speakers[place].agent.chat.tokenizer
        self.seen = [one or None for one in seen]
        acted = [*actions, *[""] * (len(seen) - len(actions))]
        self.news = [_new_part(one, action, tokenizer) for one, action in zip(self.seen, acted, strict=True)]
        shown = [number for number, one in enumerate(self.seen) if one is not None]
        if shown:
            last, role = self.seen[shown[-1]] or "", self.speakers[place].role
            ids = encoded(tokenizer, last) if isinstance(last, str) else last
            self.outputs[role] = Conversation(ids, tokenizer)
            self.last = role, self.news[shown[-1]]

    def _prompt(self, place: int, number: int, shown: Ids | None) -> Ids:
        """The token ids that the agent continues: the conversations that it reads. An observation that these do not
        contain is appended, or replaces them if the agent reads no other agent."""
        speaker = self.speakers[place]
        tokenizer = speaker.agent.chat.tokenizer
        sources = [self.outputs[role] for role in speaker.reads]
        if not sources and number == 0:
            talk = self.task.meta.get("messages") or [{"role": "user", "content": self.task.prompt}]
            return list(speaker.agent.chat.prompt(talk))
        prompt = joined(sources or [self.outputs[self._last_after(place)]], tokenizer)
        if not shown or self.news[place] in self._news_in_prompt(place):
            return prompt
        return [*prompt, *shown] if sources else list(shown)

    def _news_in_prompt(self, place: int) -> set[str | None]:
        """The new parts of the observations that the agent's conversation contains already; None: that of `reset`."""
        before = self._ancestors(place)
        role, last = self.last
        replaced = role in before if before else role == self._last_after(place)
        own = {self.news[number] for number, one in enumerate(self.speakers) if one.role in before}
        return own | {None} | ({last} if replaced else set())

    def _ancestors(self, place: int) -> set[str]:
        """The roles that an agent reads, directly or through others."""
        found = set(self.speakers[place].reads)
        for speaker in reversed(self.speakers[:place]):
            found |= set(speaker.reads) if speaker.role in found else set()
        return found

    def _last_after(self, place: int) -> str:
        """The last agent that reads this one, directly or through others; itself if none does."""
        readers = {self.speakers[place].role}
        for speaker in self.speakers[place + 1 :]:
            if readers & set(speaker.reads):
                readers.add(speaker.role)
        return next(speaker.role for speaker in reversed(self.speakers) if speaker.role in readers)

    def _shortened(self, prompt: Ids) -> Ids:
        if self.prompt_length is None or len(prompt) <= self.prompt_length:
            return prompt
        self.truncated += 1
        return prompt[: self.prompt_length]


def joined(sources: Sequence[Conversation], tokenizer: Any) -> Ids:
    """What the first one read, then what each one added, in the ids of a tokenizer."""
    parts = [source.ids_for(tokenizer) for source in sources]
    return [*parts[0][0], *(id for _, added in parts for id in added)]


def _new_part(observation: Observation, action: str, tokenizer: Any) -> str | None:
    """An observation without the action that it repeats: "…4 This answer is wrong." → " This answer is wrong."."""
    if observation is None:
        return None
    text = observation if isinstance(observation, str) else str(tokenizer.decode(observation))
    return text.removeprefix(action)


def encoded(tokenizer: Any, text: str) -> Ids:
    return list(tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=64)
def same_vocabulary(one: Any, other: Any) -> bool:
    """True if both tokenizers have the same vocabulary, so that ids need not be re-encoded."""
    return one is other or one.get_vocab() == other.get_vocab()
