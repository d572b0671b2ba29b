"""The `coterie` command: its words and options. What they do is in `commands`, which is imported when it is needed:
asking for help must not wait for torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from coterie import __version__
from coterie.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # it would read [key=value] as an instruction
    pretty_exceptions_enable=False,  # and would print whole tensors
)

Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes to the config, such as steps=20 or policies.actor.lr=1e-4."),
]


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a log file shows each step as it ends
    app(prog_name="coterie")


@contextmanager
def _plainly() -> Iterator[ModuleType]:
    """The commands; a mistake of the user's ends them with its text and exit code 2."""
    try:
        yield import_module("coterie.cli.commands")
    except (UserError, FileExistsError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def coterie(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Coterie fine-tunes teams of language models with reinforcement learning.

    \b
    A first run, on a laptop:
      coterie check recipes/demo.yaml      play a few tasks; see what the models read and what could go wrong
      coterie train recipes/demo.yaml      train the team into runs/demo
      coterie eval runs/demo               measure it, beside one agent alone
      coterie train --resume runs/demo steps=40      train it further

    `coterie COMMAND --help` explains a command.
    """


@app.command()
def train(
    config: Annotated[str | None, typer.Argument(metavar="CONFIG", help="A recipe: a YAML file.")] = None,
    changes: Changes = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with the run in this folder, from its latest checkpoint."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            help="Rewind to this checkpoint: a step's number, or best. Later steps are moved to RUN/rewound.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where runs are kept: this one in FOLDER/<name of the config>.  [default: runs]"
        ),
    ] = None,
    examples: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Show N held-out dialogues, and the scores, before and after training."),
    ] = 0,
) -> None:
    """Train a team, or go on training one.

    \b
    Examples:
      coterie train recipes/demo.yaml
      coterie train recipes/demo.yaml name=slow steps=40 policies.first.lr=1e-4
      coterie train --resume runs/demo steps=60
      coterie train --resume runs/demo --checkpoint 20

    Ctrl-C, SIGTERM and SIGHUP end it after the step at hand and save it; a second one ends it at once. The exit code
    is then 130, 143 or 129. A resumed run may be given other steps, sandbox, eval.*, checkpoint.*, log.* and rollout.*;
    everything else stays as it was.
    """
    words = [word for word in [config, *(changes or [])] if word is not None]
    if resume is None and not words:
        raise typer.BadParameter("name a config, as in `coterie train recipes/demo.yaml`, or --resume a run")
    if resume is not None and out is not None:
        raise typer.BadParameter(f"--out has no effect with --resume: the run stays in {resume}")
    if resume is None and checkpoint is not None:
        raise typer.BadParameter(f"--checkpoint {checkpoint} has no effect without --resume: a new run has none")
    with _plainly() as commands:
        if resume is not None:
            code = commands.resume(resume, words, examples, checkpoint)
        else:
            code = commands.train(Path(words[0]), words[1:], out or Path("runs"), examples)
        raise typer.Exit(code)


@app.command("eval")
def evaluate(
    what: Annotated[
        Path, typer.Argument(metavar="RUN|CONFIG", help="A run's folder, or a config: its untrained team.")
    ],
    changes: Changes = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="WHICH", help="latest, best or a step's number.  [default: latest]")
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, metavar="N", help="Held-out tasks to play: eval.tasks.")] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Times each is played, for pass@K; needs a temperature above 0."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, metavar="T", help="0 always takes the likeliest token: eval.temperature.")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="Beside the team: one agent alone, without its adapter, and by majority, with the team's tokens.",
        ),
    ] = True,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all the numbers there, too.")] = None,
) -> None:
    """Measure a team on held-out tasks, beside one agent alone.

    \b
    Examples:
      coterie eval runs/demo
      coterie eval runs/demo --checkpoint best --tasks 200 --json demo.json
      coterie eval recipes/demo.yaml --episodes 4 --temperature 1
    """
    given = {"eval.tasks": tasks, "eval.episodes_per_task": episodes, "eval.temperature": temperature}
    options = [f"{key}={value}" for key, value in given.items() if value is not None]
    with _plainly() as commands:
        commands.evaluate(what, [*(changes or []), *options], checkpoint, baselines, json)


@app.command()
def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A recipe: a YAML file.")],
    changes: Changes = None,
    tasks: Annotated[int, typer.Option(min=1, metavar="N", help="Training tasks to play.")] = 4,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Times each is played.  [default: episodes_per_task, 8 at most]"),
    ] = None,
) -> None:
    """Find out, before training, what would go wrong in it.

    It plays a few tasks and shows prompts as the models read them, rewards, groups, credit, and the time of a step.
    Then everyone says the reference answer, and broken ones: you are told what the workflow hides from the grader, and
    which rewards nothing can change.

    \b
    Example:
      coterie check recipes/demo.yaml tasks_per_step=16 --tasks 8

    Exit code 1 means that training would teach nothing, 2 that the config cannot run.
    """
    with _plainly() as commands:
        if not commands.check(config, changes or [], tasks, episodes):
            raise typer.Exit(1)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    changes: Changes = None,
    most: Annotated[int, typer.Option(min=0, metavar="N", help="List the N turns whose credit changes most.")] = 8,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every turn's change there, as JSONL.")] = None,
) -> None:
    """Judge what a run has played under another algorithm, credit or reward. Nothing is sampled or trained.

    \b
    Examples:
      coterie replay runs/demo algorithm=rloo
      coterie replay runs/demo credit=own algorithm.scale=none
      coterie replay runs/demo reward=math --most 20 --out changes.jsonl
    """
    with _plainly() as commands:
        commands.replay(run, changes or [], most, out)


@app.command()
def compare(
    file: Annotated[Path, typer.Argument(metavar="COMPARISON", help="A YAML file that names the arms.")],
    changes: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Runs, logs, evaluations and the table.  [default: runs/<its folder>]"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Arms that run at the same time.")] = 1,
) -> None:
    """Train and evaluate several arms on the same tasks, and compare them task by task.

    The table has 95 % intervals, the tokens that each arm sampled, and a paired test against one arm. What is already
    in the folder is not made again, so a comparison that was stopped goes on when it is started again.

    \b
    Example:
      coterie compare recipes/results/gsm8k_vote/compare.yaml seed=1 --out runs/gsm8k_vote-1
    """
    with _plainly() as commands:
        commands.compare(file, changes or [], out or Path("runs") / file.resolve().parent.name, jobs)


@app.command()
def schema() -> None:
    """Print a JSON schema of configs, for your editor.

    \b
    Example:
      coterie schema > coterie.schema.json
    """
    with _plainly() as commands:
        commands.print_schema()


if find_spec("coterie.bench"):

    @app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
    def bench(context: typer.Context) -> None:
        """Measure how fast this machine plays and learns.

        \b
        Example:
          coterie bench rollout
        """
        with _plainly():
            import_module("coterie.bench.app").app(context.args, prog_name="coterie bench")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def data(context: typer.Context) -> None:
    """Prepare data sets, and look at them.

    \b
    Examples:
      coterie data list
      coterie data prepare gsm8k
    """
    import_module("coterie.cli.data").app(context.args, prog_name="coterie data")


if __name__ == "__main__":
    main()
