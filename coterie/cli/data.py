"""The `coterie data` command: prepare data sets, and look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from coterie import console
from coterie.cli import procedural
from coterie.data import preview
from coterie.data.prepare import Prepared, found_in, sort_out, write
from coterie.data.sources import SOURCES

app = typer.Typer(
    help="Prepare data sets, and look at them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Place = Annotated[Path, typer.Argument(metavar="PATH", help="A file, or a folder that `prepare` has filled.")]


@contextmanager
def _plainly() -> Iterator[None]:
    """A mistake of the user's ends the command with its text and exit code 2."""
    try:
        yield
    except (ValueError, ImportError, FileExistsError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `coterie data list`.")],
    source: Annotated[
        Path | None,
        typer.Option(metavar="FILE|FOLDER", help="jsonl, JSON or Parquet files.  [default: the Hugging Face hub]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A new folder.  [default: data/NAME]")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The first N good rows of each split.")] = None,
) -> None:
    """Write train.parquet and test.parquet; rows that are no good go to rejected.jsonl, with the reason.

    \b
    Examples:
      coterie data prepare gsm8k
      coterie data prepare anli --source downloads/anli --out data/anli --limit 500
      coterie data prepare reasoning_gym:countdown

    A row belongs to the split that its file's name tells, else to that of its id or its data set; where nothing tells,
    one in five is held out. What is printed says how many rows went where, and why.
    """
    with _plainly():
        folder = out or Path("data") / name.replace(":", "-")
        result = _sorted_out(name, source, limit)
        if not any(result.splits.values()):
            raise ValueError(
                f"{name}: no row is any good; the first says: {next(iter(result.reasons), 'there is none')}"
            )
        write(name, result, folder)
        console.show(preview.prepared(folder, result))


@app.command("list")
def list_() -> None:
    """Name the data sets that can be prepared, and the reward that fits each.

    \b
    Example:
      coterie data list
    """
    console.show(preview.sources(SOURCES.values()))


@app.command()
def show(
    path: Place, rows: Annotated[int, typer.Option(min=1, metavar="N", help="How many of each file.")] = 2
) -> None:
    """Print the first tasks.

    \b
    Example:
      coterie data show data/gsm8k --rows 3
    """
    with _plainly():
        console.show(preview.first(path, rows))


@app.command()
def stats(path: Place) -> None:
    """Count tasks, their lengths and their commonest answers.

    \b
    Example:
      coterie data stats data/anli
    """
    with _plainly():
        console.show(preview.statistics(path))


def _sorted_out(name: str, place: Path | None, limit: int | None) -> Prepared:
    if name.startswith(procedural.PREFIX):
        return sort_out(procedural.source(name), procedural.made_up(name, place, limit), limit)
    if name not in SOURCES:
        raise ValueError(preview.unknown(name, [*SOURCES, f"{procedural.PREFIX}NAME"]))
    return sort_out(SOURCES[name], found_in(SOURCES[name], place), limit)
