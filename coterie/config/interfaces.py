"""Check that a user's own part has the interface of its kind: the methods, coroutines and base class a run needs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from coterie.algorithms.base import Algorithm
from coterie.config.registry import Kind
from coterie.credit.base import Credit
from coterie.rewards.reward_function import TASK, reward_signature

MEMBERS: dict[Kind, tuple[str, ...]] = {"workflow": ("roles", "run"), "env": ("tasks", "open", "score")}
COROUTINES: dict[Kind, str] = {"workflow": "run", "env": "score"}
NOT_COROUTINES: dict[Kind, tuple[str, ...]] = {"env": ("tasks", "open")}
SWAPPED = (("truth", "answer"), ("truths", "answers"))  # parameters of a reward in the wrong order
BASES: dict[Kind, type] = {"algorithm": Algorithm, "credit": Credit}


def interface_problem(kind: Kind, part: Any, instance: Any) -> str | None:
    """What `part`, a user's class or function, lacks as a part of this kind; None if nothing."""
    name = part.__name__
    missing = [member for member in MEMBERS.get(kind, ()) if not hasattr(instance, member)]
    if missing:
        return f"{name} has no {' and no '.join(missing)}; {kind}s have {', '.join(MEMBERS[kind])}"
    if kind == "workflow" and not _are_names(instance.roles):
        return f"{name}.roles is {instance.roles!r}, expected a list of role names, as in roles = ('solver', 'judge')"
    if kind == "workflow" and _is_repetitive(part, instance.roles):
        return f"{name}.roles is {instance.roles!r}; name each role once"
    if kind in COROUTINES and not inspect.iscoroutinefunction(getattr(instance, COROUTINES[kind])):
        return f"{name}.{COROUTINES[kind]} is not a coroutine; write `async def {COROUTINES[kind]}`"
    for member in NOT_COROUTINES.get(kind, ()):
        if inspect.iscoroutinefunction(getattr(instance, member)):
            return f"{name}.{member} is a coroutine, which nothing awaits; write `def {member}`, without async"
    if kind in BASES and not isinstance(instance, BASES[kind]):
        return f"{name} is not a subclass of {BASES[kind].__name__}; write `class {name}({BASES[kind].__name__})`"
    return _signature_problem(name, part) if kind == "reward" else None


def positional_option(reward: Any, key: str) -> str | None:
    """How to write a user's reward so that its parameter `key` is an option; None if it has no such parameter."""
    parameters = list(inspect.signature(reward).parameters.values())
    called = [p for place, p in enumerate(parameters) if place < 2 or p.name in TASK]
    others = [p for p in parameters if p not in called and p.kind is p.POSITIONAL_OR_KEYWORD]
    if key not in [p.name for p in others]:
        return None
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    options = [str(p.replace(annotation=p.empty)) for p in (*others, *named)]
    written = f"{reward.__name__}({', '.join([*(p.name for p in called), '*', *options])})"
    return f"{reward.__name__} takes {key} by position, and options are keyword-only; write def {written}"


def _are_names(roles: Any) -> bool:
    return isinstance(roles, list | tuple) and all(isinstance(role, str) for role in roles)


def _is_repetitive(workflow: type, roles: Sequence[str]) -> bool:
    """True if a written list of roles has one twice. A property may, whose roles are options."""
    return len(set(roles)) < len(roles) and not isinstance(inspect.getattr_static(workflow, "roles", None), property)


def _signature_problem(name: str, reward: Any) -> str | None:
    """A reward is called with (answer, truth) or (answer, truth, task); its options are keyword-only."""
    signature, names = inspect.signature(reward), reward_signature(reward).names
    if tuple(signature.parameters)[:2] in SWAPPED:
        first, second = names[:2]
        return f"{name} is called with ({first}, {second}), and its parameters are ({second}, {first}); swap them"
    options = {p.name: None for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    try:
        signature.bind(*names, **options)
    except TypeError as error:
        return f"{name} cannot be called with ({', '.join(names)}): {error}"
    return None
