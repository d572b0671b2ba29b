"""A game that any tiny model can win now and then, and its config as a user has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

GAME = """\
from dataclasses import dataclass
from coterie.types import Task

@dataclass(frozen=True)
class Vowels:
    wins: bool = True  # whether anything is ever worth anything
    broken: bool = False

    def tasks(self, split):
        more = 6 if split == "test" else 0
        return [Task(f"{split}/{i}", f"What is {i} + {i + more}?", 2 * i + more) for i in range(6)]

    def open(self, task):
        return None

    async def score(self, episode):
        if self.broken:
            raise ZeroDivisionError("the scale is broken")
        vowels = sum(sign in "aeiou" for sign in episode.answer)
        episode.reward = vowels / max(1, len(episode.answer)) if self.wins else 0.0
"""


def game(folder: Path, model: Path, **changes: Any) -> Path:
    """Write `vowels.py` and `game.yaml` into a folder: a reasoner and an actor, an adapter each."""
    tree: dict[str, Any] = {
        "steps": 2,
        "tasks_per_step": 3,
        "episodes_per_task": 4,
        "policies": {name: {"model": str(model), "lora": {"rank": 2}, "lr": 0.1} for name in ("thinker", "doer")},
        "roles": {"reasoner": "thinker", "actor": "doer"},
        "workflow": "chain",
        "env": "vowels.py:Vowels",
        "reward": "native",
        "algorithm": "grpo",
        "sampling": {"max_tokens": 6},
        "eval": {"tasks": 5},
        "checkpoint": {"every": 1},
        "device": "cpu",
    }
    (folder / "vowels.py").write_text(GAME)
    path = folder / "game.yaml"
    path.write_text(yaml.safe_dump(tree | changes, sort_keys=False))
    return path
