"""reasoning-gym's own scorers; those that call `eval` on the answer run in the sandbox."""

from __future__ import annotations

import json
import marshal
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from coterie.rewards.grader import Grader
from coterie.rewards.grader_pool import GraderFailed, GraderTimeout
from coterie.rewards.reasoning_gym_grammars import EVALUATING, answer_in, is_in_grammar
from coterie.sandbox import Limits, RunResult, shared
from coterie.types import Task

SCORER = "coterie.rewards.reasoning_gym:native"
# Runs in the sandbox. Stub packages skip their __init__, which would import all datasets and take seconds. The scorer
# is not constructed, because n_queens would search for all boards again.
SCRIPT = """
import importlib, marshal, sys
job = marshal.loads(sys.stdin.buffer.read())
for name, folder in job["packages"].items():
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [folder]
module = vars(importlib.import_module(job["module"]))
scorer = object.__new__(module[job["scorer"]])
scorer.config = module[job["config"]](**job["params"])
print(job["token"], float(scorer.score_answer(job["answer"], job["entry"])))
"""


@dataclass(frozen=True)
class NativeGrader(Grader):
    """A dataset's own scorer, in the sandbox if it calls `eval` on the answer. `truth` is the dataset's entry."""

    @property
    def needs_sandbox(self) -> bool:
        return self.options["dataset"] in EVALUATING

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        dataset, text = self.options["dataset"], answer_in(str(answer))
        if not is_in_grammar(dataset, text, truth):
            return 0.0
        if self.needs_sandbox:
            return await score_in_sandbox(text, truth, dataset, self.options["params"], self.deadline)
        return await super().__call__(text, truth, task)


def native(answer: str, entry: Mapping[str, Any], *, dataset: str, params: Mapping[str, Any]) -> float:
    """The dataset's score: 1 for the right answer, often partial credit for one that is close or too wordy."""
    scorer = _dataset(dataset, json.dumps(params))
    try:
        return float(scorer.score_answer(answer, dict(entry)))
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError):
        # Some scorers (prime_factorization, boxnet, game_of_life) raise on text that they cannot parse: a wrong answer.
        return 0.0


@cache
def _dataset(name: str, params: str) -> ProceduralDataset:
    return reasoning_gym.create_dataset(name, **json.loads(params))


async def score_in_sandbox(
    text: str, entry: Mapping[str, Any], dataset: str, params: Mapping[str, Any], seconds: float
) -> float:
    """Score one answer in a sandbox process of its own."""
    scorer, config = DATASETS[dataset]
    token = secrets.token_hex(8)
    job = {
        "token": token,
        "packages": _packages(scorer.__module__),
        "module": scorer.__module__,
        "scorer": scorer.__name__,
        "config": config.__name__,
        "params": dict(params),
        "answer": text,
        "entry": {"answer": entry["answer"], "metadata": dict(entry["metadata"])},
    }
    ran = await shared().run(SCRIPT, stdin=marshal.dumps(job), limits=Limits(seconds=seconds))
    return _score(ran, token, dataset)


def _packages(module: str) -> dict[str, str]:
    """The parent packages of a dataset's module, and their folders."""
    root = Path(reasoning_gym.__file__).parent
    parents = module.split(".")[:-1]
    return {".".join(parents[: n + 1]): str(root.joinpath(*parents[1 : n + 1])) for n in range(len(parents))}


def _score(ran: RunResult, token: str, dataset: str) -> float:
    scores = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith(f"{token} ")]
    if scores:
        return float(scores[0])
    if ran.status == "timeout":
        raise GraderTimeout(f"the scorer of {dataset} took more than {ran.seconds:.0f} s and was killed")
    if ran.status == "memory":  # over the limits: wrong
        return 0.0
    raise GraderFailed(f"the scorer of {dataset} failed in the sandbox: {ran.status}, {ran.stderr[-2000:]}")
