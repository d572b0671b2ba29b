"""The `coterie` command: subcommands and options. `commands` implements them and is imported lazily, so that `--help`
does not wait for torch."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from coterie import __version__
from coterie.cli import use
from coterie.cli.options import Changes, user_errors

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # it would parse [key=value] as markup
    pretty_exceptions_enable=False,  # they would print whole tensors
)


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that a log file shows each step at once
    app(prog_name="coterie")


def _print_version(requested: bool) -> None:
    if requested:
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
      coterie demo                         train a team of two in a few minutes, into runs/demo
      coterie eval runs/demo               evaluate it, beside single-agent baselines
      coterie chat runs/demo               talk to it

    \b
    Your own:
      coterie init demo                    copy a recipe, demo.yaml, to start from
      coterie check demo.yaml              dry-run a few tasks; see the prompts and what could go wrong
      coterie train demo.yaml              train the team

    `coterie COMMAND --help` explains a command.
    """


@app.command()
def train(
    config: Annotated[str | None, typer.Argument(metavar="CONFIG", help="A recipe: a YAML file.")] = None,
    changes: Changes = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Resume the run in this folder from its latest checkpoint."),
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
            metavar="FOLDER",
            help="The parent folder: the run is written to FOLDER/<name of the config>.  [default: runs]",
        ),
    ] = None,
    examples: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Show N held-out dialogues and the scores, before and after training."),
    ] = 0,
) -> None:
    """Train a team, or resume a run.

    \b
    Examples:
      coterie train recipes/demo.yaml
      coterie train recipes/demo.yaml name=slow steps=40 policies.first.lr=1e-4
      coterie train --resume runs/demo steps=60
      coterie train --resume runs/demo --checkpoint 20

    Ctrl-C, SIGTERM and SIGHUP stop it after the current step and save a checkpoint; a second signal stops it at once.
    The exit code is then 130, 143 or 129. On resume, only keys of the length of a run, of evaluation, checkpoints and
    rollout (steps, eval.*, checkpoint.*, rollout.* …), and of memory (learning.microbatch_tokens,
    learning.checkpointing, engine.rows) may change.
    """
    words = [word for word in [config, *(changes or [])] if word is not None]
    if resume is None and not words:
        raise typer.BadParameter("pass a config, as in `coterie train recipes/demo.yaml`, or --resume RUN")
    if resume is not None and out is not None and not (resume / "portable.json").is_file():
        raise typer.BadParameter(f"--out has no effect with --resume: the run stays in {resume}")
    if resume is None and checkpoint is not None:
        raise typer.BadParameter(f"--checkpoint {checkpoint} has no effect without --resume: a new run has none")
    with user_errors() as commands:
        if resume is not None:
            code = commands.resume(commands.unpacked(resume, out), words, examples, checkpoint)
        else:
            code = commands.train(Path(words[0]), words[1:], out, examples)
        raise typer.Exit(code)


@app.command("eval")
def evaluate(
    what: Annotated[
        Path, typer.Argument(metavar="RUN|CONFIG", help="A run's folder, or a config (its untrained team).")
    ],
    changes: Changes = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="WHICH", help="latest, best or a step's number.  [default: latest]")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The number of held-out tasks (eval.tasks).")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Episodes per task, for pass@K; needs a temperature above 0."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, metavar="T", help="The sampling temperature; 0 is greedy (eval.temperature).")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="Also evaluate a single agent without its adapter, and its majority vote with the team's tokens.",
        ),
    ] = True,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all numbers to this file.")] = None,
) -> None:
    """Evaluate a team on held-out tasks, beside single-agent baselines.

    \b
    Examples:
      coterie eval runs/demo
      coterie eval runs/demo --checkpoint best --tasks 200 --json demo.json
      coterie eval recipes/demo.yaml --episodes 4 --temperature 1
    """
    settings = {"eval.tasks": tasks, "eval.episodes_per_task": episodes, "eval.temperature": temperature}
    options = [f"{key}={value}" for key, value in settings.items() if value is not None]
    with user_errors() as commands:
        commands.evaluate(what, [*(changes or []), *options], checkpoint, baselines, json)


@app.command()
def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A recipe: a YAML file.")],
    changes: Changes = None,
    tasks: Annotated[int, typer.Option(min=1, metavar="N", help="The number of training tasks to play.")] = 4,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Episodes per task.  [default: episodes_per_task, at most 8]"),
    ] = None,
) -> None:
    """Dry-run a config: find problems before training.

    It plays a few tasks and shows the rendered prompts, rewards, groups, credit, and the time of a step. Then all roles
    reply with the reference answer, and with broken answers: this finds workflows that hide answers from the grader,
    and rewards that cannot tell right from wrong.

    \b
    Example:
      coterie check recipes/demo.yaml tasks_per_step=16 --tasks 8

    Exit code 1: training would learn nothing. Exit code 2: the config is invalid.
    """
    with user_errors() as commands:
        if not commands.check(config, changes or [], tasks, episodes):
            raise typer.Exit(1)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    changes: Changes = None,
    most: Annotated[int, typer.Option(min=0, metavar="N", help="List the N turns whose advantage changes most.")] = 8,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the change of every turn to this JSONL file.")
    ] = None,
) -> None:
    """Recompute the advantages of a run's episodes under another algorithm, credit or reward, without sampling.

    \b
    Examples:
      coterie replay runs/demo algorithm=rloo
      coterie replay runs/demo credit=own algorithm.scale=none
      coterie replay runs/demo reward=math --most 20 --out changes.jsonl
    """
    with user_errors() as commands:
        commands.replay(run, changes or [], most, out)


