"""The `coterie verifier` command: subcommands and options. Their implementations are imported lazily."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from coterie.cli.options import exit_on_error
from coterie.errors import require_extra
from coterie.files import check_output_path
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
    str | None, typer.Option(metavar="WHICH", help="For a run: latest, best or a step's number.  [default: latest]")
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
    with exit_on_error():
        refuse_existing(out)
        _data().generate(what, changes or [], checkpoint, out, answers, tasks, policy or [], temperature or [])


@app.command()
def collect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new Parquet file for the answers.")],
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only those of the last N steps.  [default: all]")
    ] = None,
) -> None:
    """Collect the answers that a run sampled while it trained, labelled by the reward they got.

    They cost nothing: no answer is sampled again. Early steps show the mistakes of the untrained policy.

    \b
    Example:
      coterie verifier collect runs/solver --out answers.parquet --last 50
    """
    with exit_on_error():
        refuse_existing(out)
        _data().collect(run, out, last)


@app.command()
def balance(
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS", help="A Parquet file of labelled answers.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new Parquet file for the answers that are kept.")],
    changes: Changes = None,
    per_label: Annotated[
        int, typer.Option(min=1, metavar="K", help="Right answers per question, and as many wrong ones.")
    ] = 2,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG|RUN",
            help="The answers' config or run: tops up questions with too few right or wrong answers.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Rounds of sampling for questions to top up.  [default: 1]"),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option("--answers", min=1, metavar="N", help="Episodes per question and round.  [default: 8]"),
    ] = None,
    policy: Policies = None,
    temperature: Temperatures = None,
    checkpoint: Checkpoint = None,
    perturb: Annotated[
        bool | None,
        typer.Option(
            "--perturb/--no-perturb",
            help="Make missing wrong answers from right ones, by changing the last numbers.  [default: --perturb]",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The plot, a PNG.  [default: FILE.png beside --out]")
    ] = None,
) -> None:
    """Keep as many right as wrong answers per question, so that the question alone predicts nothing.

    With --config, questions with too few right or wrong answers are topped up: sampled again, then with wrong answers
    made from right ones, which the grader labels again. Questions with only right or only wrong answers are dropped.

    \b
    Examples:
      coterie verifier balance answers.parquet --out balanced.parquet
      coterie verifier balance answers.parquet --out balanced.parquet --per-label 4 --config recipes/sums.yaml
    """
    topping_up = (changes, policy, temperature, checkpoint, rounds, episodes, perturb)
    if config is None and any(value not in (None, []) for value in topping_up):
        options_of = "changes, --policy, --temperature, --checkpoint, --rounds, --answers and --[no-]perturb"
        raise typer.BadParameter(f"{options_of} have no effect without --config, which tops up questions")
    with exit_on_error():
        refuse_existing(out)
        check_output_path("--plot", plot)
        if plot is None:
            refuse_existing(out.with_suffix(".png"))
        data = _data()
        times = (1 if rounds is None else rounds, episodes or 8)
        options = (changes or [], checkpoint, *times, policy or [], temperature or [], perturb is not False)
        data.balance(answers, out, per_label, plot, data.TopUp(config, *options) if config else None)


def _data() -> ModuleType:
    return import_module("coterie.cli.verifier_data")


@app.command()
def train(
    answers: Annotated[
        Path | None, typer.Argument(metavar="ANSWERS", help="A Parquet file of labelled answers.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The base model: demo, a folder, a .gguf file or a hub name.  [default: the adapter's, or demo]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder of the new run.  [default: runs/verifier]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume the run in this folder from its latest checkpoint.")
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN|FOLDER",
            help="Train only a score head on this frozen adapter: a PEFT folder, or a run with one adapter.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Passes over the questions.")] = None,
    lr: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="RATE", help="The learning rate; with --adapter the head's.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=1, metavar="N", help="The rank of the LoRA adapter.")] = None,
    questions_per_step: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="A step trains on all answers to N questions.")
    ] = None,
    held_out: Annotated[
        float | None, typer.Option(min=0, max=0.9, metavar="SHARE", help="The share of the questions to hold out.")
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Evaluations during training, evenly spaced; each writes a checkpoint."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="The longest conversation.  [default: the model's]")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The seed of split, order and first weights.")] = None,
    microbatch_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens per forward pass; fewer need less memory.  [default: by memory]"),
    ] = None,
) -> None:
    """Train a verifier on labelled answers, or resume its training.

    The answers are split by question: no held-out question is trained on. The checkpoint with the best AUC within
    held-out questions is `best`, and reliability.png shows its calibration.

    \b
    Examples:
      coterie verifier train balanced.parquet --model demo --out runs/v
      coterie verifier train balanced.parquet --out runs/v --epochs 5 --lr 1e-3 --rank 32
      coterie verifier train answers.parquet --out runs/v --adapter runs/solver
      coterie verifier train --resume runs/v
    """
    options: dict[str, Any] = {"epochs": epochs, "lr": lr, "questions_per_step": questions_per_step}
    options |= {"held_out": held_out, "evaluations": evaluations, "context": context, "seed": seed}
    options |= {"adapter": adapter, "rank": rank, "microbatch_tokens": microbatch_tokens}
    given = {name: value for name, value in options.items() if value is not None}
    if (answers is None) == (resume is None):
        raise typer.BadParameter("pass a file of answers, or --resume RUN, and not both")
    with exit_on_error():
        runs = import_module("coterie.cli.verifier_runs")
        if answers is None:
            fixed = {"model": model, "out": out}
            given |= {name: value for name, value in fixed.items() if value is not None}
            raise typer.Exit(runs.resume_verifier(resume, given))
        folder = out or Path("runs/verifier")
        raise typer.Exit(runs.train_verifier(answers, model, folder, given))


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a verifier's run.")],
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS", help="A Parquet file of labelled answers.")],
    checkpoint: Annotated[str, typer.Option(metavar="WHICH", help="best, latest or a step's number.")] = "best",
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all numbers to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a reliability plot (PNG).")] = None,
) -> None:
    """Evaluate a verifier on new questions, beside the length of an answer, its log-prob and the majority.

    Answers to questions that the run was trained on are left out. Give it the answers as they were generated, not
    balanced ones: half of the balanced answers to a question are right and agree with each other, which makes the
    majority look better than it is.

    \b
    Example:
      coterie verifier eval runs/v answers.parquet --json v.json --plot v.png
    """
    with exit_on_error():
        import_module("coterie.cli.verifier_runs").evaluate_verifier(run, answers, checkpoint, json, plot)


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a verifier's run.")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to bind; any but loopback needs a key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0: any free one.")] = 8000,
    checkpoint: Annotated[str, typer.Option(metavar="WHICH", help="best, latest or a step's number.")] = "best",
    device: Annotated[str, typer.Option(metavar="WHERE", help="cpu, cuda, cuda:1 … or auto.")] = "auto",
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key that clients must send.  [default: $COTERIE_VERIFIER_KEY]"),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(min=1, metavar="N", help="Conversations that may wait; more get status 429.")
    ] = 2048,
    max_body: Annotated[
        float, typer.Option(min=0.001, metavar="MB", help="The largest body; larger ones get status 413.")
    ] = 8.0,
) -> None:
    """Serve a verifier over HTTP, for the reward `{name: verifier, url: …}` and for others.

    \b
    Examples:
      coterie verifier serve runs/v --port 8000
      curl -d '{"answers": [{"question": "1 + 1?", "answer": "2"}]}' http://127.0.0.1:8000/v1/score
      COTERIE_VERIFIER_KEY=secret coterie verifier serve runs/v --host 0.0.0.0

    On SIGTERM or Ctrl-C the server finishes the requests that it has accepted, then exits.
    """
    with exit_on_error():
        require_extra("serve", "starlette", "uvicorn")
        from coterie.rewards.verifier import KEY_VARIABLE
        from coterie.verifier.model import Verifier
        from coterie.verifier.serve import serve as serve_verifier
        from coterie.web.server import read_key

        serve_verifier(
            lambda: Verifier.load(run, device, checkpoint),
            f"verifier {run}",
            host,
            port,
            read_key(key_file, KEY_VARIABLE),
            max_queue,
            int(max_body * 1e6),
        )
