"""Load a function by its name. Light on purpose: the grading processes start with it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from coterie.user_code import run_file


@cache
def load(name: str) -> Callable[..., Any]:
    """The function (or class) that `package.module:name` or `path/to/file.py:name` names."""
    place, _, attribute = name.rpartition(":")
    # Named by its whole path, so that a user's math.py does not stand in for Python's.
    path = Path(place).resolve()
    module = run_file(path, str(path)) if place.endswith(".py") else importlib.import_module(place)
    if attribute not in vars(module):
        raise ValueError(f"{place} has no {attribute}")
    function: Callable[..., Any] = vars(module)[attribute]
    return function
