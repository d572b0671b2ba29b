"""Tasks that reasoning-gym makes up, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.data.prepare import SPLITS, Found
from coterie.data.row import Raw, Row, Source

PREFIX = "reasoning_gym:"


def source(name: str) -> Source:
    """`reasoning_gym:chain_sum` as a source."""
    return Source(name, "tasks that reasoning-gym makes up", "native", parse)


def parse(raw: Raw, name: str) -> Row | str:
    return Row(raw["id"], raw["question"], raw["answer"], raw["meta"])


def made_up(name: str, place: Path | None, limit: int | None) -> Iterator[Found]:
    """1,000 tasks to train on and 200 others to measure with, unless fewer are wanted; the same on every machine."""
    from coterie.envs.reasoning_gym import ReasoningGym  # with torch, which the other sources do without

    if place is not None:
        raise ValueError(f"{name}: is made up, not read; it takes no --source")
    env = ReasoningGym(name.removeprefix(PREFIX), size=limit or 1000, test_size=limit or 200)
    for split in SPLITS:
        for number, task in enumerate(env.tasks(split), 1):
            raw: dict[str, Any] = {"id": task.id, "question": task.prompt, "answer": task.answer, "meta": task.meta}
            yield Found(split, number, raw, split)
