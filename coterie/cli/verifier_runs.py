"""The implementation of `coterie verifier train` and `coterie verifier eval`, and their output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import rich
from rich.console import RenderableType
from rich.text import Text

from coterie.cli.commands import new_run_folder
from coterie.config import Lora
from coterie.config.settings import DEMO
from coterie.console import show, table
from coterie.files import check_output_path, exclusive_lock, file_hash, read_rows, write_atomic
from coterie.models.peft import ADAPTER_CONFIG, base_model
from coterie.models.store import resolve
from coterie.training.checkpoint import find
from coterie.verifier.answers import read_answers
from coterie.verifier.evaluate import Evaluation, evaluate
from coterie.verifier.metrics import Measures
from coterie.verifier.model import NAME, Verifier, base_hash
from coterie.verifier.plots import reliability_plot
from coterie.verifier.selection import Selection
from coterie.verifier.settings import FILE, BadVerifierConfig, VerifierConfig, default_learning, read_settings
from coterie.verifier.train import PLOT, VerifierRun, build, resume, summary, train

COLUMNS = {
    "auc": "AUC",
    "auc_within": "AUC within",
    "within_low": "95 % from",
    "within_high": "to",
    "accuracy_within": "accuracy within",
    "ece": "ECE",
}


def train_verifier(answers: Path, model: str | None, out: Path, options: dict[str, Any]) -> int:
    """Train a new verifier; returns the exit code. `model` None: that of the adapter, or the demo model."""
    read_answers(answers)  # before the model is loaded
    settings = settings_of(options)
    if model is None:
        model = base_model(Path(settings["adapter"])) if "adapter" in settings else DEMO
    name = str(Path(model).resolve()) if model != DEMO and Path(model).exists() else model
    with rich.get_console().status("loading the model"):
        base = base_hash(resolve(name))
    config = VerifierConfig(str(answers.resolve()), file_hash(answers), name, base, **settings)
    with new_run_folder(out) as folder:
        return _train(config, folder, resuming=False)


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a verifier's config that the command's options set."""
    settings = dict(options)
    if (tokens := settings.pop("microbatch_tokens", None)) is not None:
        settings["learning"] = replace(default_learning(), microbatch_tokens=tokens)
    if (rank := settings.pop("rank", None)) is not None:
        settings["lora"] = Lora(rank=rank, alpha=2.0 * rank)
    if (source := settings.get("adapter")) is not None:
        if rank is not None:
            raise BadVerifierConfig("--rank: has no effect with --adapter, whose rank it is")
        settings["adapter"] = str(adapter_folder(source).resolve())
        settings |= {"head_lr": settings.pop("lr")} if "lr" in settings else {}
    return settings


def adapter_folder(source: Path) -> Path:
    """A PEFT adapter's folder, or the adapter in the latest checkpoint of a run that has one."""
    if (source / ADAPTER_CONFIG).is_file():
        return source
    found = sorted(file.parent for file in (find(source) / "policies").glob(f"*/{ADAPTER_CONFIG}"))
    if len(found) == 1:
        return found[0]
    what = "no adapter: its whole model is trained" if not found else "several adapters"
    paths = "".join(f"\n  {folder}" for folder in found)
    raise BadVerifierConfig(f"--adapter {source}: this run has {what}{'; name one' if found else ''}{paths}")


def resume_verifier(folder: Path, options: dict[str, Any]) -> int:
    """Resume a verifier's training from its latest checkpoint; returns the exit code."""
    fixed = [name for name in options if name != "microbatch_tokens"]
    if fixed:
        raise BadVerifierConfig(f"--{fixed[0].replace('_', '-')}: cannot change when a run is resumed")
    config = read_settings(folder)
    with exclusive_lock(folder):
        if options:
            config = replace(config, learning=replace(config.learning, **options))
            write_atomic(folder / FILE, config.to_yaml())
        return _train(config, folder, resuming=True)


def _train(config: VerifierConfig, folder: Path, resuming: bool) -> int:
    """The exit code: 128 + n after signal n."""
    with rich.get_console().status("loading the model"):
        run = build(config, folder)
    show([Text(plan(run))])
    if resuming:
        resume(run)
        show([Text(f"  resuming after step {run.step}")])
    try:
        train(run)
    except KeyboardInterrupt:  # the second signal
        run.stopping = True
    finally:
        run.log.close()
    show([Text(report(run))])
    return 128 + run.signal if run.signal else 0


