"""AT-GRPO: every turn is compared with siblings that were sampled from the very same state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from coterie.algorithms.grpo import Grpo
from coterie.rl.groups import Peer, Sample
from coterie.types import Episode, Fork


@dataclass(frozen=True, kw_only=True)
class AtGrpo(Grpo):
    """GRPO by tree sampling: from the state before each turn of an episode, siblings are said and played to the end.
    For conversations of several roles and rounds, where prompts differ from the second turn on and GRPO would
    compare answers to different questions. One episode per task is enough.
    Costs 1 + K·(siblings − 1) episodes for one of K turns, the later ones in part; of a sibling's episode only the
    sibling itself is trained on. (AT-GRPO, arXiv 2510.11062)"""

    peers: tuple[Peer, ...] = ("task", "role", "turn", "prompt")
    siblings: Annotated[int, Field(ge=2)] = 4  # turns that are sampled from each state, the played one among them

    forked: ClassVar[bool] = True

    def forks(self, episodes: list[Episode]) -> list[Fork]:
        """One wave: siblings of every turn that was played, and none of the siblings' own later turns."""
        if any(episode.origin is not None for episode in episodes):
            return []
        return [fork for episode in episodes if episode.error is None for fork in self._siblings(episode)]

    def _siblings(self, episode: Episode) -> Iterator[Fork]:
        for k, turn in enumerate(episode.turns):
            before = {(said.role, said.round): said for said in episode.turns[:k]}
            for draw in range(1, self.siblings):
                yield Fork(episode, f"sibling of {turn.role} {turn.round}", before, draw)

    def samples(self, episodes: Sequence[Episode]) -> list[Sample]:
        """The turns of the episodes that were forked, and of each fork the one that it was made for."""
        origins = {episode.id: episode for episode in episodes}
        found = []
        for sample in super().samples(episodes):
            episode, turn = sample.episode, sample.turns[0]
            if episode.origin is not None:
                # All that was asked before it is given, so it has its place by their number.
                place = sum(said.given for said in episode.turns)
                first = origins[episode.origin].turns[place]
                if (first.role, first.round) != (turn.role, turn.round):
                    continue
            found.append(sample)
        return found
