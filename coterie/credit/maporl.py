"""MaPoRL: a turn earns its score and those that follow, and what it did to minds, its own and others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coterie.credit.base import Credit, need_own, rounds_of
from coterie.credit.replies import has_box, repeated
from coterie.limits import CountFromZero, NotNegative, Share
from coterie.rl.credit import Among, Horizon, Rounds, mean, persuasion, revision, score_over_turns
from coterie.types import Episode, Metrics, Turn


@dataclass(frozen=True, kw_only=True)
class Maporl(Credit):
    """Scores over turns, with incentives to persuade and to be persuaded (MaPoRL, arXiv 2502.18439).

    Scores are the turns' own rewards, in [0, 1]; above 0.5 a turn is right, and peers are when more than half of them
    are. What a turn earns looks ahead, so `algorithm.gamma_turn` must be 0. The episode's own reward is left aside.
    """

    gamma: Share = 0.3  # what the next turn's score counts, with `horizon: discounted`
    horizon: Horizon = "discounted"  # the turn's score and all later ones, the last round's, or this round's
    # Whether scores are the mean over the roles, or the role's own; `discounted` takes the turn's own score either way.
    share: Among = "all"
    alpha0: float = 0.0  # for joining the peers: + among the right, − among the wrong
    alpha1: float = 0.0  # for leaving them: + the wrong ones, − the right ones
    alpha2: float = 0.0  # for peers who change their mind against what the role said: + to right, − to wrong
    alpha3: float = 0.0  # for peers who change it to what the role said
    penalty: NotNegative = 0.0  # what a reply loses that breaks one of the rules below
    min_words: CountFromZero = 0
    max_repeated: Share = 1.0  # of its runs of four words, how many may have been there before
    boxed: bool = False  # whether an answer must stand in \\boxed{}

    @property
    def looks_ahead(self) -> bool:
        return True

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        set_by_hand = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        if self.horizon != "discounted" and "gamma" in set_by_hand:
            yield "credit.gamma", f"has no effect with horizon: {self.horizon}"
        if len(config.roles) < 2 and "share" in set_by_hand:
            yield "credit.share", "has no effect: there is one role, whose scores are the team's"
        rules = [rule for rule in ("min_words", "max_repeated", "boxed") if rule in set_by_hand]
        if self.penalty and not rules:
            yield "credit.penalty", "has no effect without a rule: min_words, max_repeated or boxed"
        for rule in rules if not self.penalty else ():
            yield f"credit.{rule}", "has no effect while credit.penalty is 0"

    def earn(self, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode], once: bool) -> Metrics:
        need_own(episodes, self._name)
        penalised = []
        for episode in episodes:
            rounds = rounds_of(episode)
            for turn in episode.turns:
                penalised.append(float(self._is_bad(turn.text)))
                turn.credit = self._score(rounds, turn) + self._incentive(rounds, turn) - self.penalty * penalised[-1]
        return {"penalised": mean(penalised)} if self.penalty and penalised else {}

    def _score(self, rounds: Rounds, turn: Turn) -> float:
        return score_over_turns(rounds, turn.round, turn.role, self.gamma, self.horizon, self.share)

    def _incentive(self, rounds: Rounds, turn: Turn) -> float:
        revised = revision(rounds, turn.round, turn.role, leaving=self.alpha1, joining=self.alpha0)
        return revised + persuasion(rounds, turn.round, turn.role, following=self.alpha3, opposing=self.alpha2)

    def _is_bad(self, text: str) -> bool:
        short = len(text.split()) < self.min_words
        return short or repeated(text) > self.max_repeated or (self.boxed and not has_box(text))
