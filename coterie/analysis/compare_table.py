"""The table of a comparison: a row per arm, with the paired difference to one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy

from coterie.errors import UserError
from coterie.statistics import Paired, bootstrap_interval, compared_over_seeds, mean, paired, sign_flip_test

Row = dict[str, str | float | int]  # cells by column


@dataclass(frozen=True)
class Result:
    """The result of an arm."""

    scores: Mapping[str, float]  # by task: the share of its episodes that were correct, or their mean reward
    metrics: Mapping[str, float]
    trained_tokens: int  # sampled in training


@dataclass(frozen=True)
class Interval:
    """A difference of two arms with its 95 % interval."""

    center: float
    low: float
    high: float


class OtherTasks(UserError):
    """Arms that were evaluated on different tasks: paired tests need the same ones."""


def require_same_tasks(results: Mapping[str, Result], against: str) -> None:
    """Reject arms that were evaluated on other tasks than the one that they are compared with."""
    base = results[against].scores
    for name, result in results.items():
        if result.scores.keys() != base.keys():
            shared = len(result.scores.keys() & base.keys())
            raise OtherTasks(
                f"arm {name} was evaluated on {len(result.scores)} tasks, {against} on {len(base)}, of which {shared} "
                "are the same; all arms need the same eval.tasks and env"
            )


def rows_of(results: Mapping[str, Result], against: str, score: str = "accuracy") -> Iterator[Row]:
    """One row per arm: its score, its tokens, and the paired difference to the arm `against`."""
    base = results[against]
    for name, result in results.items():
        scores = [result.scores[task] for task in base.scores]
        low, high = bootstrap_interval(scores)
        row: Row = {
            "arm": name,
            score: f"{sum(scores) / len(scores):.3f} ({low:.3f}–{high:.3f})",
            "sampled / task": round(result.metrics["tokens"]),
            "prompt / task": round(result.metrics["prompt_tokens"]),
            "sampled in training": result.trained_tokens,
        }
        yield row if name == against else row | _difference(against, paired(list(base.scores.values()), scores))


def _difference(against: str, found: Paired) -> Row:
    interval = f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    return {f"{against} − arm": interval, "differ": f"{found.discordant:.0%}", "p": f"{found.p:.2g}"}


def rows_over_seeds(found: Sequence[Mapping[str, Result]], against: str, score: str = "accuracy") -> Iterator[Row]:
    """One row per arm that was evaluated with every seed: `found` has the results of each seed by arm.

    Intervals are over seeds and tasks. One p-value, over tasks, is for these trained runs; the other, over seeds and
    tasks, for new runs of the same training on new tasks.
    """
    tasks = list(found[0][against].scores)
    base = _by_seed_and_task([one[against] for one in found], tasks)
    for name in [name for name in found[0] if all(name in one for one in found)]:
        results = [one[name] for one in found]
        scores = _by_seed_and_task(results, tasks)
        low, high = bootstrap_interval(scores)
        row: Row = {
            "arm": name,
            "by seed": ", ".join(f"{one:.3f}" for one in scores.mean(1)),
            score: f"{scores.mean():.3f} ({low:.3f}–{high:.3f})",
            "sampled / task": round(mean([one.metrics["tokens"] for one in results])),
            "prompt / task": round(mean([one.metrics["prompt_tokens"] for one in results])),
            "sampled in training": round(mean([one.trained_tokens for one in results])),
        }
        yield row if name == against else row | _difference_over_seeds(against, base - scores)


def differences(found: Sequence[Mapping[str, Result]], against: str) -> dict[str, Interval]:
    """The arm `against` minus each other arm that was evaluated with every seed, with the interval of the table."""
    tasks = list(found[0][against].scores)
    base = _by_seed_and_task([one[against] for one in found], tasks)
    others = [name for name in found[0] if name != against and all(name in one for one in found)]
    return {name: _interval(base - _by_seed_and_task([one[name] for one in found], tasks)) for name in others}


def _interval(differences: numpy.ndarray) -> Interval:
    """The mean of [seeds, tasks] differences, for new seeds and tasks; of one seed, for new tasks."""
    found = compared_over_seeds(differences)
    low, high = bootstrap_interval(differences) if found is None else (found.low, found.high)
    return Interval(float(differences.mean()), low, high)


def _by_seed_and_task(results: Sequence[Result], tasks: Sequence[str]) -> numpy.ndarray:
    return numpy.array([[one.scores[task] for task in tasks] for one in results])


def _difference_over_seeds(against: str, differences: numpy.ndarray) -> Row:
    """`differences`: [seeds, tasks]."""
    found, interval = compared_over_seeds(differences), _interval(differences)
    return {
        f"{against} − arm": f"{interval.center:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})",
        f"{against} − arm by seed": ", ".join(f"{one:+.3f}" for one in differences.mean(1)),
        "p, these runs": f"{sign_flip_test(differences.mean(0)):.2g}",
        "p, new runs": "" if found is None else f"{found.p:.2g}",
    }


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
