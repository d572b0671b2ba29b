"""DeepCoder: a generator writes a program, a test runner explains how it fails, a refiner fixes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

from coterie.envs.code import CodeResult, CodeWorld
from coterie.prompts import check, fill
from coterie.rewards.code.grader import code_in
from coterie.types import Grade, Metrics, Outcome, Task, Team, Turn

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
    """Generator → test runner → refiner, until all visible tests pass or after `max_refinement_iterations`.

    Generator and refiner get the fraction of all tests that their own program passes. The test runner sees the failures
    among the visible tests, the first half; its reward is the change of the fraction by the refinement that follows.
    The program that passes most of the visible tests is the answer.
    """

    judges_turns: ClassVar[bool] = True
    needs_sandbox: ClassVar[bool] = True
    needs_world: ClassVar[bool] = True

    max_refinement_iterations: int = 2  # refinements, at most
    # reward generator and refiner by the tests that their program passes, or by the run's reward of it
    program_reward: Literal["tests", "reward"] = "tests"
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
        programs = [await tested(await team.generator.say(fill(self.prompt, {"question": task.prompt})), world)]
        improvements, analyses = list[float](), list[tuple[Turn, Program]]()
        best = programs[0]
        while best.result.visible.fraction < 1 and len(improvements) < self.max_refinement_iterations:
            shown = self._shown(task, best)
            analysis = await team.test_runner.say(fill(self.analyze, shown))
            refined = await team.refiner.say(fill(self.refine, shown | {"analysis": analysis.text}))
            programs.append(await tested(refined, world))
            analysis.reward = programs[-1].result.score - best.result.score
            improvements.append(analysis.reward)
            analyses.append((analysis, best))
            best = max(best, programs[-1], key=lambda each: each.result.visible.fraction)
        judge = GradedPrograms(programs, analyses) if self.program_reward == "reward" else None
        return Outcome(best.turn.text, metrics(programs, best, improvements), judge=judge)

    def _shown(self, task: Task, program: Program) -> dict[str, str]:
        text, shown = program.turn.text, program.result.visible
        failures = str(replace(shown, failures=shown.failures[: self.failures]))
        return {"question": task.prompt, "program": (code_in(text) or text).strip(), "failures": failures}


class Program(NamedTuple):
    """A turn with a program, and its test results."""

    turn: Turn
    result: CodeResult

    @property
    def right(self) -> bool:
        return self.result.score == 1


@dataclass(frozen=True)
class GradedPrograms:
    """After the episode: each program gets the run's reward, and an analysis the change that it led to."""

    programs: Sequence[Program]
    analyses: Sequence[tuple[Turn, Program]]  # and the program that each one is about

    async def __call__(self, grade: Grade) -> Metrics:
        for program in self.programs:
            program.turn.reward = await grade(program.turn.text)
        for (analysis, about), refined in zip(self.analyses, self.programs[1:], strict=True):
            analysis.reward = (refined.turn.reward or 0.0) - (about.turn.reward or 0.0)
        return {}


async def tested(turn: Turn, world: CodeWorld) -> Program:
    result = await world.test(turn.text)
    turn.reward = result.score
    return Program(turn, result)


def metrics(programs: list[Program], best: Program, improvements: list[float]) -> Metrics:
    """Rates of a role are left out of episodes in which it had no turn."""
    values = {
        "generator_success": float(programs[0].right),
        "total_iterations": float(len(improvements)),
        "final_success": float(best.right),
    }
    if improvements:
        values["refiner_success_rate"] = sum(each.right for each in programs[1:]) / len(improvements)
        values["test_runner_success_rate"] = sum(change > 0 for change in improvements) / len(improvements)
    return values
