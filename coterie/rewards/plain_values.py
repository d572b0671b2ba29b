"""What a reward function returned, as plain data: it is sent to a process that has not imported the user's packages."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, repr=False)
class NotPlain:
    """In place of any other value: what an error shows of it."""

    text: str

    def __repr__(self) -> str:
        return self.text


def plain_value(value: Any) -> Any:
    """Numbers of torch and numpy as Python's, arrays [N] as lists, and what is not plain data as its text.

    tensor(0.5), float32(0.5)  →  0.5        [tensor(0.5), 1]      →  [0.5, 1]
    bool_(True)                →  True       <generator object f>  →  NotPlain("<generator object f>")
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [plain_value(one) for one in value]
    dimensions = getattr(value, "ndim", None)  # of a tensor or an array; 0 for a single number
    if dimensions == 0:
        return plain_value(value.item())
    if dimensions == 1:
        return plain_value(value.tolist())
    return float(value) if isinstance(value, Real) else NotPlain(repr(value))
