"""Workflows with one planted mistake each, and an engine that returns scripted replies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.learners.batch import make_batches
from coterie.training.loop import Run
from coterie.types import OnTokens, Outcome, Sample, Sampling, Task, Team
from tests.episodes import episode, turn
from tests.runs import started

Says = Callable[[str, str, int], str]  # (policy, prompt, seed) → reply


class Recites:
    """An engine that returns `says(…)` as the reply, with the log-probs of the policy's learner."""

    def __init__(self, run: Run, says: Says) -> None:
        self.run, self.says = run, says

    async def sample(
        self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Sample:
        tokenizer = self.run.collector.chats[policy].tokenizer
        text = self.says(policy, str(tokenizer.decode(list(prompt_ids))), seed)
        ids = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|im_end|>"))
        (batch,) = make_batches([episode([turn("x", prompt_ids, ids, policy)])], require_advantages=False).values()
        logprobs = self.run.learners[policy].logprobs(batch)[batch.mask].tolist()
        return Sample(ids, tuple(logprobs), "end", 0)

    def weights_changed(self, policy: str, version: int) -> None: ...

    def clear(self) -> None: ...


def right(read: str) -> str:
    """The answer to the last sum in a prompt."""
    left, other = re.findall(r"What is (\d+) \+ (\d+)", read)[-1]
    return str(int(left) + int(other))


def honest(policy: str, read: str, seed: int) -> str:
    """Answers and verdicts that are right for some seeds."""
    if policy == "evaluator":
        return "Verdict: correct" if seed // 8 % 2 else "Verdict: incorrect"
    return right(read) if seed % 2 else "77"


@dataclass(frozen=True)
class Alone:
    """One role answers once."""

    @property
    def roles(self) -> tuple[str, ...]:
        return ("optimizer",)

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        return (await team.optimizer.say(task.prompt)).text


@dataclass(frozen=True)
class Pays(Alone):
    """Mistake: every turn gets the same reward."""

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        turn = await team.optimizer.say(task.prompt)
        turn.reward = 0.5
        return Outcome(turn.text)


@dataclass(frozen=True)
class Strips(Alone):
    """Mistake: the parser strips digits, and the grader needs a number."""

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return re.sub(r"\d", "", (await team.optimizer.say(task.prompt)).text)


@dataclass(frozen=True)
class Stumbles(Alone):
    """Mistake: the parser raises on an empty answer."""

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return (await team.optimizer.say(task.prompt)).text.split()[-1]


def planted(folder: Path, model: Path, workflow: str, says: Says, **changes: Any) -> Run:
    """A run of a workflow on sums, with scripted replies."""
    rows = [{"question": f"What is {n} + {n + 1}?", "answer": 2 * n + 1} for n in range(3, 9)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = workflow if workflow == "refine" else f"{__file__}:{workflow}"
    roles = ("optimizer", "evaluator") if workflow == "refine" else ("optimizer",)
    tree = {
        "steps": 2,
        "tasks_per_step": 2,
        "episodes_per_task": 6,
        "policies": {role: {"model": str(model), "lora": {"rank": 2}} for role in roles},
        "roles": {role: role for role in roles},
        "workflow": {"name": name},
        "env": {"name": "rows", "train": str(folder / "sums.jsonl"), "test": str(folder / "sums.jsonl")},
        "reward": "number",
        "credit": "own" if workflow in ("refine", "Pays") else "team",
        "algorithm": {"name": "grpo", "gamma_turn": 0} if workflow == "refine" else "grpo",
        "device": "cpu",
    }
    run = started(tree | changes, folder)
    run.engine.engines = dict.fromkeys(run.engine.engines, Recites(run, says))
    return run
