"""Laws of the search for a row to go on from: it finds what looking at every row would find."""

from __future__ import annotations

import random

import numpy as np

from coterie.engines.native.prefix_index import Beginnings, Key, common, key_of


def texts(rng: random.Random, count: int) -> list[Key]:
    """Few letters, so that many begin alike."""
    return [
        key_of(rng.choice([None, "a"]), rng.randrange(2), np.array([rng.randrange(2) for _ in range(rng.randrange(9))]))
        for _ in range(count)
    ]


def test_the_longest_beginning_is_found_as_if_all_were_compared() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        known, beginnings = dict(enumerate(texts(rng, 12))), Beginnings[int]()
        for name, key in known.items():
            beginnings.add(key, name)
        for name in rng.sample(list(known), 4):
            beginnings.drop(known.pop(name), name)
        for key in texts(rng, 6):
            name, shared = beginnings.longest(key)
            assert shared == max(common(key, other) for other in known.values())
            ends_there = [other for other in known.values() if common(key, other) == shared == len(other[2]) // 4]
            if shared:
                assert name is not None and common(key, known[name]) == shared
                assert not ends_there or known[name] in ends_there


def test_tokens_stand_in_the_order_of_their_numbers() -> None:
    keys = [key_of(None, 0, np.array(ids)) for ids in ([3], [3, 0], [3, 70000], [256], [256, 1])]
    assert keys == sorted(keys)
