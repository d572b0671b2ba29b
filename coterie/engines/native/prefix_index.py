"""Prefix index of the KV cache: finds the row with the longest common prefix by binary search.

`slots` then copies that prefix (a prefix cache hit) instead of prefilling it again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

import numpy as np

PrefixKey = tuple[str, int, bytes]  # adapter, weights version, tokens
Item = TypeVar("Item")


def prefix_key(adapter: str | None, version: int, ids: np.ndarray) -> PrefixKey:
    """A sortable key: big-endian bytes compare as the token ids do."""
    return adapter or "", version, ids.astype(">u4").tobytes()


class PrefixIndex(Generic[Item]):
    """Sorted keys: the entry with the longest common prefix is a neighbour of the insertion point."""

    def __init__(self) -> None:
        self.keys: list[PrefixKey] = []
        self.items: list[Item] = []

    def add(self, key: PrefixKey, item: Item) -> None:
        at = bisect_right(self.keys, key)
        self.keys.insert(at, key)
        self.items.insert(at, item)

    def remove(self, key: PrefixKey, item: Item) -> None:
        at = self.items.index(item, bisect_left(self.keys, key))
        del self.keys[at], self.items[at]

    def longest_prefix(self, key: PrefixKey) -> tuple[Item | None, int]:
        """An item with the longest common prefix, and its length in tokens; preferably one that ends there."""
        at = bisect_right(self.keys, key)
        near = [i for i in (at - 1, at) if 0 <= i < len(self.keys)]
        shared = max((common_prefix(key, self.keys[i]) for i in near), default=0)
        if not shared:
            return None, 0
        whole = (*key[:2], key[2][: 4 * shared])
        first = bisect_left(self.keys, whole)  # the first entry with this prefix
        return self.items[first], shared


def common_prefix(one: PrefixKey, other: PrefixKey) -> int:
    """The number of leading tokens that two keys share."""
    if one[:2] != other[:2]:
        return 0
    most = min(len(one[2]), len(other[2])) // 4
    differs = np.frombuffer(one[2], "u4", most) != np.frombuffer(other[2], "u4", most)
    return int(differs.argmax()) if differs.any() else most
