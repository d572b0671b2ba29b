"""A proxy in the tests for an object of the program under test, which lives in another process.

Runs in the sandbox, so it imports little.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FORWARDED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("setattr", "getitem", "setitem"), lambda value: value),
    **{"len": int, "bool": bool, "repr": str, "str": str, "hash": int},
}
BINARY_OPERATORS = ("add", "sub", "mul", "matmul", "lt", "le", "gt", "ge")


class RemoteObject:
    """Forwards every operation to the other process by RPC.

    Compares and combines only with other remote objects: an `__eq__` that the program wrote must not decide whether
    a result equals what a test expects.
    """

    def __init__(self, ask: Callable[..., Any], number: int) -> None:
        vars(self).update(_ask=ask, _number=number)

    def __getattr__(self, name: str) -> Any:
        return self._ask("getattr", self, name)

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        value, changed = self._ask("call", self, arguments, keywords)
        for index, content in changed:
            refill(arguments[index], content)
        return value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RemoteObject):
            return bool(self._ask("eq", self, other))
        builtin = self._ask("as_builtin", self)
        return not isinstance(builtin, RemoteObject) and bool(builtin == other)

    def __iter__(self) -> Iterator[Any]:
        items = self._ask("iter", self)
        while item := self._ask("next", items):
            yield item[0]

    def __next__(self) -> Any:
        item = self._ask("next", self)
        if not item:
            raise StopIteration
        return item[0]


def _forward(verb: str, convert: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda self, *parts: convert(self._ask(verb, self, *parts))


def _binary(name: str) -> Callable[[RemoteObject, object], Any]:
    def operate(one: RemoteObject, other: object) -> Any:
        return one._ask("operate", name, one, other) if isinstance(other, RemoteObject) else NotImplemented

    return operate


for _verb, _convert in FORWARDED.items():
    setattr(RemoteObject, f"__{_verb}__", _forward(_verb, _convert))
for _name in BINARY_OPERATORS:
    setattr(RemoteObject, f"__{_name}__", _binary(_name))


def refill(old: Any, content: Any) -> None:
    """Copy what a function changed in a mutable argument back into the caller's object."""
    old.clear()
    (old.extend if isinstance(old, list) else old.update)(content)
