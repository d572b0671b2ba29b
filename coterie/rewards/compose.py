"""Several rewards at once."""

from __future__ import annotations

from coterie.config.strict import Weighted


def compose(*, parts: tuple[Weighted, ...]) -> None:
    """What a config may say of a composed reward; `grader` makes it.

    reward: {name: compose, parts: [{name: math, weight: 0.9}, {name: format, pattern: "^<think>", weight: 0.1}]}
    """
