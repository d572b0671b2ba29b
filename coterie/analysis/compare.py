"""`coterie compare`: trains and evaluates every arm of a comparison, and compares them with paired tests.

Each arm is a separate run in a separate process, so that arms can run in parallel, and a comparison that was killed
continues where it stopped.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from coterie.analysis.compare_report import curves, page, summary
from coterie.config import ConfigError, yamltree
from coterie.config.load import load as load_config
from coterie.config.load import read_text
from coterie.config.problems import Problems, Sources
from coterie.config.reader import Reader
from coterie.console import show, table
from coterie.errors import UserError, did_you_mean
from coterie.files import write_atomic
from coterie.statistics import Paired, bootstrap_interval, mean, paired
from coterie.training import checkpoint
from coterie.workflows.verified_vote import READ

Row = dict[str, str | float | int]  # of a table: cells by column


@dataclass(frozen=True)
class Arm:
    """One arm: `recipe` trains a team; `of` evaluates another arm's team with other settings, or with a verifier that
    learns from that team's training rollouts."""

    recipe: Path | None = None
    of: str | None = None
    train: bool = True  # false evaluates the recipe's untrained team
    set: tuple[str, ...] = ()  # changes to the recipe, as on the command line: `roles.verifier.policy=solver`
    evaluate: tuple[str, ...] = ()  # changes for its evaluation alone
    # options of `coterie verifier train`, as `--model demo --lr 1e-3`; the workflow of its evaluation uses the verifier
    verifier: str | None = None

    def __post_init__(self) -> None:
        if (self.recipe is None) == (self.of is None):
            raise ValueError("an arm has either a recipe, or `of`: the arm whose team it evaluates")
        if self.of is not None and (self.set or not self.train):
            raise ValueError(f"set: an arm `of: {self.of}` is not trained; put its changes into evaluate")
        if self.verifier is not None and self.of is None:
            raise ValueError("verifier: it learns from the rollouts of another arm; name that arm with `of`")


@dataclass(frozen=True)
class Comparison:
    """The arms, and the arm that the others are compared with."""

    arms: dict[str, Arm]
    against: str  # the arm that the others are compared with
    evaluate: tuple[str, ...] = ()  # changes for every arm's evaluation

    def __post_init__(self) -> None:
        if self.against not in self.arms:
            raise ValueError(f"against: no arm is called {self.against}{did_you_mean(self.against, self.arms)}")
        trained = [name for name, arm in self.arms.items() if arm.recipe is not None]
        for name, arm in self.arms.items():
            if arm.of is None:
                continue
            if arm.verifier is not None and arm.of in trained and not self.arms[arm.of].train:
                raise ValueError(f"arms.{name}.verifier: {arm.of} is not trained, so it has no rollouts to learn from")
            if arm.of not in trained:
                listing = ", ".join(trained) or "none"
                raise ValueError(f"arms.{name}.of: no arm with a recipe is called {arm.of}; there is {listing}")


def load(path: Path) -> Comparison:
    """Read a comparison; paths of recipes are relative to it."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    problems = Problems(Sources(str(path)))
    tree = yamltree.read(read_text(path), problems)
    comparison: Comparison = Reader(problems, path.parent).value(Comparison, tree, ())
    problems.raise_any()
    for name, arm in comparison.arms.items():
        if arm.recipe is not None and not arm.recipe.is_file():
            problems.add(("arms", name, "recipe"), f"there is no file {arm.recipe}")
    problems.raise_any()
    return comparison


@dataclass(frozen=True)
class Result:
    """The result of an arm."""

    scores: Mapping[str, float]  # by task: the share of its episodes that were correct
    metrics: Mapping[str, float]
    trained_tokens: int  # sampled in training


def read_result(eval_file: Path, run: Path | None) -> Result:
    """An arm's evaluation, as written by `coterie eval --json`, and the tokens sampled in training."""
    evaluation = json.loads(eval_file.read_text())
    (name,) = evaluation["reports"]
    metrics = evaluation["reports"][name]
    metrics["prompt_tokens"] += metrics.get(READ, 0.0)
    return Result(evaluation["accuracy"][name], metrics, sampled_in(run) if run else 0)


