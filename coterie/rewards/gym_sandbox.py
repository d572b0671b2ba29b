"""Scorers of reasoning-gym that evaluate the answer: each answer in a sandbox of its own."""

from __future__ import annotations

import marshal
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from coterie.rewards.worker import GraderFailed, GraderTimeout
from coterie.sandbox import Limits, Ran, shared

# Stand-ins for the packages keep their __init__ from importing all datasets, which takes seconds. The scorer is not
# constructed, because n_queens would search for all boards again.
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


async def score_in_sandbox(
    text: str, entry: Mapping[str, Any], dataset: str, params: Mapping[str, Any], seconds: float
) -> float:
    """What a dataset's own scorer says of an answer, from a process that no other answer shares."""
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
    """The packages around a dataset's module and their folders."""
    root = Path(reasoning_gym.__file__).parent
    above = module.split(".")[:-1]
    return {".".join(above[: n + 1]): str(root.joinpath(*above[1 : n + 1])) for n in range(len(above))}


def _score(ran: Ran, token: str, dataset: str) -> float:
    told = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith(f"{token} ")]
    if told:
        return float(told[0])
    if ran.ended == "timeout":
        raise GraderTimeout(f"the scorer of {dataset} took more than {ran.seconds:.0f} s and was killed")
    if ran.ended == "memory":  # over the limits: wrong
        return 0.0
    raise GraderFailed(f"the scorer of {dataset} failed in the sandbox: {ran.ended}, {ran.stderr[-2000:]}")
