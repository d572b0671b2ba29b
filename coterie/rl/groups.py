"""Groups of samples that are compared with each other: those that share a key."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.types import Episode, Turn

GroupBy = Literal["batch", "task", "role", "policy", "opponents", "turn", "prompt"]
Part = str | int | tuple[int, ...] | tuple[str, ...]
Key = tuple[tuple[GroupBy, Part], ...]

LONGEST = 80  # characters; a longer part of a key is shown as a hash


@dataclass(frozen=True)
class GroupSample:
    """A member of a group: one turn, or all turns of a round (a joint action), and its return."""

    key: Hashable  # equal for samples of one group
    episode: Episode
    turns: tuple[Turn, ...]  # they share the advantage
    reward: float


def group_key(episode: Episode, turn: Turn, group_by: Sequence[GroupBy]) -> Key:
    """The key that all turns of a group share; `batch` puts all turns of a step into one group."""
    parts: dict[GroupBy, Part] = {
        "batch": 0,
        "task": episode.task.id,
        "role": turn.role,
        "policy": turn.policy,
        "opponents": tuple(sorted({other.policy for other in episode.turns} - {turn.policy})),
        "turn": turn.round,
        "prompt": turn.prompt_ids,
    }
    return tuple((key, parts[key]) for key in group_by)


def describe_key(key: Hashable) -> dict[str, str | int]:
    """A group key for display, by the name of each part. Long parts, such as prompts, become hashes."""
    pairs = (
        key if isinstance(key, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in key) else (("key", key),)
    )
    return {str(name): part if isinstance(part, int) else _short(part) for name, part in pairs}


def _short(part: Hashable) -> str:
    if isinstance(part, str):
        return part
    shown = "" if part is None else ", ".join(map(str, part)) if isinstance(part, tuple) else str(part)
    return shown if len(shown) <= LONGEST else "#" + hashlib.sha256(shown.encode()).hexdigest()[:12]


def group_index(keys: Sequence[Hashable]) -> list[int]:
    """Number the groups in order of first appearance: equal keys get equal numbers."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]
