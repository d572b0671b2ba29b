"""`coterie compare`: trains and evaluates every arm of a comparison, and compares them with paired tests.

Each arm is a separate run in a separate process, so that arms can run in parallel, and a comparison that was killed
continues where it stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from coterie.analysis.compare_report import curves, page, summary
from coterie.analysis.compare_table import Result, markdown, mean_of, require_same_tasks, rows_of
from coterie.analysis.comparison import Comparison, load
from coterie.config import Config
from coterie.config.load import to_tree
from coterie.config.problems import undotted
from coterie.config.settings import MEMORY_KEYS
from coterie.console import show, table
from coterie.errors import UserError
from coterie.files import flat, read_rows, require_same_plan, write_atomic
from coterie.statistics import mean
from coterie.training import checkpoint
from coterie.workflows.verified_vote import READ


def read_result(eval_file: Path, run: Path | None) -> Result:
    """An arm's evaluation, as written by `coterie eval --json`, and the tokens sampled in training."""
    try:
        evaluation = json.loads(eval_file.read_text())
        ((name, metrics),) = evaluation["reports"].items()
        metrics["prompt_tokens"] += metrics.get(READ, 0.0)
        scores = evaluation["accuracy"][name]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArmFailed(f"{eval_file}: not an evaluation, or damaged; delete it to evaluate again") from error
    return Result(scores, metrics, sampled_in(run) if run else 0)


def sampled_in(run: Path) -> int:
    """The number of tokens that a run sampled in training."""
    return int(sum(row.get("sampled_tokens", 0) for row in read_rows(run / "metrics.jsonl")))


def memory_changes(config: Config) -> list[str]:
    """Overrides of a resumed run: a comparison that ran out of memory may go on with other values of these keys."""
    written = {key: undotted(key) for key in MEMORY_KEYS if config.sources.is_written(undotted(key))}
    return [f"{key}={json.dumps(getattr(getattr(config, group), name))}" for key, (group, name) in written.items()]


class ArmFailed(UserError):
    """A command of an arm failed."""


@dataclass(frozen=True)
class Runner:
    """Runs the commands of arms in a folder with their runs, logs and evaluations."""

    comparison: Comparison
    out: Path
    changes: tuple[str, ...]  # to every arm, such as seed=1

    def run(self, name: str) -> Result:
        """An arm's result; existing runs and evaluations are reused, if they were made with the same options."""
        arm = self.comparison.arms[name]
        eval_file = self.out / f"{name}.json"
        what, remedy = f"arm {name} in {self.out}", "give another --out"
        may_differ = [f"{when}{key}" for key in MEMORY_KEYS for when in ("", "evaluate ")]
        require_same_plan(self.out / f"{name}.plan.json", self._plan(name), what, remedy, may_differ)
        if arm.recipe is not None and arm.train:
            self._train(name)
        if arm.verifier is not None:
            self._train_verifier(name)
        if not eval_file.exists():
            self._command(name, self.commands(name)[-1])
        return read_result(eval_file, self.run_of(name))

    def _plan(self, name: str) -> dict[str, object]:
        """Everything that an arm's result depends on."""
        trained = flat(to_tree(self.comparison.training_config(name, self.changes)))
        evaluated = flat(to_tree(self.comparison.evaluation_config(name, self.changes)))
        changed = {f"evaluate {key}": value for key, value in evaluated.items() if trained.get(key) != value}
        return trained | changed | {"verifier": self.comparison.arms[name].verifier}

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
        seed = self.comparison.training_config(name, self.changes).seed
        options = [*arm.verifier_options, "--seed", seed, "--out", self._verifier_of(name)]
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

    def _train(self, name: str) -> None:
        run = self.out / name
        latest = checkpoint.latest(run)
        config = self.comparison.training_config(name, self.changes)
        if latest is None:
            self._command(name, self.commands(name)[0])
        elif config.max_sampled_tokens is not None and sampled_in(run) >= config.max_sampled_tokens:
            return
        elif config.epochs is not None:  # a run that has done them ends at once
            self._command(name, ["train", "--resume", run, f"epochs={config.epochs}", *memory_changes(config)])
        elif int(latest.name) < config.steps:
            self._command(name, ["train", "--resume", run, f"steps={config.steps}", *memory_changes(config)])

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
    require_same_tasks(results, against)
    by_seed = {name: ", ".join(f"{mean([*one[name].scores.values()]):.3f}" for one in found) for name in results}
    rows = [{"arm": row["arm"], "by seed": by_seed[str(row["arm"])], **row} for row in rows_of(results, against)]
    write_atomic(out / "table.md", markdown(rows))
    write_atomic(
        out / "comparison.json", json.dumps(summary(f"Mean of {seeds} seeds", rows, []) | {"runs": []}, indent=1)
    )
    show([table(f"mean of {seeds} seeds", rows), Text(f"  {out}: table.md, and a folder of each seed")])


def compare(file: Path, changes: tuple[str, ...], out: Path, jobs: int) -> dict[str, Result]:
    """Run all arms, `jobs` at a time; write `out`/table.md, curves.png and report.html. Returns the results by arm."""
    comparison = load(file)
    comparison.check_configs(changes)
    if out.is_file():
        raise UserError(f"--out {out}: is a file; a comparison writes a folder")
    out.mkdir(parents=True, exist_ok=True)
    runner = Runner(comparison, out, changes)
    results, failures = run_all(runner, jobs)
    ordered = {name: results[name] for name in comparison.arms if name in results}
    if comparison.against in ordered:
        _write(runner, ordered)
    if failures:
        others = "".join(f"\nalso failed: {str(error).splitlines()[0]}" for error in failures[1:])
        raise ArmFailed(f"{failures[0]}{others}") from failures[0]
    return ordered


def _write(runner: Runner, ordered: Mapping[str, Result]) -> None:
    """Write and show the table of the arms that were evaluated."""
    comparison, out = runner.comparison, runner.out
    require_same_tasks(ordered, comparison.against)
    trained = [name for name, arm in comparison.arms.items() if arm.recipe is not None and arm.train]
    runs = {name: out / name for name in trained if name in ordered}
    write_atomic(out / "curves.png", curves(runs))
    commands = [command for name in ordered for command in runner.commands(name)]
    rows = list(rows_of(ordered, comparison.against))
    write_atomic(out / "table.md", markdown(rows))
    found = summary(f"Comparison with {comparison.against}", rows, commands)
    write_atomic(out / "comparison.json", json.dumps(found | {"runs": list(runs)}, indent=1))  # for `coterie view`
    write_atomic(out / "report.html", page(found, runs))
    title = f"{len(ordered[comparison.against].scores)} held-out tasks"
    show([table(title, rows), Text(f"  {out}: table.md, curves.png and report.html")])


def run_all(runner: Runner, jobs: int) -> tuple[dict[str, Result], list[BaseException]]:
    """The results of all arms, and the errors of those that failed, which stop no other arm but those `of` them.

    Arms with a recipe come first: an arm `of` another needs that one's run.
    """
    results: dict[str, Result] = {}
    failures: list[BaseException] = []
    arms = runner.comparison.arms
    for names in (
        [name for name, arm in arms.items() if arm.of is None],
        [name for name, arm in arms.items() if arm.of is not None],
    ):
        ready = [name for name in names if arms[name].of is None or arms[name].of in results]
        with ThreadPoolExecutor(jobs) as pool:
            running = {name: pool.submit(runner.run, name) for name in ready}
        failures += [error for future in running.values() if (error := future.exception()) is not None]
        results |= {name: future.result() for name, future in running.items() if future.exception() is None}
    return results, failures
