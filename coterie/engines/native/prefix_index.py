"""Finds the row that another one begins with, without looking at all of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

import numpy as np

Key = tuple[str, int, bytes]  # adapter, version, tokens
Named = TypeVar("Named")


def key_of(adapter: str | None, version: int, ids: np.ndarray) -> Key:
    """A key by which texts stand in the order of their tokens."""
    return adapter or "", version, ids.astype(">u4").tobytes()


class Beginnings(Generic[Named]):
    """Texts in order: the one that shares most with a text stands next to where it would stand."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.names: list[Named] = []

    def add(self, key: Key, name: Named) -> None:
        at = bisect_right(self.keys, key)
        self.keys.insert(at, key)
        self.names.insert(at, name)

    def drop(self, key: Key, name: Named) -> None:
        at = self.names.index(name, bisect_left(self.keys, key))
        del self.keys[at], self.names[at]

    def longest(self, key: Key) -> tuple[Named | None, int]:
        """Who shares the longest beginning with a text, and how many tokens; rather one that ends there."""
        at = bisect_right(self.keys, key)
        near = [i for i in (at - 1, at) if 0 <= i < len(self.keys)]
        shared = max((common(key, self.keys[i]) for i in near), default=0)
        if not shared:
            return None, 0
        whole = (*key[:2], key[2][: 4 * shared])
        first = bisect_left(self.keys, whole)  # the first of those who begin so
        return self.names[first], shared


def common(one: Key, other: Key) -> int:
    """How many tokens two texts share from their first on."""
    if one[:2] != other[:2]:
        return 0
    most = min(len(one[2]), len(other[2])) // 4
    differs = np.frombuffer(one[2], "u4", most) != np.frombuffer(other[2], "u4", most)
    return int(differs.argmax()) if differs.any() else most
