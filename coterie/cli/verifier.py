"""The `coterie verifier` command: subcommands and options. What implements them is imported lazily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from coterie.errors import UserError
from coterie.verifier.answers import refuse_existing

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Changes = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the config, such as sampling.max_tokens=64.")
]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="WHICH", help="Of a run: latest, best or a step's number.  [default: latest]")
]
Episodes = Annotated[
    int,
    typer.Option("--answers", min=1, metavar="N", help="Episodes per question with each policy and temperature."),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A policy that plays all roles; repeatable.  [default: those of the roles]"),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option(min=0, metavar="T", help="A sampling temperature; repeatable.  [default: the config's]"),
]


@contextmanager
def user_errors() -> Iterator[None]:
    """A user error prints its text and exits with code 2."""
    try:
        yield
    except (UserError, FileExistsError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


@app.callback()
def verifier() -> None:
    """Train and serve a verifier: a reward model that reads a question and an answer.

    It gives the probability that the answer is right.
    """


@app.command()
def generate(
    what: Annotated[Path, typer.Argument(metavar="CONFIG|RUN", help="A config (its untrained team), or a run.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new Parquet file for the answers.")],
    changes: Changes = None,
    answers: Episodes = 8,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N training tasks.  [default: all]")
    ] = None,
    policy: Policies = None,
    temperature: Temperatures = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Sample answers to training tasks, and label each with the config's grader.

    The workflow of the config plays: with `single` an episode gives one answer, with `debate` one per role and round.
    A process that was killed continues when the same command is run again, and writes the same rows.

    \b
    Examples:
      coterie verifier generate recipes/sums.yaml --out answers.parquet --tasks 200
      coterie verifier generate runs/debate --out answers.parquet --answers 4 --temperature 0.7 --temperature 1
    """
    with user_errors():
        refuse_existing(out)
        _data().generate(what, changes or [], checkpoint, out, answers, tasks, policy or [], temperature or [])


def _data() -> ModuleType:
    return import_module("coterie.cli.verifier_data")
