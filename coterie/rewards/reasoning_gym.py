"""What reasoning-gym's own scorer says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset


def native(answer: Any, entry: Mapping[str, Any], *, dataset: str, params: Mapping[str, Any]) -> float:
    """A task's own score, often graded: 1 for the right answer, less for one that is near or wordy."""
    try:
        return float(_dataset(dataset, json.dumps(params)).score_answer(str(answer).strip(), dict(entry)))
    except (ValueError, TypeError, AttributeError):
        # Some scorers (prime_factorization, boxnet) raise on text that they cannot read: a wrong answer.
        return 0.0


@cache
def _dataset(name: str, params: str) -> ProceduralDataset:
    return reasoning_gym.create_dataset(name, **json.loads(params))
