"""Two jobs, two workers that reply at the same time: the smallest task in which a team has to divide the work.

Each job is to say a word. A worker has one reply, and a reply does one job: that of the first of the two words in it.
The team's reward is 0.5 for each job that was done, so two workers that do the same job get 0.5.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from coterie.types import Episode, Message, Split, Task, Team

WORDS = (
    "apple", "bread", "chair", "cloud", "dance", "earth", "field", "glass", "horse",
    "juice", "knife", "lemon", "money", "night", "ocean", "paper", "queen", "river",
    "smile", "table", "train", "uncle", "voice", "water", "wheel", "world",
)  # fmt: skip
PROMPT = "Say one of these two words: {0}, {1}."


@dataclass(frozen=True)
class Jobs:
    """Ordered pairs of words; held-out pairs never occur in training, in either order."""

    held_out: int = 100
    seed: int = 0

    def tasks(self, split: Split) -> list[Task]:
        pairs = list(permutations(WORDS, 2))
        random.Random(self.seed).shuffle(pairs)
        test = pairs[: self.held_out]
        if split == "test":
            return [_task(pair) for pair in test]
        known = {frozenset(pair) for pair in test}
        return [_task(pair) for pair in pairs if frozenset(pair) not in known]

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        jobs = [job_of(reply, episode.task.answer) for reply in episode.answer]
        done = set(jobs) - {None}
        episode.reward = len(done) / 2
        episode.metrics["accuracy"] = float(len(done) == 2)
        episode.metrics["job_done"] = sum(job is not None for job in jobs) / len(jobs)


@dataclass(frozen=True)
class AtOnce:
    """Both workers read the same words and reply at the same time."""

    named: bool = False  # tell each worker which one it is
    roles: tuple[str, ...] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> list[str]:
        prompts = [f"You are the {role} worker. {task.prompt}" if self.named else task.prompt for role in self.roles]
        turns = await asyncio.gather(*(team[role].say(text) for role, text in zip(self.roles, prompts, strict=True)))
        return [turn.text for turn in turns]


@dataclass(frozen=True)
class Alone:
    """One worker, asked `calls` times in one conversation; each call waits for the previous one."""

    calls: int = 1
    roles: tuple[str, ...] = ("worker",)

    async def run(self, task: Task, team: Team, world: Any) -> list[str]:
        messages, replies = [Message(role="user", content=task.prompt)], []
        for _ in range(self.calls):
            turn = await team[self.roles[0]].say(messages)
            replies.append(turn.text)
            messages = [*messages, Message(role="assistant", content=turn.text)]
            messages.append(Message(role="user", content="Say the other word."))
        return replies


def job_of(text: str, words: Sequence[str]) -> str | None:
    """The first of the two words in a reply, or None."""
    found = re.search(rf"\b({'|'.join(words)})\b", text.lower())
    return found[1] if found else None


def _task(pair: Sequence[str]) -> Task:
    return Task(f"{pair[0]}-{pair[1]}", PROMPT.format(*pair), tuple(pair))
