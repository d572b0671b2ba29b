"""DeepCoder: a generator writes a program, a test runner explains how it fails, a refiner repairs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from coterie.envs.code import CodeResult, CodeWorld
from coterie.prompts import check, fill
from coterie.rewards.code.grader import code_in
from coterie.types import Metrics, Outcome, Task, Team, Turn

ANALYZE = (
    "{question}\n\nThis program was written for it:\n```python\n{program}\n```\n\n{failures}\n\n"
    "Explain briefly what is wrong with the program and how to repair it. Do not write the program."
)
REFINE = (
    "{question}\n\nThis program fails some tests:\n```python\n{program}\n```\n\nA tester says:\n{analysis}\n\n"
    "Give the repaired program, whole, in one ```python block."
)


@dataclass(frozen=True)
class DeepCoder:
    """Generator → test runner → refiner, until all tests that may be seen pass or `max_refinement_iterations` are over.

    Generator and refiner earn the share of all tests that their own program passes. The test runner sees those that
    fail, of the first half; it earns by how much the share of all rose with the refinement that followed, or fell. The
    program that passes most of the first half counts.
    """

    judges_turns: ClassVar[bool] = True
    needs_sandbox: ClassVar[bool] = True

    max_refinement_iterations: int = 2  # refinements, at most
    failures: int = 3  # failing tests shown per refinement
    prompt: str = "{question}"  # the generator's prompt
    analyze: str = ANALYZE  # the prompt that shows the failing tests
    refine: str = REFINE  # the refiner's prompt

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.analyze, ["question", "program", "failures"], "analyze")
        check(self.refine, ["question", "program", "analysis"], "refine")
        if self.max_refinement_iterations < 0:
            raise ValueError(f"max_refinement_iterations: 0 or more, not {self.max_refinement_iterations}")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("generator", "test_runner", "refiner")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        if not isinstance(world, CodeWorld):
            raise ValueError("deepcoder needs an environment with tests to run: mbpp, humaneval or deepcoder")
        tries = [await tested(await team.generator.say(fill(self.prompt, {"question": task.prompt})), world)]
        gains: list[float] = []
        best = tries[0]
        while best.result.visible.fraction < 1 and len(gains) < self.max_refinement_iterations:
            shown = self._shown(task, best)
            analysis = await team.test_runner.say(fill(self.analyze, shown))
            refined = await team.refiner.say(fill(self.refine, shown | {"analysis": analysis.text}))
            tries.append(await tested(refined, world))
            analysis.reward = tries[-1].result.score - best.result.score
            gains.append(analysis.reward)
            best = max(best, tries[-1], key=lambda each: each.result.visible.fraction)
        return Outcome(best.turn.text, metrics(tries, best, gains))

    def _shown(self, task: Task, program: Program) -> dict[str, str]:
        text, shown = program.turn.text, program.result.visible
        failures = str(replace(shown, failures=shown.failures[: self.failures]))
        return {"question": task.prompt, "program": (code_in(text) or text).strip(), "failures": failures}


class Program(NamedTuple):
    """A turn with a program, and what came of it."""

    turn: Turn
    result: CodeResult

    @property
    def right(self) -> bool:
        return self.result.score == 1


async def tested(turn: Turn, world: CodeWorld) -> Program:
    result = await world.test(turn.text)
    turn.reward = result.score
    return Program(turn, result)


def metrics(tries: list[Program], best: Program, gains: list[float]) -> Metrics:
    """A role that had nothing to do in an episode has no rate there."""
    said = {
        "generator_success": float(tries[0].right),
        "total_iterations": float(len(gains)),
        "final_success": float(best.right),
    }
    if gains:
        said["refiner_success_rate"] = sum(each.right for each in tries[1:]) / len(gains)
        said["test_runner_success_rate"] = sum(gain > 0 for gain in gains) / len(gains)
    return said
