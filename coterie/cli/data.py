"""The `coterie data` command: prepare and inspect datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import rich
import typer

from coterie import console
from coterie.cli.options import exit_on_error
from coterie.data import preview
from coterie.data.prepare import SPLITS, Prepared, SourceRow, read_source, split_rows, write
from coterie.data.row import Raw, Row, Source
from coterie.data.sources import SOURCES
from coterie.data.swe import SWE
from coterie.data.tinygsm import TINYGSM, program_source

GYM_PREFIX = "reasoning_gym:"
app = typer.Typer(
    help="Prepare and inspect datasets.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Place = Annotated[Path, typer.Argument(metavar="PATH", help="A file, or a folder written by `prepare`.")]


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `coterie data list`.")],
    source: Annotated[
        Path | None,
        typer.Option(metavar="FILE|FOLDER", help="jsonl, JSON or Parquet files.  [default: the Hugging Face hub]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A new folder.  [default: data/NAME]")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N valid rows of each split.")
    ] = None,
    code: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="For tinygsm: the column with the program.  [default: code]")
    ] = None,
    repositories: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="For swebench and r2egym: a folder of clones, or a URL; keeps rows that run."
        ),
    ] = None,
) -> None:
    """Write train.parquet and test.parquet; invalid rows go to rejected.jsonl with the reason.

    \b
    Examples:
      coterie data prepare gsm8k
      coterie data prepare anli --source downloads/anli --out data/anli --limit 500
      coterie data prepare reasoning_gym:countdown
      coterie data prepare tinygsm --source mine.jsonl --code solution
      coterie data prepare swebench --repositories clones

    A row's split is taken from its file's name, else from its id or its dataset; otherwise one row in five is held out.
    The output says how many rows went where, and why.
    """
    with exit_on_error(ValueError, ImportError):
        folder = out or Path("data") / name.replace(":", "-")
        with rich.get_console().status(f"preparing {name}"):
            result = _prepare(name, source, limit, code, repositories)
        if not any(result.splits.values()):
            problems = [f"{row.place}, row {row.number}: {reason}" for row, reason in result.rejected]
            raise ValueError(f"{name}: no valid row; the first problem: {next(iter(problems), 'there are no rows')}")
        write(name if repositories is None else SWE.name, result, folder)
        console.show(preview.prepared(folder, result))


@app.command("list")
def list_() -> None:
    """List the datasets that can be prepared, and the reward for each.

    \b
    Example:
      coterie data list
    """
    console.show(preview.sources(SOURCES.values()))


@app.command()
def show(path: Place, rows: Annotated[int, typer.Option(min=1, metavar="N", help="Tasks per file.")] = 2) -> None:
    """Print the first tasks.

    \b
    Example:
      coterie data show data/gsm8k --rows 3
    """
    with exit_on_error(ValueError, ImportError):
        console.show(preview.first(path, rows))


@app.command()
def stats(path: Place) -> None:
    """Show the number of tasks, their lengths and their most common answers.

    \b
    Example:
      coterie data stats data/anli
    """
    with exit_on_error(ValueError, ImportError):
        console.show(preview.statistics(path))


def _prepare(
    name: str, place: Path | None, limit: int | None, code: str | None = None, repositories: str | None = None
) -> Prepared:
    if code is not None and name != TINYGSM.name:
        raise ValueError(f"--code {code}: has no effect on {name}; {TINYGSM.name} reads programs")
    if name.startswith(GYM_PREFIX):
        return split_rows(gym_source(name), gym_rows(name, place, limit), limit)
    if name not in SOURCES:
        raise ValueError(preview.unknown(name, [*SOURCES, f"{GYM_PREFIX}NAME"]))
    source = SOURCES[name] if code is None else program_source(code)
    if repositories is not None:
        from coterie.envs.swe.runnable import runnable_source  # imports the sandbox, which other sources do not need

        source = runnable_source(source, repositories)
    return split_rows(source, read_source(source, place), limit)


def gym_source(name: str) -> Source:
    """`reasoning_gym:chain_sum` as a source."""
    return Source(name, "generated tasks of reasoning-gym", "native", gym_row)


def gym_row(raw: Raw, name: str) -> Row | str:
    return Row(raw["id"], raw["question"], raw["answer"], raw["meta"])


def gym_rows(name: str, place: Path | None, limit: int | None) -> Iterator[SourceRow]:
    """1,000 training and 200 test tasks, or fewer with a limit; the same on every machine."""
    from coterie.envs.reasoning_gym import ReasoningGym  # imports torch, which the other sources do not need

    if place is not None:
        raise ValueError(f"{name}: is generated; --source has no effect")
    env = ReasoningGym(name.removeprefix(GYM_PREFIX), size=limit or 1000, test_size=limit or 200)
    for split in SPLITS:
        for number, task in enumerate(env.tasks(split), 1):
            raw: dict[str, Any] = {"id": task.id, "question": task.prompt, "answer": task.answer, "meta": task.meta}
            yield SourceRow(split, number, raw, split)