@app.command()
def compare(
    file: Annotated[Path, typer.Argument(metavar="COMPARISON", help="A YAML file with the arms.")],
    changes: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder for runs, logs, evaluations and the table.  [default: runs/<folder of COMPARISON>]",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Arms that run in parallel.")] = 1,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Repeat with seeds 0 to N − 1, and average by task.")
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Run only these arms, as S1,T; a later call can add others.  [default: all]"
        ),
    ] = None,
) -> None:
    """Train and evaluate several arms on the same tasks, and compare them task by task.

    The table has 95 % intervals, the tokens that each arm sampled, and a paired test against one arm. Results that are
    already in the folder are reused, so a comparison that was stopped continues when it is started again.

    \b
    Example:
      coterie compare recipes/results/gsm8k_vote/compare.yaml seed=1 --out runs/gsm8k_vote-1
      coterie compare recipes/results/split_work/compare.yaml --seeds 3 --jobs 2
      coterie compare recipes/results/split_work/compare.yaml --arms T,S4
    """
    with user_errors() as commands:
        only = [name.strip() for name in arms.split(",")] if arms is not None else []
        commands.compare(file, changes or [], out or Path("runs") / file.resolve().parent.name, jobs, seeds, only)


@app.command()
def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS", help="Runs' folders, or folders with runs in them.  [default: runs]"),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to bind; any but loopback needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0: any free one.")] = 8800,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The password that the page asks for; also from COTERIE_VIEW_KEY."),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Allow the page to run `coterie replay`, which loads the runs' own code.")
    ] = False,
) -> None:
    """Show runs in the browser, live: curves, episodes, tokens, and what each turn was compared with.

    \b
    Examples:
      coterie view
      coterie view runs/demo runs/slow --port 9000
    """
    with user_errors("coterie.cli.view") as commands:
        commands.view(runs or [Path("runs")], host, port, key_file, replay)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="A run's folder, or several.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")],
    episodes: Annotated[int, typer.Option(min=0, metavar="N", help="Sampled episodes of each kind to include.")] = 12,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave out every text of prompts, replies and answers; keep the numbers.")
    ] = False,
) -> None:
    """Write one self-contained HTML file about runs: curves, evaluations before and after, a sample of episodes.

    \b
    Examples:
      coterie report runs/demo --out demo.html
      coterie report runs/demo runs/slow --out both.html --redact
    """
    with user_errors("coterie.cli.view") as commands:
        commands.report(runs, out, episodes, redact)


@app.command()
def schema() -> None:
    """Print the JSON schema of configs, for your editor.

    \b
    Example:
      coterie schema > coterie.schema.json
    """
    with user_errors() as commands:
        commands.print_schema()


if find_spec("coterie.bench"):

    @app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
    def bench(context: typer.Context) -> None:
        """Benchmark rollout and training on this machine.

        \b
        Example:
          coterie bench rollout
        """
        with user_errors():
            import_module("coterie.bench.app").app(context.args, prog_name="coterie bench")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def data(context: typer.Context) -> None:
    """Prepare and inspect datasets.

    \b
    Examples:
      coterie data list
      coterie data prepare gsm8k
    """
    import_module("coterie.cli.data").app(context.args, prog_name="coterie data")


@app.command("import")
def import_files(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="The system that wrote the file: marft.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A profile of MARFT: a JSON list of agents.")],
    out: Annotated[
        Path | None, typer.Option(metavar="RECIPE", help="The recipe to write.  [default: NAME.yaml of the file]")
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME|FOLDER", help="The base model (model_name_or_path).")] = "demo",
    horizon: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds per episode, at most (horizon).")] = 1,
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="Training rows (dataset_path).")] = None,
    load_path: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with an adapter per role and the critic's head, to start from."),
    ] = None,
) -> None:
    """Write a recipe from another system's file.

    \b
    Example:
      coterie import marft profiles/math_dual.json --model Qwen/Qwen2.5-3B-Instruct --data MATH/train.json
      coterie train math_dual.yaml
    """
    with user_errors() as commands:
        commands.import_marft(system, file, out, model, horizon, data, load_path)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def verifier(context: typer.Context) -> None:
    """Train and serve a verifier: a reward model that scores answers.

    \b
    Examples:
      coterie verifier generate recipes/demo.yaml --out answers.parquet
      coterie verifier --help
    """
    import_module("coterie.cli.verifier").app(context.args, prog_name="coterie verifier")


use.register(app)


if __name__ == "__main__":
    main()
