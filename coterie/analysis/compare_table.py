"""The table of a comparison: a row per arm, with the paired difference to one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.errors import UserError
from coterie.statistics import Paired, bootstrap_interval, mean, paired

Row = dict[str, str | float | int]  # cells by column


@dataclass(frozen=True)
class Result:
    """The result of an arm."""

    scores: Mapping[str, float]  # by task: the share of its episodes that were correct
    metrics: Mapping[str, float]
    trained_tokens: int  # sampled in training


def mean_of(results: Sequence[Result]) -> Result:
    """The result of an arm over several seeds: means by task."""
    scores = {task: mean([one.scores[task] for one in results]) for task in results[0].scores}
    metrics = {name: mean([one.metrics[name] for one in results]) for name in ("tokens", "prompt_tokens")}
    return Result(scores, metrics, round(mean([one.trained_tokens for one in results])))


class OtherTasks(UserError):
    """Arms that cannot be compared task by task."""


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


def rows_of(results: Mapping[str, Result], against: str) -> Iterator[Row]:
    """One row per arm: its accuracy, its tokens, and the paired difference to the arm `against`."""
    base = results[against]
    for name, result in results.items():
        scores = [result.scores[task] for task in base.scores]
        low, high = bootstrap_interval(scores)
        row: Row = {
            "arm": name,
            "accuracy": f"{sum(scores) / len(scores):.3f} ({low:.3f}–{high:.3f})",
            "sampled / task": round(result.metrics["tokens"]),
            "prompt / task": round(result.metrics["prompt_tokens"]),
            "sampled in training": result.trained_tokens,
        }
        yield row if name == against else row | _difference(against, paired(list(base.scores.values()), scores))


def _difference(against: str, found: Paired) -> Row:
    interval = f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    return {f"{against} − arm": interval, "differ": f"{found.discordant:.0%}", "p": f"{found.p:.2g}"}


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
