"""Orchestrator and workers: the orchestrator plans steps, workers do them, the orchestrator combines the results."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from coterie.prompts import chat_messages, check, check_counts, fill
from coterie.types import Message, Outcome, Task, Team
from coterie.workflows.verdict_parsing import items

PLAN = "{question}\n\nSplit this into at most {most} smaller steps for others to work out. Write one step per line."
WORK = "The whole task:\n{question}\n\n{done}Your step:\n{step}\n\nDo this step only, briefly."
COMBINE = "What came of the steps:\n\n{results}\n\nNow give the final answer to the task."


@dataclass(frozen=True)
class Orchestrate:
    """The orchestrator plans, workers do one step each, the orchestrator answers from their results.

    `sequence: true` runs the steps in order, each with the results of those before; otherwise concurrently.
    If the plan has no steps, the whole task is the only one.
    """

    workers: tuple[str, ...] = ("worker",)  # the workers; steps are dealt to them in turn
    max_steps: int = 3  # steps of the plan, at most
    sequence: bool = False  # do the steps one after the other, not at the same time
    plan: str = PLAN  # the orchestrator's first prompt
    work: str = WORK  # a worker's prompt
    combine: str = COMBINE  # the orchestrator's last prompt

    def __post_init__(self) -> None:
        check(self.plan, ["question", "most"], "plan")
        check(self.work, ["question", "done", "step"], "work")
        check(self.combine, ["question", "results"], "combine")
        if not self.workers or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"workers: one or more distinct names, not {list(self.workers)}")
        check_counts(self, "max_steps")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("orchestrator", *self.workers)

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        question = {"question": task.prompt}
        messages = chat_messages(fill(self.plan, question | {"most": str(self.max_steps)}))
        plan = await team.orchestrator.say(list(messages))
        steps = items(plan.text, self.max_steps) or [task.prompt]
        results = await (self._in_sequence if self.sequence else self._at_once)(task, team, steps)
        request = fill(self.combine, question | {"results": listed(steps, results)})
        messages += [Message(role="assistant", content=plan.text), Message(role="user", content=request)]
        answer = await team.orchestrator.say(messages)
        return Outcome(answer.text, {"steps": len(steps)})

    async def _at_once(self, task: Task, team: Team, steps: list[str]) -> list[str]:
        return list(await asyncio.gather(*(self._work(task, team, steps, n, []) for n in range(len(steps)))))

    async def _in_sequence(self, task: Task, team: Team, steps: list[str]) -> list[str]:
        results: list[str] = []
        for number in range(len(steps)):
            results.append(await self._work(task, team, steps, number, results))
        return results

    async def _work(self, task: Task, team: Team, steps: list[str], number: int, before: list[str]) -> str:
        done = f"Done so far:\n{listed(steps, before)}\n\n" if before else ""
        prompt = fill(self.work, {"question": task.prompt, "done": done, "step": steps[number]})
        return (await team[self.workers[number % len(self.workers)]].say(prompt)).text


def listed(steps: list[str], results: list[str]) -> str:
    return "\n\n".join(f"{step}\n→ {result}" for step, result in zip(steps, results, strict=False))
