"""What reasoning-gym's own scorer says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

from coterie.rewards.answers import boxed, tagged


def native(answer: Any, entry: Mapping[str, Any], *, dataset: str, params: Mapping[str, Any]) -> float:
    """A task's own score, often graded: 1 for the right answer, less for one that is near or wordy.

    What a text puts into `\\boxed{}` or `<answer>` is its answer, else all of it.
    """
    said = str(answer).strip()
    try:
        scorer = _dataset(dataset, json.dumps(params))
        return float(scorer.score_answer(boxed(said) or tagged(said) or said, dict(entry)))
    except (ValueError, TypeError, AttributeError):
        # Some scorers (prime_factorization, boxnet) raise on text that they cannot read: a wrong answer.
        return 0.0


@cache
def _dataset(name: str, params: str) -> ProceduralDataset:
    return reasoning_gym.create_dataset(name, **json.loads(params))
