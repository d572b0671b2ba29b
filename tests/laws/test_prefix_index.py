"""The prefix index finds the longest common prefix that a scan of all rows would find."""

from __future__ import annotations

import random

import numpy as np

from coterie.engines.native.prefix_index import PrefixIndex, PrefixKey, common_prefix, prefix_key


def texts(rng: random.Random, count: int) -> list[PrefixKey]:
    """Few distinct tokens, so that many share a prefix."""
    return [
        prefix_key(
            rng.choice([None, "a"]), rng.randrange(2), np.array([rng.randrange(2) for _ in range(rng.randrange(9))])
        )
        for _ in range(count)
    ]


def test_the_longest_prefix_is_found_as_by_a_scan() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        known, index = dict(enumerate(texts(rng, 12))), PrefixIndex[int]()
        for name, key in known.items():
            index.add(key, name)
        for name in rng.sample(list(known), 4):
            index.remove(known.pop(name), name)
        for key in texts(rng, 6):
            name, shared = index.longest_prefix(key)
            assert shared == max(common_prefix(key, other) for other in known.values())
            ends_there = [
                other for other in known.values() if common_prefix(key, other) == shared == len(other[2]) // 4
            ]
            if shared:
                assert name is not None and common_prefix(key, known[name]) == shared
                assert not ends_there or known[name] in ends_there


def test_keys_sort_as_their_token_ids() -> None:
    keys = [prefix_key(None, 0, np.array(ids)) for ids in ([3], [3, 0], [3, 70000], [256], [256, 1])]
    assert keys == sorted(keys)
