"""Math with a code interpreter: an analyzer plans, an executor writes Python, a verifier judges its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.limits import Positive
from coterie.prompts import check, check_counts, fill
from coterie.rewards.answer_extraction import marked_answer
from coterie.rewards.code.grader import code_in
from coterie.sandbox import Limits, shared
from coterie.tools.python import shown
from coterie.tools.tool import ToolError
from coterie.tools.user_function import call_function
from coterie.types import Grade, Metrics, Outcome, Task, Team, Turn, is_correct
from coterie.workflows.verdict_parsing import verdict

ANALYZE = "{question}\n\n{before}Say in a few short steps how a Python program can compute the answer. Do not write it."
EXECUTE = (
    "{question}\n\nA plan:\n{plan}\n\nWrite the Python program in one ```python block. "
    "It must print the final answer on its last line, and nothing else on that line."
)
VERIFY = (
    "{question}\n\nThis program was run:\n```python\n{program}\n```\n\nIt printed:\n{output}\n\n"
    "Is its last line the right answer to the question? Say why, briefly, and end with "
    '"Verdict: correct" or "Verdict: incorrect".'
)
BEFORE = "An earlier program:\n```python\n{program}\n```\nIt printed:\n{output}\nA reviewer says:\n{remarks}\n\n"
NO_PROGRAM = "(no program was given)"


@dataclass(frozen=True)
class Attempt:
    """One round of the three roles."""

    analysis: Turn
    program: Turn
    judgement: Turn
    ran: bool
    answer: str  # of the team, if this is the last round


@dataclass(frozen=True)
class MathTool:
    """Analyzer → executor → verifier, repeated until the verifier accepts or for `max_refinement_iterations`.

    Only the verifier's verdict ends the loop, in training and evaluation alike. After the episode each attempt is
    scored: analyzer and executor get the attempt's score, the verifier gets 1 if its verdict was correct.
    """

    judges_turns: ClassVar[bool] = True
    needs_sandbox: ClassVar[bool] = True

    max_refinement_iterations: int = 2  # attempts, at most
    seconds: Positive = 5.0  # seconds for one program
    # path/to/file.py:function that runs a program, instead of the sandbox: (program) → what it printed
    python_tool: Callable[..., Any] | None = None
    boxed: bool = True  # put the answer into \\boxed{}, where `reward: math` looks for it
    analyze: str = ANALYZE  # the analyzer's prompt
    execute: str = EXECUTE  # the executor's prompt
    verify: str = VERIFY  # the verifier's prompt

    def __post_init__(self) -> None:
        check(self.analyze, ["question", "before"], "analyze")
        check(self.execute, ["question", "plan"], "execute")
        check(self.verify, ["question", "program", "output"], "verify")
        check_counts(self, "max_refinement_iterations")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("analyzer", "executor", "verifier")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        attempts: list[Attempt] = []
        before, accepted = "", False
        while not accepted and len(attempts) < self.max_refinement_iterations:
            question = {"question": task.prompt}
            analysis = await team.analyzer.say(fill(self.analyze, question | {"before": before}))
            program = await team.executor.say(fill(self.execute, question | {"plan": analysis.text}))
            code = code_in(program.text)
            ran, output, answer = await self._run(code)
            seen = {"program": (code or program.text).strip(), "output": output}
            judgement = await team.verifier.say(fill(self.verify, question | seen))
            attempts.append(Attempt(analysis, program, judgement, ran, answer))
            before = fill(BEFORE, seen | {"remarks": judgement.text})
            accepted = verdict(judgement.text) is True

        async def judge(grade: Grade) -> Metrics:
            return await assign_rewards(attempts, grade)

        succeeded = sum(attempt.ran for attempt in attempts) / len(attempts)
        metrics = {"total_iterations": float(len(attempts)), "accepted": float(accepted), "executor_ran": succeeded}
        return Outcome(attempts[-1].answer, metrics, judge=judge)

    async def _run(self, code: str | None) -> tuple[bool, str, str]:
        """Run a program: whether it succeeded, its output for the verifier, and its last line as the answer."""
        if code is None:
            return False, NO_PROGRAM, ""
        ok, printed, output = await self._execute(code)
        lines = printed.strip().splitlines()
        last = lines[-1].strip() if ok and lines else ""
        bare = not last or not self.boxed or marked_answer(last) is not None
        return ok, output, last if bare else f"\\boxed{{{last}}}"

    async def _execute(self, code: str) -> tuple[bool, str, str]:
        """Whether a program succeeded, what it printed, and both as a text for the verifier."""
        if self.python_tool is None:
            ran = await shared().run(code, limits=Limits(seconds=self.seconds, output=32 << 10))
            return ran.ok, ran.stdout, shown(ran, self.seconds)
        try:
            printed = str(await call_function(self.python_tool, self.seconds, code))
        except ToolError as error:
            return False, "", f"Error: {error}"
        return True, printed, printed


async def assign_rewards(attempts: list[Attempt], grade: Grade) -> Metrics:
    """After the episode: grade every attempt, and reward each verdict that agrees with its grade."""
    right = []
    for attempt in attempts:
        reward = await grade(attempt.answer) if attempt.answer else 0.0
        attempt.analysis.reward = attempt.program.reward = reward
        right.append(is_correct(reward))
        attempt.judgement.reward = float(verdict(attempt.judgement.text) is right[-1])
    true = [attempt.judgement.reward or 0.0 for attempt in attempts]
    return {
        "analyzer_success_rate": sum(right) / len(right),
        "executor_success": float(right[0]),
        "verifier_accuracy": sum(true) / len(true),
        "final_success": float(right[-1]),
    }
