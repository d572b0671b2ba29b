"""The commands of `coterie bench`."""

from __future__ import annotations

import typer

from coterie.bench.adapters import adapters
from coterie.bench.cluster import cluster
from coterie.bench.games import games
from coterie.bench.rollout import rollout
from coterie.bench.scaling import scaling
from coterie.bench.step import step
from coterie.bench.update import update

app = typer.Typer(
    help="Measure speed against a baseline, in one run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (rollout, update, step, adapters, scaling, games, cluster):
    app.command()(command)
