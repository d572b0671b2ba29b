"""A config that loads, a user's own parts beside it, and what is said of one that does not load."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.config import Config, ConfigError, load
from coterie.config.conflicts import check_conflicts

GOOD = """\
policies:
  thinker: {lr: 3e-4}
  doer:
    lora: {rank: 8}
roles:
  reasoner: thinker
  actor: {policy: doer, max_tokens: 8}
workflow: chain
env:
  name: rows
  train: sums.jsonl
reward: number
algorithm:
  name: grpo
  group_by: [task, role]
steps: 20
sampling:
  max_tokens: 32
"""


PARTS = """\
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from pydantic import Field

@dataclass(frozen=True)
class Quiz:
    level: Annotated[int, Field(ge=1, le=3)] = 1
    pairs: tuple[tuple[int, float], ...] = ()
    words: Annotated[tuple[str, ...], Field(min_length=1)] = ("a",)

    def __post_init__(self):
        if self.level == 2:
            raise ValueError("level: two is unlucky")

    def tasks(self, split): return []
    def open(self, task): return None
    async def score(self, episode): episode.reward = 1.0

class Plain:
    def __init__(self, size: int, shuffle: bool = True):
        self.size = size

def near(answer, truth, *, within: float = 0.5) -> float:
    return float(abs(answer - truth) <= within)

@dataclass(frozen=True)
class Named:
    name: str = "x"

class Nobody:
    async def run(self, task, team, world): return "?"

class Hasty:
    roles = ("reasoner", "actor")
    def run(self, task, team, world): return "?"

class Lazy(Quiz):
    def score(self, episode): episode.reward = 1.0

class Torn:
    roles = ("reasoner", "actor")
    def __init__(self, size: int = 3):
        self.size = size + "3"

    async def run(self, task, team, world): return "?"

class Picky(Quiz):
    def problems(self, config):
        if config.steps > 10:
            yield "steps", "Picky has tasks for 10 steps only"

class Opens(Quiz):
    async def open(self, task): return None

class Guess:
    pass

def sure(answer) -> float:
    return 1.0

class Echo:
    roles = ("reasoner", "actor", "actor")
    async def run(self, task, team, world): return "?"

class Sure:
    def __call__(self, answer, truth):
        return 1.0

sure_too = Sure()

def by_position(answer, truth, k: int = 1, *, far=2):
    return 1.0

def swapped(truth, answer):
    return 1.0
"""


def checked(path: Path, overrides: list[str]) -> Config:
    config = load(path, overrides)
    check_conflicts(config)
    return config


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(path, list(overrides))
    return str(caught.value)


VARIANTS: list[list[str]] = [
    [],
    ["algorithm=ppo", "workflow={name: debate, roles: [reasoner, actor], rounds: 3}"],
    ["policies.doer.lora=null", "roles.actor.stop=['\\n', 'no']", "log.wandb=1e5 sums", "seed=-3"],
    ["env={name: 'parts.py:Quiz', level: 3, pairs: [[1, 2], [3, 4.5]]}", "reward=native"],
    ["reward={name: 'parts.py:near', within: 1}", "env.limit=5"],
    ["env={name: reasoning_gym, dataset: basic_arithmetic, params: {min_terms: 2}}", "reward=native"],
]
