"""Whether a user's own part has what a run asks of it."""

from __future__ import annotations

import inspect
from typing import Any

from coterie.algorithms.base import Algorithm
from coterie.config.registry import Kind
from coterie.credit.base import Credit
from coterie.rewards.reward_function import reward_signature

ASKED: dict[Kind, tuple[str, ...]] = {"workflow": ("roles", "run"), "env": ("tasks", "open", "score")}
AWAITED: dict[Kind, str] = {"workflow": "run", "env": "score"}
BASES: dict[Kind, type] = {"algorithm": Algorithm, "credit": Credit}


def misfit(kind: Kind, part: Any, made: Any) -> str | None:
    """What is wrong with it as a part of this kind; `part` is the class or function that it was made of."""
    name = part.__name__
    lacking = [asked for asked in ASKED.get(kind, ()) if not hasattr(made, asked)]
    if lacking:
        return f"{name} has no {' and no '.join(lacking)}; {kind}s have {', '.join(ASKED[kind])}"
    if kind == "workflow" and not _are_names(made.roles):
        return f"{name}.roles is {made.roles!r}; a list of role names is wanted, as in roles = ('solver', 'judge')"
    if kind in AWAITED and not inspect.iscoroutinefunction(getattr(made, AWAITED[kind])):
        return f"{name}.{AWAITED[kind]} is no coroutine; write `async def {AWAITED[kind]}`"
    if kind in BASES and not isinstance(made, BASES[kind]):
        return f"{name} is no {BASES[kind].__name__}; write `class {name}({BASES[kind].__name__})`"
    return _answered(name, part) if kind == "reward" else None


def _are_names(roles: Any) -> bool:
    return isinstance(roles, list | tuple) and all(isinstance(role, str) for role in roles)


def _answered(name: str, reward: Any) -> str | None:
    """A reward is called with two arguments, or three with the task; its options are known by name."""
    signature, names = inspect.signature(reward), reward_signature(reward).names
    options = {p.name: None for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    try:
        signature.bind(*names, **options)
    except TypeError as error:
        return f"{name} cannot be called with ({', '.join(names)}): {error}"
    return None
