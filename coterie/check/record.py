"""The record of a dry run, and its findings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coterie.credit.base import Credit
from coterie.types import Episode, Metrics, Turn


@dataclass(frozen=True)
class Gap:
    """How far the learner's log-probs are from the sampler's, in nats."""

    mean: float
    max: float


@dataclass(frozen=True)
class ReferenceProbe:
    """A task's reference answer, in the format with the highest reward."""

    text: str  # the reply of every role
    episode: Episode  # its `answer` is what the workflow returned to the grader
    direct_reward: float  # its reward when graded directly


@dataclass(frozen=True)
class Probe:
    """A task played with a deliberately broken answer."""

    kind: str  # the broken reply, and whose it is
    episode: Episode
    whole: bool  # True: the reply of all roles; False: of one, the others gave the reference


@dataclass(frozen=True)
class DryRun:
    """A few episodes of the first step, with credit but without an update; then the probes."""

    episodes: Sequence[Episode]
    roles: Collection[str]
    trained: frozenset[str]  # policies
    credit: Metrics = field(default_factory=dict)
    group_sizes: Sequence[int] = ()  # empty if the algorithm has no groups
    gaps: Mapping[str, Gap] = field(default_factory=dict)  # by policy
    dialogue: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)  # by role: prompt, reply, stop
    tokens_per_step: float = 0.0
    seconds_per_step: float = 0.0
    references: Sequence[ReferenceProbe] = ()  # for tasks with a reference answer
    probes: Sequence[Probe] = ()
    graded: bool = True  # True: by the config's reward; False: the environment scores itself
    rule: Credit = field(default_factory=Credit)  # the credit of the config
    echoes: Mapping[str, float] = field(default_factory=dict)  # by role: the share of its reply that repeats the prompt
    verdicts: Mapping[str, Sequence[bool | None]] = field(default_factory=dict)  # of judging roles; None: unreadable
    waiting: Collection[str] = ()  # trained policies that `rotate` does not reach before the run ends

    @property
    def played(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.error is None]

    @property
    def turns(self) -> dict[str, list[Turn]]:
        """By role, of the roles that took turns."""
        turns = [turn for episode in self.played for turn in episode.turns]
        roles = dict.fromkeys(turn.role for turn in turns)
        return {role: [turn for turn in turns if turn.role == role] for role in roles}

    @property
    def rewards(self) -> dict[str, list[float]]:
        """The team's rewards, one per episode; then each role's, one per turn."""
        return {"team": [episode.reward for episode in self.played]} | {
            f"· {role}": rewards for role, rewards in self.by_role(self.played).items()
        }

    def by_role(self, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        """The rewards of each role's turns, as the config's credit counts them."""
        rewards: dict[str, list[float]] = {}
        for episode in episodes:
            for turn in episode.turns:
                rewards.setdefault(turn.role, []).append(self.rule.turn_reward(episode, turn))
        return rewards

    @property
    def everything(self) -> list[Episode]:
        """All episodes, sampled or probes, failed or not."""
        probes = [one.episode for one in self.references] + [one.episode for one in self.probes]
        return [*self.episodes, *probes]

    @property
    def tried(self) -> list[Episode]:
        """All episodes, sampled or probes, that did not fail."""
        return [episode for episode in self.everything if episode.error is None]

    @property
    def learning(self) -> list[str]:
        """Roles that took turns and have a trained policy."""
        return [role for role, turns in self.turns.items() if any(turn.policy in self.trained for turn in turns)]


@dataclass(frozen=True)
class Finding:
    """A problem to fix before training. With an error, training would learn nothing."""

    level: Literal["error", "warning"]
    text: str


def brief(value: object, most: int = 60) -> str:
    """A value, shortened for a message."""
    text = value if isinstance(value, str) else repr(value)
    return repr(text if len(text) <= most else f"{text[:most]}…")
