"""Who is compared with whom: a group is the samples that share a typed key."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.types import Episode, Turn

Peer = Literal["batch", "task", "role", "policy", "opponents", "turn", "prompt"]
Part = str | int | tuple[int, ...] | tuple[str, ...]
Key = tuple[tuple[Peer, Part], ...]


@dataclass(frozen=True)
class Sample:
    """What is compared: a turn, or all that a team said in a round; and what it was worth."""

    key: Hashable  # equal in samples that are compared
    episode: Episode
    turns: tuple[Turn, ...]  # they share the advantage
    reward: float


def group_key(episode: Episode, turn: Turn, peers: Sequence[Peer]) -> Key:
    """The value of each declared peer for this turn; `batch` puts all turns of a step together."""
    parts: dict[Peer, Part] = {
        "batch": 0,
        "task": episode.task.id,
        "role": turn.role,
        "policy": turn.policy,
        "opponents": tuple(sorted({other.policy for other in episode.turns} - {turn.policy})),
        "turn": turn.round,
        "prompt": turn.prompt_ids,
    }
    return tuple((peer, parts[peer]) for peer in peers)


def number(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys get equal numbers, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]
