"""Runs the `coterie` command in this process."""

from __future__ import annotations

from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from coterie.cli.app import app


def coterie(*words: Any) -> Result:
    """The result of a command line, also if it fails."""
    return CliRunner().invoke(app, [str(word) for word in words])


def stdout_of(*words: Any) -> str:
    """The output of a command that must succeed."""
    result = coterie(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)
