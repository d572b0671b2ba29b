"""What each turn earned, out of the team's reward and the turns' own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.types import Episode, Fork, Metrics, Turn


@dataclass(frozen=True, kw_only=True)
class Credit:
    """A way to share rewards. The fields are the options in the config."""

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Options that do not fit the rest of the config, as (dotted key, what is wrong)."""
        yield from ()

    def forks(self, episodes: Sequence[Episode]) -> list[Fork]:
        """What would have happened otherwise: episodes to play again for comparison."""
        return []

    def assign(self, episodes: Sequence[Episode], otherwise: Mapping[str, Episode], once: bool) -> Metrics:
        """Write `turn.earned` of every turn.

        `otherwise` holds the forks that were played, by id. `once`: rewards flow back along the whole team's turns,
        so what the team earned must stand at its last turn alone and not at every role's.
        """
        raise NotImplementedError


def last_turns(episode: Episode, once: bool = False) -> list[Turn]:
    """Each role's own last turn, or only the team's."""
    by_role = {"" if once else turn.role: turn for turn in episode.turns}
    return list(by_role.values())


def own(turn: Turn) -> float:
    """What the turn was given itself."""
    return 0.0 if turn.reward is None else turn.reward
