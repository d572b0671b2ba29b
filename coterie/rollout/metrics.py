"""Metrics of a step's episodes, and what happens to failed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coterie.errors import UserError
from coterie.rewards import TIMEOUTS
from coterie.statistics import mean
from coterie.types import Episode, Metrics


class TooManyFailures(UserError, RuntimeError):
    """More episodes of a step failed than rollout.max_failed allows."""


def drop_failed(episodes: list[Episode], max_failed: float) -> list[Episode]:
    """The episodes without an error; TooManyFailures if the share of failed ones exceeds `max_failed`."""
    failed = [episode for episode in episodes if episode.error is not None]
    if failed and len(failed) > max_failed * len(episodes):
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(e.error_kind for e in failed).most_common())
        raise TooManyFailures(
            f"{len(failed)} of {len(episodes)} episodes failed ({kinds}); rollout.max_failed allows "
            f"{max_failed:.0%}. The first was {failed[0].id}:\n{failed[0].error}"
        )
    return [episode for episode in episodes if episode.error is None]


def rollout_metrics(episodes: Sequence[Episode]) -> Metrics:
    """Mean rewards, response lengths, truncation and failures of a step, in total and per role."""
    played = [episode for episode in episodes if episode.error is None]
    metrics: Metrics = {"failed": float(len(episodes) - len(played))}
    for kind, count in Counter(e.error_kind for e in episodes if e.error is not None).items():
        metrics[f"failed/{kind}"] = float(count)
    timeouts = [episode.metrics[TIMEOUTS] for episode in episodes if TIMEOUTS in episode.metrics]
    if timeouts:
        metrics[TIMEOUTS] = mean(timeouts)  # over failed episodes too: a killed grader usually fails its episode
    if not played:
        return metrics
    metrics["reward"] = mean([episode.reward for episode in played])
    for name in sorted({name for episode in played for name in episode.metrics} - {TIMEOUTS}):
        metrics[name] = mean([episode.metrics[name] for episode in played if name in episode.metrics])
    for role in dict.fromkeys(turn.role for episode in played for turn in episode.turns):
        pairs = [(episode, turn) for episode in played for turn in episode.turns if turn.role == role]
        # The turn's own reward, else the team's. What credit assignment makes of both is `credit/…`.
        metrics[f"reward/{role}"] = mean([e.reward if turn.reward is None else turn.reward for e, turn in pairs])
        metrics[f"tokens/{role}"] = mean([len(turn.response_ids) for _, turn in pairs])
        metrics[f"truncated/{role}"] = mean([turn.stop == "length" for _, turn in pairs])
    return metrics
