"""Who is compared with whom: a group is the turns that share a typed key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from coterie.types import Episode, Turn

Peer = Literal["batch", "task", "role", "policy", "turn", "prompt"]
Key = tuple[tuple[Peer, str | int | tuple[int, ...]], ...]


def group_key(episode: Episode, turn: Turn, peers: Sequence[Peer]) -> Key:
    """The value of each declared peer for this turn; `batch` puts all turns of a step together."""
    parts: dict[Peer, str | int | tuple[int, ...]] = {
        "batch": 0,
        "task": episode.task.id,
        "role": turn.role,
        "policy": turn.policy,
        "turn": turn.round,
        "prompt": turn.prompt_ids,
    }
    return tuple((peer, parts[peer]) for peer in peers)


def number(keys: Sequence[Key]) -> list[int]:
    """Equal keys get equal numbers, in order of first appearance."""
    seen: dict[Key, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]
