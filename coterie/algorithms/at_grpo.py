"""AT-GRPO: tree sampling; every turn is compared with siblings sampled from the same state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from coterie.algorithms.grpo import Grpo
from coterie.limits import CountFromTwo
from coterie.rl.groups import GroupBy, GroupSample
from coterie.types import Episode, Fork, Turn


@dataclass(frozen=True, kw_only=True)
class AtGrpo(Grpo):
    """GRPO with tree sampling: siblings are sampled from the state before each turn and played to the end.
    For conversations, whose prompts differ from the second turn on; one episode per task is enough.
    Costs K·(siblings − 1) more episodes for one of K turns, each from its turn on. (AT-GRPO, arXiv 2510.11062)"""

    group_by: tuple[GroupBy, ...] = ("task", "role", "turn", "prompt")
    siblings: CountFromTwo = 4  # turns that are sampled from each state, the played one among them

    compares_forks: ClassVar[bool] = True
    not_in_advantage: ClassVar[frozenset[str]] = Grpo.not_in_advantage | {"siblings"}

    def forks(self, episodes: list[Episode], learning: Collection[str]) -> list[Fork]:
        """Siblings of every turn that is trained on; siblings' own later turns get none."""
        if any(episode.origin is not None for episode in episodes):
            return []
        return [fork for episode in episodes if episode.error is None for fork in self._siblings(episode, learning)]

    def _siblings(self, episode: Episode, learning: Collection[str]) -> Iterator[Fork]:
        for k, turn in enumerate(episode.turns):
            if not turn.trainable or turn.policy not in learning:
                continue
            before = {(earlier.role, earlier.round): earlier for earlier in episode.turns[:k]}
            for draw in range(1, self.siblings):
                yield Fork(episode, f"sibling of {turn.role} {turn.round}", before, draw)

    def samples(self, episodes: Sequence[Episode]) -> list[GroupSample]:
        """The turns of the original episodes, and of each fork the sibling that it was made for."""
        origins = {episode.id: episode for episode in episodes}
        return [
            sample
            for sample in super().samples(episodes)
            if sample.episode.origin is None
            or _is_sibling(sample.turns[0], sample.episode, origins[sample.episode.origin])
        ]


def _is_sibling(turn: Turn, fork: Episode, origin: Episode) -> bool:
    """True for the first turn of a fork after its replayed ones, if it has the role and round of its origin's."""
    place = sum(earlier.replayed for earlier in fork.turns)
    first = origin.turns[place] if place < len(origin.turns) else None
    return first is not None and (first.role, first.round) == (turn.role, turn.round)
