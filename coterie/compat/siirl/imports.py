"""Imports from `siirl` in a user's files: an import hook serves siiRL's scorers while such a file is loaded.

It serves `siirl.utils.reward_score` and the base class of environments. Any other name of `siirl` is an ImportError
that says what to use instead, also where siiRL is installed: its modules start Ray and need its GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.compat.siirl.reward_score import SCORES, default_compute_score
from coterie.config.registry import user_module

ROOT = "siirl"
REWARD_SCORE = "siirl.utils.reward_score"


class BaseEnvironment:
    """A stand-in for siiRL's base class of environments; environments need nothing of it."""


MODULES: dict[str, Mapping[str, Any]] = {
    REWARD_SCORE: {"default_compute_score": default_compute_score, "_default_compute_score": default_compute_score},
    **{f"{REWARD_SCORE}.{name}": functions for name, functions in SCORES.items()},
    "siirl.workers.environment.base": {"BaseEnvironment": BaseEnvironment},
    "siirl.workers.environment": {"BaseEnvironment": BaseEnvironment},
}
PACKAGES = {name.rsplit(".", n)[0] for name in MODULES for n in range(1, name.count(".") + 1)}
# By prefix, the longest first: what to use instead.
INSTEAD = {
    f"{REWARD_SCORE}.sandbox_fusion": f"{REWARD_SCORE}.prime_code runs programs in Coterie's sandbox",
    REWARD_SCORE: f"there are {', '.join(SCORES)}; make_grader of coterie.rewards has the others, such as qa and nli",
    "siirl.workers.environment": "an environment needs no base class, only step(actions, ground_truth)",
    "siirl.models": "a hook gets its tokenizer as an argument",
    ROOT: f"of siirl there is only {REWARD_SCORE} here; make_grader of coterie.rewards has all graders",
}


class SiirlFinder(MetaPathFinder, Loader):
    """Finds the modules of `siirl` that are served here, and refuses the others."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != ROOT:
            return None
        if name not in MODULES and name not in PACKAGES:
            instead = next(text for prefix, text in INSTEAD.items() if name.startswith(prefix))
            raise ModuleNotFoundError(f"{name} is not served here: {instead}")
        return ModuleSpec(name, self, is_package=name in PACKAGES)

    def exec_module(self, module: ModuleType) -> None:
        names = MODULES.get(module.__name__, {})
        vars(module).update(names)
        if module.__name__ not in PACKAGES:  # in a package, Python looks a missing name up as a submodule

            def missing(name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                has = f"it has {', '.join(names)} here"
                raise ImportError(f"{module.__name__} has no {name}: {has}; {INSTEAD[ROOT]}")

            vars(module)["__getattr__"] = missing


@contextmanager
def siirl_modules() -> Iterator[None]:
    """Serve `import siirl.…` inside this context; afterwards `siirl` is what it was before."""
    finder, before = SiirlFinder(), _pop_modules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _pop_modules()
        sys.modules.update(before)


def siirl_file(path: Path) -> ModuleType:
    """A user's file in siiRL's format, imported once; a ConfigError if it cannot be."""
    with siirl_modules():
        return user_module(path.resolve())


def runs_programs(module: ModuleType) -> bool:
    """True if a file imported the scorer that runs programs, which needs the sandbox."""
    scorer = SCORES["prime_code"]["compute_score"]
    return any(value is scorer or value is default_compute_score for value in vars(module).values())


def _pop_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == ROOT]
    return {name: sys.modules.pop(name) for name in names}
