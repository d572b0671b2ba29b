"""The reward `judge`: a language model grades an answer by a rubric, behind an endpoint or in this process.

Grades are cached by content, in memory and on disk: the same model, rubric, question and answer are judged once. The
function that calls the model is imported by name at run time, because `rewards` must not import `engines`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.files import cache_folder, write_atomic
from coterie.limits import Count, Positive
from coterie.prompts import check, fill
from coterie.rewards.answer_extraction import last_number
from coterie.rewards.grader import Grader
from coterie.rewards.grader_pool import GraderFailed
from coterie.rewards.reward_function import load
from coterie.types import Task

NAME = "judge"
ASK = "coterie.engines.judge_model:ask"
RUBRIC = (
    "Grade an answer from 0 (wrong or useless) to {scale} (fully right).\n\nQuestion:\n{question}\n\n"
    "Reference answer:\n{reference}\n\nAnswer to grade:\n{answer}\n\nReply with the grade alone, one number."
)
_known: dict[str, float] = {}  # grades by content


@dataclass(frozen=True)
class JudgeSource:
    """The model that judges."""

    model: str
    api: str | None
    key_env: str | None
    max_tokens: int


@dataclass(frozen=True)
class JudgeGrader(Grader):
    """Grades an answer by what a language model says about it."""

    @property
    def compares(self) -> bool:
        return "{reference}" in self.options["rubric"]

    @property
    def source(self) -> JudgeSource:
        names = ("model", "api", "key_env", "max_tokens")
        return JudgeSource(**{name: self.options[name] for name in names})

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        if task is None:
            raise ValueError("reward judge reads the question: call the grader with (answer, truth, task)")
        scale: float = self.options["scale"]
        fields = {"question": task.prompt, "answer": str(answer), "reference": str(truth), "scale": f"{scale:g}"}
        prompt = fill(self.options["rubric"], fields)
        key = hashlib.sha256(json.dumps([self.source.model, self.source.api, prompt]).encode()).hexdigest()
        if key not in _known:
            _known[key] = await self._judge(prompt, cache_folder() / NAME / key[:2] / f"{key}.json")
        return min(1.0, max(0.0, _known[key] / scale))

    async def _judge(self, prompt: str, cached: Path) -> float:
        """The grade in the judge's reply, cached on disk. A reply without a number is an error, not a grade of 0."""
        if cached.is_file():
            return float(json.loads(cached.read_text())["grade"])
        reply: str = await load(ASK)(self.source, prompt, self.deadline)
        grade = last_number(reply)
        if grade is None:
            raise GraderFailed(f"reward judge: {self.source.model} replied without a number: {reply!r:.200}")
        write_atomic(cached, json.dumps({"grade": float(grade), "reply": reply}))
        return float(grade)


def judge(
    deadline: float,
    *,
    model: str,  # the judge model: its name at the endpoint, or without `api` a model as in policies
    api: str | None = None,  # an OpenAI-compatible endpoint, as https://host/v1; null: load the model into this process
    key_env: str | None = None,  # the environment variable with the endpoint's key
    rubric: str = RUBRIC,  # the prompt; may use {question}, {answer}, {reference} and {scale}
    scale: Positive = 10.0,  # the highest grade, which is a reward of 1
    max_tokens: Count = 16,  # tokens of the judge's reply; its last number is the grade
) -> JudgeGrader:
    """A language model grades the answer by a rubric; grades are cached by content.

    reward: {name: judge, api: http://127.0.0.1:8000/v1, model: big, rubric: "Grade {answer} from 0 to {scale}."}
    """
    check(rubric, ["question", "answer", "reference", "scale"], "rubric")
    if "{answer}" not in rubric:
        raise ValueError("rubric: does not use {answer}, so every answer would get the same grade")
    if key_env is not None and api is None:
        raise ValueError("key_env: has no effect without api")
    options = {"model": model, "api": api, "key_env": key_env, "rubric": rubric, "scale": scale}
    return JudgeGrader(NAME, options | {"max_tokens": max_tokens}, deadline)
