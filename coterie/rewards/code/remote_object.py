"""What stands in the tests for something of the program's, which lives in another process."""

from __future__ import annotations

TYPE_CHECKING = False  # runs in the sandbox, where typing takes too long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

WITH_ITS_LIKE = ("add", "sub", "mul", "matmul", "lt", "le", "gt", "ge")


class Far:
    """Something that lives in the other process.

    It meets only its like as an equal or an operand: what a program made itself must not judge what a test wants.
    """

    def __init__(self, ask: Callable[..., Any], number: int) -> None:
        vars(self).update(_ask=ask, _number=number)

    def __getattr__(self, name: str) -> Any:
        return self._ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._ask("setattr", self, name, value)

    def __call__(self, *arguments: object, **named: object) -> Any:
        value, changed = self._ask("call", self, arguments, named)
        for place, content in changed:
            refill(arguments[place], content)
        return value

    def __getitem__(self, key: object) -> Any:
        return self._ask("getitem", self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self._ask("setitem", self, key, value)

    def __len__(self) -> int:
        return int(self._ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._ask("bool", self))

    def __repr__(self) -> str:
        return str(self._ask("repr", self))

    def __str__(self) -> str:
        return str(self._ask("str", self))

    def __hash__(self) -> int:
        return int(self._ask("hash", self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Far):
            return bool(self._ask("same", self, other))
        plain = self._ask("plain", self)
        return not isinstance(plain, Far) and bool(plain == other)

    def __iter__(self) -> Iterator[Any]:
        items = self._ask("iter", self)
        while item := self._ask("following", items):
            yield item[0]

    def __next__(self) -> Any:
        item = self._ask("following", self)
        if not item:
            raise StopIteration
        return item[0]


def _between(name: str) -> Callable[[Far, object], Any]:
    def operate(one: Far, other: object) -> Any:
        return one._ask("operate", name, one, other) if isinstance(other, Far) else NotImplemented

    return operate


for _name in WITH_ITS_LIKE:
    setattr(Far, f"__{_name}__", _between(_name))


def refill(old: Any, content: Any) -> None:
    """A function may change the list that it is given; the one who gave it sees that."""
    old.clear()
    (old.extend if isinstance(old, list) else old.update)(content)
