"""Load a function by its name. Light on purpose: the grading processes start with it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


@cache
def load(name: str) -> Callable[..., Any]:
    """The function (or class) that `package.module:name` or `path/to/file.py:name` names."""
    place, _, attribute = name.rpartition(":")
    module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    if attribute not in vars(module):
        raise ValueError(f"{place} has no {attribute}")
    function: Callable[..., Any] = vars(module)[attribute]
    return function


def _file(path: Path) -> ModuleType:
    # Named by its whole path, so that a user's math.py does not stand in for Python's.
    spec = importlib.util.spec_from_file_location(str(path.resolve()), path)
    assert spec and spec.loader  # a .py path always has them, whether or not there is a file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module
