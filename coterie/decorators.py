"""Make parts of a run out of plain functions."""

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
    *, roles: Sequence[str], judges_turns: bool = False, needs_sandbox: bool = False
) -> Callable[[Callable[..., Any]], type]:
    """A coroutine function as a workflow. Its keyword-only arguments are its options in the config.

    @workflow(roles=("writer", "critic"))
    async def review(task, team, world, *, rounds: int = 2): ...

    `judges_turns`: it gives each turn all that it was worth. `needs_sandbox`: it executes what a model wrote, so that a
    run is refused at once where that would not be safe.
    """

    def made(function: Callable[..., Any]) -> type:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"workflow {function.__name__}: write `async def`, so that it can wait for its roles")
        _must_take(function, ("task", "team", "world"))
        given = tuple(roles)

        async def run(self: Any, task: Any, team: Any, world: Any) -> Any:
            return await function(task, team, world, **{name: getattr(self, name) for name in options})

        options = _options(function)
        says = {"judges_turns": judges_turns, "needs_sandbox": needs_sandbox}
        return _made(function, options, {"roles": property(lambda self: given), "run": run, **says})

    return made


def env(function: Callable[..., Any]) -> type:
    """A function `(split) -> tasks` as an environment; the config's reward grades. Keyword-only arguments are options.

    @env
    def doubles(split, *, size: int = 100):
        return [Task(f"{split}/{n}", f"What is {n} + {n}?", 2 * n) for n in range(size)]
    """
    from coterie.envs.base import TaskEnv  # with torch, which a process that only grades can do without

    _must_take(function, ("split",))
    options = _options(function)

    def tasks(self: Any, split: str) -> Any:
        return function(split, **{name: getattr(self, name) for name in options})

    return _made(function, options, {"tasks": tasks}, (TaskEnv,))


@overload
def reward(function: Reward) -> Reward: ...
@overload
def reward(*, batched: bool) -> Callable[[Reward], Reward]: ...
def reward(function: Reward | None = None, *, batched: bool = False) -> Reward | Callable[[Reward], Reward]:
    """A function `(answer, truth) -> float` as a reward, checked here. Keyword-only arguments are its options.

    A third argument is the task. `@reward(batched=True)` marks one that scores many answers in one call:
    `(answers, truths, tasks) -> list of floats`, where all are lists of the same length.
    """

    def made(function: Reward) -> Reward:
        setattr(function, MARK, batched)
        _must_take(function, reward_signature(function).names)
        _options(function)
        return function

    return made if function is None else made(function)


def tool(function: Callable[..., Any]) -> Tool:
    """A typed function with a docstring as a tool, checked here; it may be async."""
    from coterie.tools.tool import Tool, tool_schema  # with torch, which a process that grades can do without

    made = Tool(function, function.__name__)
    tool_schema(made)
    return made


def _made(function: Callable[..., Any], options: Options, body: dict[str, Any], bases: tuple[type, ...] = ()) -> type:
    """A frozen dataclass that goes by the function's name, with the options for its fields."""
    fields = [(name, hint, _default(default)) for name, (hint, default) in options.items()]
    body = {**body, "__doc__": function.__doc__}
    cls = make_dataclass(function.__name__, fields, bases=bases, namespace=body, frozen=True)
    cls.__module__, cls.__qualname__ = function.__module__, function.__qualname__
    return cls


def _must_take(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    """How they are called does not matter, only how many there are."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    places = [
        kind for kind in kinds if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(places) != len(names):
        wanted = ", ".join(names)
        raise TypeError(f"{function.__name__}: takes ({wanted}), and options after a `*`: ({wanted}, *, option=1)")


def _options(function: Callable[..., Any]) -> Options:
    """Keyword-only arguments with their types and defaults; those that must be given come first."""
    hints = get_type_hints(function, include_extras=True)
    chosen = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for parameter in chosen:
        if parameter.name not in hints:
            raise TypeError(f"{function.__name__}: the option {parameter.name} needs a type, as in `rounds: int = 2`")
    ordered = sorted(chosen, key=lambda p: p.default is not p.empty)
    return {p.name: (hints[p.name], MISSING if p.default is p.empty else p.default) for p in ordered}


def _default(value: Any) -> Any:
    if value is MISSING:
        return field()
    return field(default_factory=lambda: value) if isinstance(value, list | dict | set) else field(default=value)
