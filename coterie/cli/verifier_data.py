"""`coterie verifier generate`, `collect` and `balance`: load the team, show progress and print the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import rich

from coterie.cli.commands import team_config
from coterie.config import Config, ConfigError
from coterie.console import progress, show, table
from coterie.errors import UserError
from coterie.files import remove_folder
from coterie.rewards.verifier import uses_verifier
from coterie.statistics import mean
from coterie.training import checkpoint
from coterie.training.loop import Run
from coterie.verifier.answers import Answer, parts_folder, read_answers, write_answers
from coterie.verifier.balance import Balance, Question, choose, group
from coterie.verifier.balance_plot import plot_balance
from coterie.verifier.collect import stored_answers
from coterie.verifier.generate import Plan, Report, check_policies, labelling_config, make_plan, make_variants
from coterie.verifier.generate import generate as sample_answers
from coterie.verifier.top_up import References, Resampling, resample


class NothingKept(UserError):
    """No question has both right and wrong answers."""


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


def collect(folder: Path, out: Path, last: int | None) -> None:
    """Write the labelled answers of a training run's steps to a file, and show how many are right."""
    require_labels(team_config(folder, [], None))
    with rich.get_console().status(f"reading the episodes of {folder}"):
        answers = stored_answers(folder, last)
    write_answers(out, answers)
    show([table(str(out), list(_by_policy(answers)))])


def require_labels(config: Config) -> None:
    """Reject a config whose reward is a verifier's score: a verifier must not learn from such labels."""
    if uses_verifier(config.reward):
        raise ConfigError("reward: is a verifier's score, which is no label; use a run whose reward grades the answers")


@dataclass(frozen=True)
class TopUp:
    """What tops up short questions: the options of `coterie verifier balance` beside the config."""

    what: Path  # a config or a run
    changes: Sequence[str]
    which: str | None
    rounds: int
    episodes: int
    policies: Sequence[str]
    temperatures: Sequence[float]
    perturb: bool

    def add(self, answers: Sequence[Answer], questions: dict[str, Question], k: int, folder: Path) -> list[Answer]:
        """Sample and perturb; returns the sampled answers."""
        references = References.of(labelling_config(team_config(self.what, self.changes, self.which)))
        references.require(answers)
        variants = make_variants(self.policies, self.temperatures)
        how = Resampling(self._team, self.episodes, variants, self.rounds, saved_name(self.what, self.which), showing)
        sampled = resample(questions, k, references, how, folder)
        if self.perturb:
            references.perturb(questions, k)
        return sampled

    def _team(self) -> Run:
        run = load_team(self.what, self.changes, self.which)
        check_policies(run, self.policies)
        return run


def balance(file: Path, out: Path, k: int, plot: Path | None, top_up: TopUp | None) -> None:
    """Write a balanced file and its plot, and show what was kept."""
    answers = read_answers(file)
    questions = group(answers)
    folder = parts_folder(out)
    sampled = top_up.add(answers, questions, k, folder) if top_up else []
    outcomes = Counter(question.outcome(k) for question in questions.values())
    result = Balance(answers, sampled, choose(questions, k), outcomes)
    if not result.kept:
        raise NothingKept(f"{file}: no question has right and wrong answers; {', '.join(outcomes)}")
    write_answers(out, result.kept)
    if folder.is_dir():
        remove_folder(folder)
    plot_balance(result, plot or out.with_suffix(".png"))
    show([table(str(out), result.rows())])


def load_team(what: Path, changes: Sequence[str], which: str | None) -> Run:
    config = labelling_config(team_config(what, changes, which))
    from coterie.cli import run

    return run.load_team(config, what, which)


def saved_name(what: Path, which: str | None) -> str | None:
    """The path of the checkpoint to sample with; None for a config."""
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