def sampled_in(run: Path) -> int:
    """The number of tokens that a run sampled in training."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return int(sum(row["sampled_tokens"] for row in rows if "sampled_tokens" in row))


class ArmFailed(UserError):
    """A command of an arm failed."""


@dataclass(frozen=True)
class Runner:
    """Runs the commands of arms in a folder with their runs, logs and evaluations."""

    comparison: Comparison
    out: Path
    changes: tuple[str, ...]  # to every arm, such as seed=1

    def run(self, name: str) -> Result:
        """An arm's result; existing runs and evaluations are reused."""
        arm = self.comparison.arms[name]
        eval_file = self.out / f"{name}.json"
        if arm.recipe is not None and arm.train:
            self._train(name, arm.recipe, [*arm.set, *self.changes])
        if arm.verifier is not None:
            self._train_verifier(name)
        if not eval_file.exists():
            self._command(name, self.commands(name)[-1])
        return read_result(eval_file, self.run_of(name))

    def commands(self, name: str) -> list[list[object]]:
        """The commands that train and evaluate an arm from the beginning."""
        arm, run = self.comparison.arms[name], self.run_of(name)
        config = [arm.recipe, *arm.set, *self.changes]
        changes = [*self.comparison.evaluate, *arm.evaluate]
        if arm.verifier is not None:
            changes.append(f"workflow.verifier={{run: {self._verifier_of(name).resolve()}}}")
        evaluate = [
            "eval",
            *([run] if run else config),
            *changes,
            "--no-baselines",
            "--json",
            self.out / f"{name}.json",
        ]
        trained = arm.recipe is not None and arm.train
        train = [["train", *config, f"name={name}", "--out", self.out]] if trained else self._verifier_commands(name)
        return [*train, evaluate]

    def _verifier_commands(self, name: str) -> list[list[object]]:
        arm, answers = self.comparison.arms[name], self.out / f"{name}.parquet"
        if arm.verifier is None or arm.of is None:
            return []
        of = self.comparison.arms[arm.of]
        assert of.recipe is not None
        seed = load_config(of.recipe, [*of.set, *self.changes]).seed
        options = [*shlex.split(arm.verifier), "--seed", seed, "--out", self._verifier_of(name)]
        collect: list[object] = ["verifier", "collect", self.run_of(name), "--out", answers]
        return [collect, ["verifier", "train", answers, *options]]

    def _verifier_of(self, name: str) -> Path:
        return self.out / f"{name}-verifier"

    def run_of(self, name: str) -> Path | None:
        """The run that an arm evaluates; None if it is untrained."""
        arm = self.comparison.arms[name]
        if arm.of is not None:
            return self.run_of(arm.of)
        return self.out / name if arm.train else None

    def _train(self, name: str, recipe: Path, changes: Sequence[str]) -> None:
        run = self.out / name
        latest = checkpoint.latest(run)
        config = load_config(recipe, changes)
        if latest is None:
            self._command(name, self.commands(name)[0])
        elif config.epochs is not None:  # a run that has done them ends at once
            self._command(name, ["train", "--resume", run, f"epochs={config.epochs}"])
        elif int(latest.name) < config.steps:
            self._command(name, ["train", "--resume", run, f"steps={config.steps}"])

    def _train_verifier(self, name: str) -> None:
        collect, train = self._verifier_commands(name)
        if not (self.out / f"{name}.parquet").exists():
            self._command(name, collect)
        if checkpoint.latest(self._verifier_of(name)) is None:
            self._command(name, train)
        elif not (self.out / f"{name}.json").exists():  # a verifier that is trained to its end ends at once
            self._command(name, ["verifier", "train", "--resume", self._verifier_of(name)])

    def _command(self, name: str, words: Sequence[object]) -> None:
        """Run a `coterie` command; its output goes to the arm's log."""
        line = [sys.executable, "-m", "coterie", *map(str, words)]
        show([Text(f"  {name}: coterie {' '.join(map(str, words))}")])
        log = self.out / f"{name}.log"
        with log.open("ab") as file:
            code = subprocess.run(line, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
        if code:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ArmFailed(f"{name}: coterie {words[0]} failed with exit code {code}; the end of {log}:\n{tail}")


def compare_seeds(file: Path, changes: tuple[str, ...], out: Path, jobs: int, seeds: int) -> None:
    """The comparison with seeds 0, 1, …, each in a folder of its own; then `out`/table.md of all, task by task."""
    folders = {seed: out / f"seed-{seed}" for seed in range(seeds)}
    found = [compare(file, (*changes, f"seed={seed}"), folder, jobs) for seed, folder in folders.items()]
    results, against = {name: mean_of([one[name] for one in found]) for name in found[0]}, load(file).against
    by_seed = {name: ", ".join(f"{mean([*one[name].scores.values()]):.3f}" for one in found) for name in results}
    rows = [{"arm": row["arm"], "by seed": by_seed[str(row["arm"])], **row} for row in rows_of(results, against)]
    write_atomic(out / "table.md", markdown(rows))
    write_atomic(
        out / "comparison.json", json.dumps(summary(f"Mean of {seeds} seeds", rows, []) | {"runs": []}, indent=1)
    )
    show([table(f"mean of {seeds} seeds", rows), Text(f"  {out}: table.md, and a folder of each seed")])


def mean_of(results: Sequence[Result]) -> Result:
    """The result of an arm over several seeds: means by task."""
    scores = {task: mean([one.scores[task] for one in results]) for task in results[0].scores}
    metrics = {name: mean([one.metrics[name] for one in results]) for name in ("tokens", "prompt_tokens")}
    return Result(scores, metrics, round(mean([one.trained_tokens for one in results])))


def compare(file: Path, changes: tuple[str, ...], out: Path, jobs: int) -> dict[str, Result]:
    """Run all arms, `jobs` at a time; write `out`/table.md, curves.png and report.html. Returns the results by arm."""
    comparison = load(file)
    out.mkdir(parents=True, exist_ok=True)
    runner = Runner(comparison, out, changes)
    # Arms with a recipe first: an arm `of` another needs that one's run.
    own = [name for name, arm in comparison.arms.items() if arm.recipe is not None]
    results = run_all(runner, own, jobs)
    results |= run_all(runner, [name for name in comparison.arms if name not in results], jobs)
    ordered = {name: results[name] for name in comparison.arms}
    runs = {name: out / name for name in own if comparison.arms[name].train}
    write_atomic(out / "curves.png", curves(runs))
    commands = [command for name in ordered for command in runner.commands(name)]
    rows = list(rows_of(ordered, comparison.against))
    write_atomic(out / "table.md", markdown(rows))
    found = summary(f"Comparison with {comparison.against}", rows, commands)
    write_atomic(out / "comparison.json", json.dumps(found | {"runs": list(runs)}, indent=1))  # for `coterie view`
    write_atomic(out / "report.html", page(found, runs))
    title = f"{len(ordered[comparison.against].scores)} held-out tasks"
    show([table(title, rows), Text(f"  {out}: table.md, curves.png and report.html")])
    return ordered


def run_all(runner: Runner, names: Sequence[str], jobs: int) -> dict[str, Result]:
    """The results of these arms. A failure does not stop the others; all failures are reported at the end."""
    with ThreadPoolExecutor(jobs) as pool:
        running = {name: pool.submit(runner.run, name) for name in names}
    failures = [error for future in running.values() if (error := future.exception()) is not None]
    if failures:
        others = "".join(f"\nalso failed: {str(error).splitlines()[0]}" for error in failures[1:])
        raise ArmFailed(f"{failures[0]}{others}") from failures[0]
    return {name: future.result() for name, future in running.items()}


def rows_of(results: Mapping[str, Result], against: str) -> Iterator[Row]:
    """One row per arm: its accuracy, its tokens, and the paired difference to the arm `against`."""
    base = results[against]
    for name, result in results.items():
        scores = [result.scores[task] for task in base.scores]
        low, high = bootstrap_interval(scores)
        row: Row = {
            "arm": name,
            "accuracy": f"{sum(scores) / len(scores):.3f} ({low:.3f}–{high:.3f})",
            "sampled / task": round(result.metrics["tokens"]),
            "prompt / task": round(result.metrics["prompt_tokens"]),
            "sampled in training": result.trained_tokens,
        }
        yield row if name == against else row | _difference(against, paired(list(base.scores.values()), scores))


def _difference(against: str, found: Paired) -> Row:
    interval = f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    return {f"{against} − arm": interval, "differ": f"{found.discordant:.0%}", "p": f"{found.p:.2g}"}


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
