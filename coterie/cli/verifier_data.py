"""`coterie verifier generate` and `balance`: load the team, show the progress and what came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coterie.cli.commands import team_config
from coterie.console import progress, show, table
from coterie.statistics import mean
from coterie.training import checkpoint
from coterie.training.loop import Run
from coterie.verifier.answers import Answer
from coterie.verifier.generate import Plan, Report, make_plan
from coterie.verifier.generate import generate as sample_answers


def generate(
    what: Path,
    changes: Sequence[str],
    which: str | None,
    out: Path,
    episodes: int,
    tasks: int | None,
    policies: Sequence[str],
    temperatures: Sequence[float],
) -> None:
    """Sample labelled answers into a file, and show how many are right."""
    run = load_team(what, changes, which)
    plan = make_plan(run, tasks, episodes, policies, temperatures, checkpoint=saved_name(what, which))
    with showing(plan) as report:
        answers = sample_answers(run, plan, out, report)
    show([table(str(out), list(_by_policy(answers)))])


def load_team(what: Path, changes: Sequence[str], which: str | None) -> Run:
    config = team_config(what, changes, which)
    from coterie.cli import run

    return run.load_team(config, what, which)


def saved_name(what: Path, which: str | None) -> str | None:
    """The checkpoint that plays; None for a config."""
    return str(checkpoint.find(what, which or "latest").resolve()) if what.is_dir() else None


@contextmanager
def showing(plan: Plan) -> Iterator[Report]:
    """A progress bar over the tasks of a plan."""
    with progress("tasks", len(plan.tasks)) as write:
        yield lambda done, answers: write(done, _summary(answers))


def _summary(answers: Sequence[Answer]) -> str:
    right = f"  right {mean([answer.label for answer in answers]):.3f}" if answers else ""
    return f"{len(answers)} answers{right}"


def _by_policy(answers: Sequence[Answer]) -> Iterator[dict[str, object]]:
    """How many answers each policy gave at each temperature, and how many are right."""
    groups: dict[tuple[str, float], list[Answer]] = {}
    for answer in answers:
        groups.setdefault((answer.policy, answer.temperature), []).append(answer)
    for (policy, temperature), own in groups.items():
        yield {
            "policy": policy,
            "temperature": f"{temperature:g}",
            "questions": len({answer.task for answer in own}),
            "answers": len(own),
            "right": mean([answer.label for answer in own]),
        }
