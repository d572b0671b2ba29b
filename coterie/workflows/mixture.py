"""Mixture of agents: each layer of proposers reads all answers of the layer before."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from coterie.prompts import chat_messages, check, check_counts, fill
from coterie.types import Task, Team
from coterie.workflows.summarize import listed

IMPROVE = "{question}\n\nOthers answered:\n\n{answers}\n\nSome of this may be wrong. Give a better answer of your own."


@dataclass(frozen=True)
class Mixture:
    """Proposers answer in `layers`; the aggregator reads the last layer and gives the team's answer."""

    proposers: tuple[str, ...] = ("first", "second", "third")  # the roles of every layer
    aggregator: str = "aggregator"  # the role that answers last
    layers: int = 2  # layers of proposers
    prompt: str = "{question}"  # prompt of the first layer
    improve: str = IMPROVE  # prompt of later layers and of the aggregator

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.improve, ["question", "answers"], "improve")
        if not self.proposers or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"proposers: one or more distinct names, not {list(self.proposers)}")
        check_counts(self, "layers")

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.proposers, self.aggregator)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        question = {"question": task.prompt}
        prompt = fill(self.prompt, question)
        for _ in range(self.layers):
            turns = await asyncio.gather(*(team[role].say(chat_messages(prompt)) for role in self.proposers))
            prompt = fill(self.improve, question | {"answers": listed([turn.text for turn in turns])})
        return (await team[self.aggregator].say(chat_messages(prompt))).text