def plan(run: VerifierRun) -> str:
    """The size of the run, in one line."""
    answers = sum(map(len, run.training))  # distinct ones, to questions with right and wrong answers
    held_out = {one.answer.question for one in run.held_out}
    adapter = run.config.adapter
    trained = f"LoRA of rank {run.config.lora.rank}" if adapter is None else f"a score head on the adapter {adapter}"
    size = (
        f"{run.folder}: {run.config.model}, {trained}; {run.steps} steps; "
        f"{answers} answers to {len(run.training)} questions, {len(run.held_out)} to {len(held_out)} held-out ones"
    )
    long = f"left out: {run.too_long} answers that are longer than the verifier's context of {run.verifier.context}"
    return f"{size}; {long}" if run.too_long else size


def report(run: VerifierRun) -> str:
    """The best evaluation, in one line."""
    done = f"{run.folder}: {run.step} of {run.steps} steps done"
    if run.best is None:
        return f"{done}; `coterie verifier train --resume {run.folder}` goes on"
    row = next(r for r in read_rows(run.folder / "metrics.jsonl") if r["step"] == run.best_step)
    found = Measures(**{name: row[f"eval/{name}"] for name in Measures.__dataclass_fields__})
    return f"{done}; held out, best at step {run.best_step}: {summary(found)}; {run.folder / PLOT}"


def evaluate_verifier(
    folder: Path, answers: Path, which: str, json_file: Path | None = None, plot: Path | None = None
) -> None:
    """Evaluate a verifier beside its baselines on new questions."""
    check_output_path("--json", json_file)
    check_output_path("--plot", plot)
    found = read_answers(answers)
    with rich.get_console().status("loading the verifier"):
        verifier = Verifier.load(folder, checkpoint=which)
    with rich.get_console().status(f"scoring {len(found)} answers"):
        evaluation = evaluate(verifier, folder, answers, found)
    show(evaluation_tables(evaluation))
    if json_file is not None:
        reports = {name: asdict(one) for name, one in evaluation.reports.items()}
        figures = {"verifier": str(folder), "hash": verifier.hash, "answers": str(answers), "reports": reports}
        chosen = {"verdict": evaluation.verdict, "selections": [asdict(one) for one in evaluation.selections]}
        write_atomic(json_file, json.dumps(figures | chosen, indent=2) + "\n")
    if plot is not None:
        labels = [answer.right for answer in evaluation.answers]
        write_atomic(plot, reliability_plot(evaluation.scores, labels, summary(evaluation.reports[NAME])))


def evaluation_tables(found: Evaluation) -> Iterator[RenderableType]:
    """A row for the verifier and each baseline, then the verdict."""
    own = found.reports[NAME]
    title = f"{own.answers} answers; {own.questions} questions have right and wrong ones"
    rows = {"verifier": own} | {name: one for name, one in found.reports.items() if name != NAME}
    if found.perturbed is not None:
        rows["verifier, with perturbed answers"] = found.perturbed
    yield table(title, [{"scored by": name} | _columns(one) for name, one in rows.items()])
    if found.trained:
        yield Text(f"  left out: {found.trained} answers to questions that the verifier was trained on")
    if found.too_long:
        yield Text(f"  left out: {found.too_long} answers that are longer than the verifier's context")
    yield Text(f"  {found.verdict}")
    if found.selections:
        yield table("questions answered rightly, choosing one of k answers", [_choice(one) for one in found.selections])


def _choice(one: Selection) -> dict[str, str | float | int]:
    shares = {"one answer": one.single, "majority": one.majority, "sum of scores": one.weighted}
    shares |= {"highest score": one.best, "any": one.any}
    gain = f"{one.difference.difference:+.3f} ({one.difference.low:+.3f} to {one.difference.high:+.3f})"
    return {"k": one.k, **shares, "sum − majority": gain, "p": f"{one.difference.p:.2g}"}


def _columns(one: Measures) -> dict[str, float]:
    return {title: getattr(one, name) for name, title in COLUMNS.items()}
