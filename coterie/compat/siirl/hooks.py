"""Hooks of an agent's own file: `pre_process` and `post_process` change prompts and replies, as token ids."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.compat.siirl.imports import siirl_file

PRE, POST = "pre_process", "post_process"
Ids = list[int]


class HookError(ValueError):
    """A hook returned something other than token ids."""


@dataclass(frozen=True)
class Hooks:
    """`pre_process` and `post_process` of one agent; a missing function changes nothing."""

    role: str
    process_path: Path | None = None
    pre_process_kwargs: Mapping[str, Any] = field(default_factory=dict)
    post_process_kwargs: Mapping[str, Any] = field(default_factory=dict)
    written: str = ""  # its place, for error messages

    @cached_property
    def functions(self) -> dict[str, Callable[..., Any]]:
        return functions(self.process_path) if self.process_path else {}

    def check(self) -> None:
        """Raise a ValueError if a function has the wrong signature, before any episode is played."""
        for name, before, kwargs in (
            (PRE, ("tokenizer", "prompt_ids", "obs"), self.pre_process_kwargs),
            (POST, ("tokenizer", "prompt_ids", "response_ids"), self.post_process_kwargs),
        ):
            if name in self.functions:
                _must_take(self.functions[name], before, kwargs)
            elif kwargs:
                where = f"{self.process_path} has no {name}" if self.process_path else "there is no process_path"
                raise ValueError(f"{name}_kwargs have no effect: {where}")

    def pre(self, tokenizer: Any, prompt: Ids, seen: Ids | None) -> Ids:
        """The agent's prompt: the result of its hook on the prompt so far and the observation."""
        returned = self.functions[PRE](tokenizer, list(prompt), list(seen or []), **self.pre_process_kwargs)
        return self._ids(returned, PRE)

    def post(self, tokenizer: Any, prompt: Ids, response: Sequence[int]) -> Ids:
        """What the next agent continues from: by default the prompt and the reply."""
        if POST not in self.functions:
            return [*prompt, *response]
        returned = self.functions[POST](tokenizer, list(prompt), list(response), **self.post_process_kwargs)
        return self._ids(returned, POST)

    def _ids(self, returned: Any, name: str) -> Ids:
        ids = _plain_ids(returned)
        if ids is not None:
            return ids
        kind = "text" if isinstance(returned, str) else f"{returned!r:.60}"
        where = f" ({self.written})" if self.written else ""
        raise HookError(f"{self.role}: {name} of {self.process_path} returned {kind}, not a list of token ids{where}")


def _plain_ids(returned: Any) -> Ids | None:
    """Token ids as a list: of a list, a tensor or an array, a batch of one row, or a tokenizer's mapping with
    `input_ids` (a BatchEncoding); None if it is none of these."""
    ids = returned["input_ids"] if isinstance(returned, Mapping) and "input_ids" in returned else returned
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(ids, list | tuple) and len(ids) == 1 and not isinstance(ids[0], int | str):
        return _plain_ids(ids[0])
    return list(ids) if isinstance(ids, list | tuple) and all(type(id) is int for id in ids) else None


def functions(path: Path) -> dict[str, Callable[..., Any]]:
    """The hooks of a file by name; a ValueError if it has none."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    own = vars(siirl_file(path))
    found = {name: own[name] for name in (PRE, POST) if name in own and callable(own[name])}
    if not found:
        raise ValueError(f"{path} has neither {PRE} nor {POST}")
    return found


def _must_take(function: Callable[..., Any], before: Sequence[str], kwargs: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(*before, **kwargs)
    except TypeError as error:
        arguments = ", ".join([*before, *kwargs])
        raise ValueError(f"{function.__name__} cannot be called with ({arguments}): {error}") from None
