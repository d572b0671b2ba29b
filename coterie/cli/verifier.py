"""The `coterie verifier` command: subcommands and options. What implements them is imported lazily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from coterie.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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
