"""What a dry run says about the training to come: rewards that teach nothing, cut turns, failed episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coterie.config.problems import dotted
from coterie.rollout import mean
from coterie.types import Episode, Metrics, Turn

NO_CREDIT = 1e-6  # an advantage below this moves nothing
WIDE_GAP = 1e-2  # nats; bfloat16 stays below it, another prompt or adapter does not


@dataclass(frozen=True)
class Gap:
    """How far the learner's log-probs are from the sampler's, in nats."""

    mean: float
    max: float


@dataclass(frozen=True)
class DryRun:
    """A few episodes of the first step, judged but not learned from."""

    episodes: Sequence[Episode]
    roles: Collection[str]
    trained: frozenset[str]  # policies
    credit: Metrics = field(default_factory=dict)
    group_sizes: Sequence[int] = ()  # none where the algorithm has no groups
    gaps: Mapping[str, Gap] = field(default_factory=dict)  # by policy
    dialogue: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)  # by role: read, said, stop
    tokens_per_step: float = 0.0
    seconds_per_step: float = 0.0

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
        """The team's, one an episode; then each role's, one a turn: the team's and the turn's own."""
        earned: dict[str, list[float]] = {"team": [episode.reward for episode in self.played]}
        for episode in self.played:
            for turn in episode.turns:
                earned.setdefault(f"· {turn.role}", []).append(episode.reward + (turn.reward or 0.0))
        return earned


@dataclass(frozen=True)
class Finding:
    """Something to know before time is spent. With an error, training would teach nothing."""

    level: Literal["error", "warning"]
    text: str


Found = Iterator[Finding]


def findings(dry: DryRun) -> list[Finding]:
    """Everything that is wrong with what was played."""
    rules = (_silence, _rewards, _credit, _cuts, _empties, _groups, _gaps) if dry.played else ()
    return [*_failures(dry), *(finding for rule in rules for finding in rule(dry))]


def _failures(dry: DryRun) -> Found:
    failed = [episode for episode in dry.episodes if episode.error is not None]
    if failed:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(e.error_kind for e in failed).most_common())
        counted = f"{len(failed)} of {len(dry.episodes)} episodes failed ({kinds})"
        level: Literal["error", "warning"] = "warning" if dry.played else "error"
        yield Finding(level, f"{counted}. The first was {failed[0].id}:\n{failed[0].error}")


def _silence(dry: DryRun) -> Found:
    for role in dry.roles:
        if role not in dry.turns:
            yield Finding("warning", f"{role} never spoke: the workflow did not ask it in {len(dry.played)} episodes")


def _rewards(dry: DryRun) -> Found:
    """Where all earn the same, nothing can be learned from it."""
    constant = {who: rewards[0] for who, rewards in dry.rewards.items() if len(rewards) > 1 and len(set(rewards)) == 1}
    if len(constant) == len(dry.rewards):
        reward = constant["team"]
        yield Finding("warning", f"every episode earned {reward:g}; see above what was answered, then look at `reward`")
        return
    for who, reward in constant.items():
        yield Finding("warning", f"the reward of {who.removeprefix('· ')} is constant: always {reward:g}")


def _credit(dry: DryRun) -> Found:
    """A reward teaches only what it reaches: sampled tokens, of a trained policy, with an advantage."""
    trained = [role for role, turns in dry.turns.items() if any(turn.policy in dry.trained for turn in turns)]
    reached = [role for role in trained if any(has_credit(turn) for turn in dry.turns[role])]
    if not reached:
        yield Finding("error", "no reward reaches a trained token: every advantage is zero or was never given")
        return
    for role in trained:
        if role not in reached:
            yield Finding("warning", f"no reward reaches {role}: all its tokens have an advantage of zero, or none")


def has_credit(turn: Turn) -> bool:
    """Whether an update would make any of the turn's tokens likelier or less likely."""
    return turn.advantages is not None and bool((turn.advantages.abs() > NO_CREDIT).any())


def _cuts(dry: DryRun) -> Found:
    for role, turns in dry.turns.items():
        cut = mean([turn.stop == "length" for turn in turns])
        if cut >= 0.5:
            key = dotted(("roles", role, "max_tokens"))
            yield Finding("warning", f"{cut:.0%} of {role}'s turns are cut off; raise {key}, or ask for less")


def _empties(dry: DryRun) -> Found:
    for role, turns in dry.turns.items():
        empty = sum(not turn.text.strip() for turn in turns)
        if empty:
            yield Finding("warning", f"{empty} of {len(turns)} turns of {role} are empty")


def _groups(dry: DryRun) -> Found:
    count, alone = len(dry.group_sizes), sum(size == 1 for size in dry.group_sizes)
    if alone:
        lone = "have one member, which gets no credit; see algorithm.peers"
        yield Finding("warning", f"{alone} of {count} groups {lone}")
    constant = int(dry.credit["groups/constant"]) - alone if count else 0
    if count / 2 < constant < count:  # where all are, no reward reaches anyone, and that is said already
        more = "more episodes_per_task, or tasks that the team sometimes solves, give more to learn from"
        yield Finding("warning", f"in {constant} of {count} groups all earned the same; {more}")


def _gaps(dry: DryRun) -> Found:
    for policy, gap in dry.gaps.items():
        if gap.mean > WIDE_GAP:
            yield Finding("warning", f"{policy}: sampler and learner disagree by {gap.mean:.2g} nats a token")
