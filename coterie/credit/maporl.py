"""MaPoRL credit: scores over later turns, incentives to revise and to influence answers, penalties for bad replies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coterie.credit.base import Credit, require_own_rewards, rewards_by_round, set_credit
from coterie.limits import CountFromZero, NotNegative, Share
from coterie.rl.credit import Horizon, Rounds, ScoreShare, influence_incentive, revision_incentive, score_over_turns
from coterie.statistics import mean
from coterie.types import Counterfactuals, Episode, Metrics, Turn

RUN = 4  # words
BOX = re.compile(r"\\boxed\s*\{\s*[^\s}]")


@dataclass(frozen=True, kw_only=True)
class Maporl(Credit):
    """Scores over turns, with incentives to influence others and to revise one's answer (MaPoRL, arXiv 2502.18439).

    Scores are the turns' own rewards, in [0, 1]. A turn above 0.5 is right; the peers are right if more than half of
    them are. Credit includes later scores, so `algorithm.gamma_turn` must be 0. The episode's reward is not used.
    """

    gamma: Share = 0.3  # discount from a round to the next, with `horizon: discounted`
    horizon: Horizon = "discounted"  # this round's score and all later ones, the last round's, or this round's
    # The score of a round: the mean over the roles, or the role's own; `discounted` always starts with the turn's own.
    share: ScoreShare = "all"
    alpha0: float = 0.0  # for joining the peers: + if they are right, − if wrong
    alpha1: float = 0.0  # for leaving the peers: + if they are wrong, − if right
    alpha2: float = 0.0  # for peers who change against the role's answer: + to right, − to wrong
    alpha3: float = 0.0  # for peers who change to the role's answer: + to right, − to wrong
    penalty: NotNegative = 0.0  # subtracted from a reply that breaks one of the rules below
    min_words: CountFromZero = 0  # rule: a reply has at least so many words
    max_repeated: Share = 1.0  # rule: at most this share of a reply's four-word runs are repetitions
    boxed: bool = False  # rule: a reply has an answer in \boxed{}

    @property
    def includes_later_rewards(self) -> bool:
        return True

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        changed = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        if self.horizon != "discounted" and "gamma" in changed:
            yield "credit.gamma", f"has no effect with horizon: {self.horizon}"
        if len(config.roles) < 2 and "share" in changed:
            yield "credit.share", "has no effect: there is one role, whose scores are the team's"
        rules = [rule for rule in ("min_words", "max_repeated", "boxed") if rule in changed]
        if self.penalty and not rules:
            yield "credit.penalty", "has no effect without a rule: min_words, max_repeated or boxed"
        for rule in rules if not self.penalty else ():
            yield f"credit.{rule}", "has no effect while credit.penalty is 0"

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        require_own_rewards(episodes, self._name)
        penalised = []
        for episode in episodes:
            rounds = rewards_by_round(episode)
            for turn in episode.turns:
                penalised.append(float(self._breaks_a_rule(turn.text)))
                score, incentive = self._score(rounds, turn), self._incentive(rounds, turn)
                set_credit(turn, score=score, incentive=incentive, penalty=-self.penalty * penalised[-1])
        return {"penalised": mean(penalised)} if self.penalty and penalised else {}

    def _score(self, rounds: Rounds, turn: Turn) -> float:
        return score_over_turns(rounds, turn.round, turn.role, self.gamma, self.horizon, self.share)

    def _incentive(self, rounds: Rounds, turn: Turn) -> float:
        revised = revision_incentive(rounds, turn.round, turn.role, leaving=self.alpha1, joining=self.alpha0)
        return revised + influence_incentive(rounds, turn.round, turn.role, following=self.alpha3, opposing=self.alpha2)

    def _breaks_a_rule(self, text: str) -> bool:
        short = len(text.split()) < self.min_words
        return short or repeated_share(text) > self.max_repeated or (self.boxed and not has_box(text))


def repeated_share(text: str) -> float:
    """The share of four-word runs that occurred before in the text: "a b c d a b c d" has five runs, one repeated."""
    words = text.split()
    runs = [tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def has_box(text: str) -> bool:
    """True if the text has a non-empty `\\boxed{}`."""
    return BOX.search(text) is not None
