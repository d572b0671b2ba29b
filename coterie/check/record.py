"""What a dry run has seen, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coterie.types import Episode, Metrics, Turn


@dataclass(frozen=True)
class Gap:
    """How far the learner's log-probs are from the sampler's, in nats."""

    mean: float
    max: float


@dataclass(frozen=True)
class Gold:
    """A task's reference answer, said in the way in which it earned most."""

    text: str  # what everyone said
    episode: Episode  # its `answer` is what the workflow passed on to the grader
    alone: float  # what the grader gives for it without the workflow between


@dataclass(frozen=True)
class Probe:
    """A task played with an answer that is broken on purpose."""

    kind: str  # what was said, and by whom
    episode: Episode
    whole: bool  # whether everyone said it; else one role, and the others the reference


@dataclass(frozen=True)
class DryRun:
    """A few episodes of the first step, judged but not learned from; then gold and broken answers."""

    episodes: Sequence[Episode]
    roles: Collection[str]
    trained: frozenset[str]  # policies
    credit: Metrics = field(default_factory=dict)
    group_sizes: Sequence[int] = ()  # none where the algorithm has no groups
    gaps: Mapping[str, Gap] = field(default_factory=dict)  # by policy
    dialogue: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)  # by role: read, said, stop
    tokens_per_step: float = 0.0
    seconds_per_step: float = 0.0
    golds: Sequence[Gold] = ()  # of tasks that have a reference answer
    probes: Sequence[Probe] = ()
    graded: bool = True  # by a reward that compares with the reference; else the environment scores as it likes
    own: bool = False  # whether roles learn from what turns were given alone, without the team's reward
    echoes: Mapping[str, float] = field(default_factory=dict)  # by role: the share of its words that it had read
    verdicts: Mapping[str, Sequence[bool | None]] = field(default_factory=dict)  # of roles that judge; None: unreadable
    waiting: Collection[str] = ()  # trained policies whose turn does not come before the run ends

    @property
    def played(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.error is None]

    @property
    def turns(self) -> dict[str, list[Turn]]:
        """By role, of those that spoke."""
        said = [turn for episode in self.played for turn in episode.turns]
        return {
            role: [turn for turn in said if turn.role == role] for role in dict.fromkeys(turn.role for turn in said)
        }

    @property
    def rewards(self) -> dict[str, list[float]]:
        """The team's, one an episode; then each role's, one a turn."""
        return {"team": [episode.reward for episode in self.played]} | {
            f"· {role}": rewards for role, rewards in self.by_role(self.played).items()
        }

    def by_role(self, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        """What each turn was worth to its role: its own reward, and the team's where that counts."""
        earned: dict[str, list[float]] = {}
        for episode in episodes:
            for turn in episode.turns:
                team = 0.0 if self.own else episode.reward
                earned.setdefault(turn.role, []).append(team + (turn.reward or 0.0))
        return earned

    @property
    def everything(self) -> list[Episode]:
        """What was played by the models or with words put into their mouths, failed or not."""
        return [*self.episodes, *(gold.episode for gold in self.golds), *(probe.episode for probe in self.probes)]

    @property
    def tried(self) -> list[Episode]:
        """Of all that, what was played to its end."""
        return [episode for episode in self.everything if episode.error is None]

    @property
    def learning(self) -> list[str]:
        """Roles that spoke and are trained."""
        return [role for role, turns in self.turns.items() if any(turn.policy in self.trained for turn in turns)]


@dataclass(frozen=True)
class Finding:
    """Something to know before time is spent. With an error, training would teach nothing."""

    level: Literal["error", "warning"]
    text: str


def brief(value: object, most: int = 60) -> str:
    """A value on a part of a line."""
    text = value if isinstance(value, str) else repr(value)
    return repr(text if len(text) <= most else f"{text[:most]}…")
