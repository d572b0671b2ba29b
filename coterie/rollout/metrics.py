"""Metrics of a step's episodes and of its turns by policy, and what happens to failed episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from coterie.envs.base import SCORE
from coterie.errors import UserError
from coterie.rewards import TIMEOUTS
from coterie.statistics import auc, mean, standard_error
from coterie.types import Episode, Learner, Metrics, Turn

WITH_ERRORS = {"accuracy", SCORE}  # metrics of an episode whose standard errors are logged


class TooManyFailures(UserError, RuntimeError):
    """More episodes of a step failed than rollout.max_failed allows."""


def drop_failed(episodes: list[Episode], max_failed: float) -> list[Episode]:
    """The episodes without an error; TooManyFailures if the share of failed ones exceeds `max_failed`."""
    failed = [episode for episode in episodes if episode.error is not None]
    if failed and len(failed) > max_failed * len(episodes):
        error = str(failed[0].error)
        separator = "\n" if "\n" in error else " "  # a traceback, or one line
        raise TooManyFailures(
            f"{count_failed(failed, len(episodes))}; rollout.max_failed allows {max_failed:.0%}. "
            f"The first was {failed[0].id}:{separator}{error}"
        )
    return [episode for episode in episodes if episode.error is None]


def count_failed(failed: Sequence[Episode], played: int) -> str:
    """`3 of 8 episodes failed (2 ValueError, 1 TimeoutError)`."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(e.error_kind for e in failed).most_common())
    return f"{len(failed)} of {played} episodes failed ({kinds})"


def describe_failures(failed: Sequence[Episode], played: int) -> str:
    """One line on failed episodes that are left out: how many, of which kinds, and the error of the first."""
    kind, lines = str(failed[0].error_kind), str(failed[0].error).splitlines()
    # The last line of a traceback begins with the error's class; the text of a user error does not.
    (cause,) = [line for line in lines if line.startswith(kind)][-1:] or lines[:1] or [kind]
    return f"{count_failed(failed, played)} and are left out; the first was {failed[0].id}: {cause}"


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
    metrics |= verifier_auc(played)
    for role in dict.fromkeys(turn.role for episode in played for turn in episode.turns):
        pairs = [(episode, turn) for episode in played for turn in episode.turns if turn.role == role]
        # The turn's own reward, else the team's. What credit assignment makes of both is `credit/…`.
        metrics[f"reward/{role}"] = mean([e.reward if turn.reward is None else turn.reward for e, turn in pairs])
        metrics |= api_costs(role, [turn for _, turn in pairs])
        metrics[f"tokens/{role}"] = mean([turn.tokens[1] for _, turn in pairs])
        metrics[f"truncated/{role}"] = mean([turn.stop == "length" for _, turn in pairs])
    return metrics | standard_errors(played)


class ByTask:
    """Values by metric and task, for the standard errors of their means, which are clustered by task."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[str, list[float]]] = {}

    def add(self, name: str, episode: Episode, value: float) -> None:
        self.numbers.setdefault(f"stderr/{name}", {}).setdefault(episode.task.id, []).append(value)

    def errors(self) -> Metrics:
        found = {name: standard_error(list(by_task.values())) for name, by_task in self.numbers.items()}
        return {name: error for name, error in sorted(found.items()) if error is not None}


def standard_errors(episodes: Sequence[Episode]) -> Metrics:
    """The standard errors of the means over episodes, and over the turns of each role."""
    by_task = ByTask()
    for episode in episodes:
        by_task.add("reward", episode, episode.reward)
        for name in episode.metrics.keys() & WITH_ERRORS:
            by_task.add(name, episode, episode.metrics[name])
        for turn in episode.turns:
            by_task.add(f"reward/{turn.role}", episode, episode.reward if turn.reward is None else turn.reward)
            by_task.add(f"tokens/{turn.role}", episode, turn.tokens[1])
    return by_task.errors()


def api_costs(role: str, turns: Sequence[Turn]) -> Metrics:
    """The tokens that a role's remote endpoint read and sampled in this step; replayed turns cost nothing."""
    counted = [turn.api_tokens for turn in turns if turn.api_tokens is not None and not turn.replayed]
    if not counted:
        return {}
    total_in, total_out = (float(sum(tokens)) for tokens in zip(*counted, strict=True))
    return {f"api_tokens_in/{role}": total_in, f"api_tokens_out/{role}": total_out}


def verifier_auc(episodes: Sequence[Episode]) -> Metrics:
    """The ROC AUC of a verifier's scores for right against wrong answers, where answers have labels.

    Over all answers, and as the mean over the tasks that have both kinds: the first is also high for a verifier that
    only knows how hard a task is.
    """
    by_task: dict[str, list[tuple[float, bool]]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).extend(_scored(episode))
    pairs = [pair for task in by_task.values() for pair in task]
    within = [value for task in by_task.values() if (value := _auc(task)) is not None]
    metrics = {"verifier/auc": _auc(pairs), "verifier/auc_within_task": mean(within) if within else None}
    return {name: value for name, value in metrics.items() if value is not None}


def _scored(episode: Episode) -> list[tuple[float, bool]]:
    """Score and label of each turn that has both, else of the team's answer."""
    pairs = [(t.score, t.correct) for t in episode.turns if t.score is not None and t.correct is not None]
    if not pairs and SCORE in episode.metrics and episode.correct is not None:
        return [(episode.metrics[SCORE], episode.correct)]
    return pairs


def _auc(pairs: Sequence[tuple[float, bool]]) -> float | None:
    return auc([score for score, _ in pairs], [label for _, label in pairs])


def turn_metrics(episodes: Sequence[Episode], learners: Mapping[str, Learner]) -> Metrics:
    """Length, truncated share and advantages of every policy that trains and has turns, after credit assignment."""
    by_policy: dict[str, list[Turn]] = {policy: [] for policy, learner in learners.items() if not learner.frozen}
    by_task = ByTask()
    for episode in episodes:
        for turn in (turn for turn in episode.turns if turn.trainable and turn.policy in by_policy):
            by_policy[turn.policy].append(turn)
            by_task.add(f"{turn.policy}/response_length", episode, len(turn.response_ids))
    found = {policy: _lengths(turns) | _advantages(turns) for policy, turns in by_policy.items()}
    named = {f"{policy}/{name}": value for policy, metrics in found.items() for name, value in metrics.items()}
    return named | by_task.errors()


def _lengths(turns: Sequence[Turn]) -> Metrics:
    """Mean length in tokens, and the share of truncated turns."""
    if not turns:
        return {}
    lengths, truncated = sum(len(turn.response_ids) for turn in turns), sum(turn.stop == "length" for turn in turns)
    return {"response_length": lengths / len(turns), "truncated": truncated / len(turns)}


def _advantages(turns: Sequence[Turn]) -> Metrics:
    """Over all tokens that are trained on."""
    known = [turn.advantages for turn in turns if turn.advantages is not None and len(turn.advantages)]
    if not known:
        return {}
    tokens = torch.cat(known).double()
    return {"advantage_mean": float(tokens.mean()), "advantage_std": float(tokens.std(unbiased=False))}
