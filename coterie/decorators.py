"""Decorators that turn functions into workflows, environments, rewards and tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, make_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints, overload

from coterie.rewards.reward_function import MARK, reward_signature

if TYPE_CHECKING:
    from coterie.tools.tool import Tool

Reward = TypeVar("Reward", bound=Callable[..., Any])
Options = dict[str, tuple[Any, Any]]  # by name: the type, and the default


def workflow(
    *bare: Callable[..., Any],
    roles: Sequence[str] | None = None,
    judges_turns: bool = False,
    needs_sandbox: bool = False,
    needs_world: bool = False,
) -> Callable[[Callable[..., Any]], type]:
    """Turn a coroutine function into a workflow. Its keyword-only arguments are its options in the config.

    @workflow(roles=("writer", "critic"))
    async def review(task, team, world, *, rounds: int = 2): ...

    `judges_turns`: it sets the reward of each turn. `needs_sandbox`: it executes model output, so that runs need a
    working sandbox. `needs_world`: it acts on a world of the environment, so that only its roles are served.
    """
    if bare or roles is None:
        raise TypeError('a workflow names its roles: write @workflow(roles=("writer",))')
    role_names = _role_names(roles)

    def decorate(function: Callable[..., Any]) -> type:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"workflow {function.__name__}: must be `async def`, so that it can await its roles")
        _check_arguments(function, ("task", "team", "world"))

        async def run(self: Any, task: Any, team: Any, world: Any) -> Any:
            return await function(task, team, world, **{name: getattr(self, name) for name in options})

        options = _options(function)
        flags = {"judges_turns": judges_turns, "needs_sandbox": needs_sandbox, "needs_world": needs_world}
        return _dataclass_of(function, options, {"roles": property(lambda self: role_names), "run": run, **flags})

    return decorate


def env(function: Callable[..., Any]) -> type:
    """Turn a function `(split) -> tasks` into an environment. Keyword-only arguments are its options in the config.

    @env
    def doubles(split, *, size: int = 100):
        return [Task(f"{split}/{n}", f"What is {n} + {n}?", 2 * n) for n in range(size)]
    """
    from coterie.envs.base import TaskEnv  # imports torch, which grading processes do not need

    _check_arguments(function, ("split",))
    options = _options(function)

    def tasks(self: Any, split: str) -> Any:
        return function(split, **{name: getattr(self, name) for name in options})

    return _dataclass_of(function, options, {"tasks": tasks}, (TaskEnv,))


@overload
def reward(function: Reward) -> Reward: ...
@overload
def reward(*, batched: bool) -> Callable[[Reward], Reward]: ...
def reward(function: Reward | None = None, *, batched: bool = False) -> Reward | Callable[[Reward], Reward]:
    """Mark and check a function `(answer, truth) -> float` as a reward. Keyword-only arguments are its options.

    A third argument is the task. `@reward(batched=True)` marks a function that scores many answers in one call:
    `(answers, truths, tasks) -> list of floats`, all of the same length.
    """

    def decorate(function: Reward) -> Reward:
        setattr(function, MARK, batched)
        _check_arguments(function, reward_signature(function).names)
        _options(function)
        return function

    return decorate if function is None else decorate(function)


def tool(function: Callable[..., Any]) -> Tool:
    """Turn a typed function with a docstring, async or not, into a tool."""
    from coterie.tools.tool import Tool, tool_schema  # imports torch, which grading processes do not need

    created = Tool(function, function.__name__)
    tool_schema(created)  # raises if the signature has no schema
    return created


def _dataclass_of(
    function: Callable[..., Any], options: Options, body: dict[str, Any], bases: tuple[type, ...] = ()
) -> type:
    """A frozen dataclass with the function's name and its options as fields."""
    fields = [(name, hint, _default(default)) for name, (hint, default) in options.items()]
    body = {**body, "__doc__": function.__doc__}
    cls = make_dataclass(function.__name__, fields, bases=bases, namespace=body, frozen=True)
    cls.__module__, cls.__qualname__ = function.__module__, function.__qualname__
    return cls


def _role_names(roles: Sequence[str]) -> tuple[str, ...]:
    if isinstance(roles, str):
        raise TypeError(f"roles={roles!r}: roles is a tuple of names; write roles=({roles!r},)")
    if len(set(roles)) < len(roles):
        raise TypeError(f"roles={roles!r}: name each role once")
    return tuple(roles)


def _check_arguments(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    """Check the number of positional arguments; their names do not matter."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    positional = [
        kind for kind in kinds if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) != len(names):
        expected = ", ".join(names)
        raise TypeError(
            f"{function.__name__}: must take ({expected}), and options after a `*`: ({expected}, *, option=1)"
        )


def _options(function: Callable[..., Any]) -> Options:
    """Keyword-only arguments with their types and defaults; required ones first, as dataclasses want them."""
    hints = get_type_hints(function, include_extras=True)
    keyword_only = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for parameter in keyword_only:
        if parameter.name not in hints:
            raise TypeError(f"{function.__name__}: the option {parameter.name} needs a type, as in `rounds: int = 2`")
    ordered = sorted(keyword_only, key=lambda p: p.default is not p.empty)
    return {p.name: (hints[p.name], MISSING if p.default is p.empty else p.default) for p in ordered}


def _default(value: Any) -> Any:
    if value is MISSING:
        return field()
    return field(default_factory=lambda: value) if isinstance(value, list | dict | set) else field(default=value)
