"""Evaluator–optimizer: one role answers, the other critiques, until the answer is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.prompts import chat_messages, check, check_counts, fill
from coterie.types import Grade, Message, Metrics, Outcome, Task, Team, Turn, is_correct
from coterie.workflows.verdict_parsing import verdict

EVALUATE = (
    "{question}\n\nAn answer:\n{answer}\n\nIs it right? Say what is wrong with it, if anything, and end with "
    '"Verdict: correct" or "Verdict: incorrect".'
)
IMPROVE = "A reviewer says:\n{remarks}\n\nGive a better answer."


@dataclass(frozen=True)
class Refine:
    """The optimizer answers; the evaluator accepts or says what to improve, for at most `max_rounds`.

    Every answer is scored as its turn's own reward; the evaluator gets 1 for each correct verdict.
    """

    judges_turns: ClassVar[bool] = True

    max_rounds: int = 3  # answers, at most
    prompt: str = "{question}"  # the optimizer's first prompt
    evaluate: str = EVALUATE  # the evaluator's prompt
    improve: str = IMPROVE  # the optimizer's later prompts; {remarks} are the evaluator's

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.evaluate, ["question", "answer"], "evaluate")
        check(self.improve, ["question", "remarks"], "improve")
        check_counts(self, "max_rounds")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("optimizer", "evaluator")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        question = {"question": task.prompt}
        messages = chat_messages(fill(self.prompt, question))
        answers, verdicts = list[Turn](), list[Turn]()
        while True:
            answers.append(await team.optimizer.say(list(messages)))
            answer = answers[-1].text
            verdicts.append(await team.evaluator.say(fill(self.evaluate, question | {"answer": answer})))
            accepted = verdict(verdicts[-1].text) is True
            if accepted or len(answers) == self.max_rounds:
                break
            request = fill(self.improve, question | {"remarks": verdicts[-1].text})
            messages += [Message(role="assistant", content=answer), Message(role="user", content=request)]

        async def judge(grade: Grade) -> Metrics:
            return await assign_rewards(answers, verdicts, grade)

        return Outcome(answer, {"total_iterations": len(answers), "accepted": float(accepted)}, judge=judge)


async def assign_rewards(answers: list[Turn], verdicts: list[Turn], grade: Grade) -> Metrics:
    """After the episode: grade every answer, and reward each verdict that agrees with its grade."""
    right = []
    for answer, judgement in zip(answers, verdicts, strict=True):
        answer.reward = await grade(answer.text)
        right.append(is_correct(answer.reward))
        judgement.reward = float(verdict(judgement.text) is right[-1])
    true = [judgement.reward or 0.0 for judgement in verdicts]
    success = {"optimizer_success": float(right[0]), "final_success": float(right[-1])}
    return success | {"evaluator_accuracy": sum(true) / len(true)}
