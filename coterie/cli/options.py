"""Shared by the command modules: the argument for changes to a config, and errors without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Annotated

import typer

from coterie.errors import UserError

Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes to the config, such as steps=20 or policies.actor.lr=1e-4."),
]


@contextmanager
def user_errors(module: str = "coterie.cli.commands") -> Iterator[ModuleType]:
    """Import the commands; a UserError prints its text and exits with code 2."""
    with exit_on_error():
        yield import_module(module)


@contextmanager
def exit_on_error(*kinds: type[Exception]) -> Iterator[None]:
    """Print a UserError, or an error of these kinds, without a traceback, and exit with code 2."""
    caught: tuple[type[Exception], ...] = (UserError, FileExistsError, *kinds)
    try:
        yield
    except caught as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
