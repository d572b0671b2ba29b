"""`coterie compare`: trains and evaluates every arm of a comparison, and compares them with paired tests.

Each arm is a separate run in a separate process, so that arms can run in parallel, and a comparison that was killed
continues where it stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from coterie.analysis.compare_report import curves, forest, page, summary
from coterie.analysis.compare_table import (
    Result,
    differences,
    markdown,
    require_same_tasks,
    rows_of,
    rows_over_seeds,
)
from coterie.analysis.comparison import VERIFIER_MEMORY, Arm, Comparison, Score, load
from coterie.config import Config
from coterie.config.load import to_tree
from coterie.config.problems import undotted
from coterie.config.settings import MEMORY_KEYS
from coterie.console import show, table
from coterie.errors import UserError, did_you_mean
from coterie.files import flat, read_rows, reporting_write_errors, require_same_plan, write_atomic
from coterie.statistics import mean
from coterie.training import checkpoint
from coterie.workflows.verified_vote import READ

SAME_REWARD = 0.005  # a mean reward this close to the accuracy is not worth a remark


def read_result(eval_file: Path, run: Path | None, score: Score = "accuracy") -> Result:
    """An arm's evaluation, as written by `coterie eval --json`, and the tokens sampled in training."""
    try:
        evaluation = json.loads(eval_file.read_text())
        ((name, metrics),) = evaluation["reports"].items()
        metrics["prompt_tokens"] += metrics.get(READ, 0.0)
        scores = evaluation[score][name]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArmFailed(f"{eval_file}: not an evaluation, or damaged; delete it to evaluate again") from error
    return Result(scores, metrics, sampled_in(run) if run else 0)


def sampled_in(run: Path, until: int | None = None) -> int:
    """The number of tokens that a run sampled in training, or in its steps up to and including `until`."""
    rows = [row for row in read_rows(run / "metrics.jsonl") if until is None or row["step"] <= until]
    return int(sum(row.get("sampled_tokens", 0) for row in rows))


def memory_changes(config: Config) -> list[str]:
    """The memory options that a config sets, as overrides of a resumed run: it may have run out of memory."""
    written = {key: undotted(key) for key in MEMORY_KEYS if config.sources.is_written(undotted(key))}
    return [f"{key}={json.dumps(getattr(getattr(config, group), name))}" for key, (group, name) in written.items()]


class ArmFailed(UserError):
    """A command of an arm failed."""


@dataclass(frozen=True)
class Runner:
    """Runs the commands of arms in a folder with their runs, logs and evaluations."""

    comparison: Comparison
    out: Path
    changes: tuple[str, ...]  # overrides for every arm, such as seed=1
    only: tuple[str, ...] = ()  # the arms to run; none named: all
    jobs: int = 1  # arms that run in parallel and share the cores

    @property
    def arms(self) -> dict[str, Arm]:
        """The requested arms, those that are evaluated already, and the arms that any of these are `of`."""
        arms = self.comparison.arms
        named = {name for name in arms if not self.only or name in self.only or self.eval_file(name).exists()}
        needed = named | {arm.of for name, arm in arms.items() if name in named}
        return {name: arm for name, arm in arms.items() if name in needed}

    def eval_file(self, name: str) -> Path:
        return self.out / f"{name}.json"

    def run(self, name: str) -> Result:
        """An arm's result; existing runs and evaluations are reused, if they were made with the same options."""
        arm, eval_file = self.comparison.arms[name], self.eval_file(name)
        what, remedy = f"arm {name} in {self.out}", "give another --out"
        may_differ = [f"{when}{key}" for key in MEMORY_KEYS for when in ("", "evaluate ")]
        may_differ.append(f"verifier {VERIFIER_MEMORY}")
        require_same_plan(self.out / f"{name}.plan.json", self._plan(name), what, remedy, may_differ)
        if not eval_file.exists():
            if arm.recipe is not None and arm.train:
                self._train(name)
            if arm.verifier is not None:
                self._train_verifier(name)
            self._command(name, self.commands(name)[-1])
        return read_result(eval_file, self.run_of(name), self.comparison.score)

    def _plan(self, name: str) -> dict[str, object]:
        """Everything that an arm's result depends on."""
        trained = flat(to_tree(self.comparison.training_config(name, self.changes)))
        evaluated = flat(to_tree(self.comparison.evaluation_config(name, self.changes)))
        changed = {f"evaluate {key}": value for key, value in evaluated.items() if trained.get(key) != value}
        arm = self.comparison.arms[name]
        verifier = {f"verifier {option}": value for option, value in arm.verifier_values.items()}
        return trained | changed | verifier | {"verifier": arm.verifier is not None, "shared": arm.shared}

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
            self.eval_file(name),
        ]
        trained = arm.recipe is not None and arm.train
        train = [["train", *config, f"name={name}", "--out", self.out]] if trained else self._verifier_commands(name)
        return [*train, evaluate]

    def _verifier_commands(self, name: str) -> list[list[object]]:
        arm, answers = self.comparison.arms[name], self.out / f"{name}.parquet"
        if arm.verifier is None or arm.of is None:
            return []
        seed = self.comparison.training_config(name, self.changes).seed
        run = self.run_of(name)
        options = [*arm.verifier_options, "--seed", seed, "--out", self._verifier_of(name)]
        options += ["--adapter", run] if arm.shared else []
        collect: list[object] = ["verifier", "collect", run, "--out", answers]
        return [collect, ["verifier", "train", answers, *options]]

    def _verifier_of(self, name: str) -> Path:
        return self.out / f"{name}-verifier"

    def run_of(self, name: str) -> Path | None:
        """The run that an arm evaluates; None if it is untrained."""
        arm = self.comparison.arms[name]
        if arm.of is not None:
            return self.run_of(arm.of)
        return self.out / name if arm.train else None

    def trained_runs(self) -> dict[str, Path]:
        """The run folders of the trained arms, of those that exist."""
        trained = [name for name, arm in self.comparison.arms.items() if arm.recipe is not None and arm.train]
        return {name: self.out / name for name in trained if (self.out / name).is_dir()}

    def _train(self, name: str) -> None:
        run = self.out / name
        latest = checkpoint.latest(run)
        config = self.comparison.training_config(name, self.changes)
        resume = ["train", "--resume", run]
        if not (run / "config.yaml").is_file():
            self._command(name, self.commands(name)[0])
        elif latest is None:  # it failed before its first checkpoint
            self._command(name, [*resume, *memory_changes(config)])
        elif config.max_sampled_tokens is not None and sampled_in(run, int(latest.name)) >= config.max_sampled_tokens:
            return  # counted up to the checkpoint: a run may have been killed while it wrote the last one
        elif config.epochs is not None:  # a run that has done them ends at once
            self._command(name, [*resume, f"epochs={config.epochs}", *memory_changes(config)])
        elif int(latest.name) < config.steps:
            self._command(name, [*resume, f"steps={config.steps}", *memory_changes(config)])

    def _train_verifier(self, name: str) -> None:
        collect, train = self._verifier_commands(name)
        if not (self.out / f"{name}.parquet").exists():
            self._command(name, collect)
        if not (self._verifier_of(name) / "config.yaml").is_file():
            self._command(name, train)
        else:  # a verifier that is trained to its end ends at once
            tokens = self.comparison.arms[name].verifier_values.get(VERIFIER_MEMORY)
            memory = [] if tokens is None else [VERIFIER_MEMORY, tokens]
            self._command(name, ["verifier", "train", "--resume", self._verifier_of(name), *memory])

    def _command(self, name: str, words: Sequence[object]) -> None:
        """Run a `coterie` command; its output goes to the arm's log."""
        line = [sys.executable, "-m", "coterie", *map(str, words)]
        show([Text(f"  {name}: coterie {' '.join(map(str, words))}")])
        log = self.out / f"{name}.log"
        with log.open("ab") as file:
            code = subprocess.run(
                line, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment(self.jobs)
            ).returncode
        if code:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ArmFailed(f"{name}: coterie {words[0]} failed with exit code {code}; the end of {log}:\n{tail}")


def environment(jobs: int) -> dict[str, str]:
    """The environment of an arm's process. Parallel arms get an equal share of the cores as threads: two arms with a
    thread per core each would take ten times as long as one after the other."""
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    return threads | os.environ


def compare_seeds(
    file: Path, changes: tuple[str, ...], out: Path, jobs: int, seeds: int, only: tuple[str, ...] = ()
) -> None:
    """Run the comparison with seeds 0, 1, …, each in its own folder; write `out`/table.md over all seeds and tasks."""
    folders = {seed: out / f"seed-{seed}" for seed in range(seeds)}
    runners = [open_runner(file, (*changes, f"seed={seed}"), folder, jobs, only) for seed, folder in folders.items()]
    found, comparison = run_all(runners, jobs), runners[0].comparison
    against, score = comparison.against, comparison.score
    if not all(against in one for one in found):
        return
    by_seed = {f"{against} of seed {seed}": one[against] for seed, one in enumerate(found)}
    require_same_tasks(by_seed, f"{against} of seed 0")
    in_order = [{name: one[name] for name in comparison.arms if name in one} for one in found]
    rows = list(rows_over_seeds(in_order, against, score))
    write_atomic(out / "table.md", markdown(rows))
    runs = [runner.trained_runs() for runner in runners]
    names = [name for name in comparison.arms if any(name in one for one in runs)]
    write_atomic(
        out / "curves.png", curves({name: [one[name] for one in runs if name in one] for name in names}, score)
    )
    write_atomic(out / "differences.png", forest(differences(in_order, against), _axis(comparison)))
    write_atomic(
        out / "comparison.json", json.dumps(summary(f"Mean of {seeds} seeds", rows, []) | {"runs": []}, indent=1)
    )
    show(
        [
            table(f"mean of {seeds} seeds", rows),
            Text(f"  {out}: table.md, curves.png, differences.png, and a folder of each seed"),
        ]
    )


def compare(
    file: Path, changes: tuple[str, ...], out: Path, jobs: int, only: tuple[str, ...] = ()
) -> dict[str, Result]:
    """Run the arms, `jobs` at a time; write `out`/table.md, pictures and report.html. Returns the results by arm."""
    return run_all([open_runner(file, changes, out, jobs, only)], jobs)[0]


def open_runner(file: Path, changes: tuple[str, ...], out: Path, jobs: int, only: tuple[str, ...]) -> Runner:
    """Check the configs of all arms, and make the folder."""
    comparison = load(file)
    for name in only:
        if name not in comparison.arms:
            there = ", ".join(comparison.arms)
            raise UserError(f"--arms: {file} has no arm {name}; there is {there}{did_you_mean(name, comparison.arms)}")
    comparison.check_configs(changes)
    if out.is_file():
        raise UserError(f"--out {out}: is a file; a comparison writes a folder")
    with reporting_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    return Runner(comparison, out, changes, only, jobs)


def run_all(runners: Sequence[Runner], jobs: int) -> list[dict[str, Result]]:
    """Run the arms of all runners, `jobs` at a time, and write each runner's table when its arms are done.

    The first runner's arms go first. An arm `of` another waits until that one is evaluated. If an arm fails, only the
    arms `of` it are skipped; its error is raised at the end.
    """
    results: list[dict[str, Result]] = [{} for _ in runners]
    failures: list[BaseException] = []
    waiting = [job for number, runner in enumerate(runners) for job in _arms_of(runner, number, None)]
    running: dict[Future[Result], Job] = {}
    with ThreadPoolExecutor(jobs) as pool:
        while waiting or running:
            while waiting and len(running) < jobs:
                job = waiting.pop(0)
                running[pool.submit(runners[job.runner].run, job.name)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done = running.pop(future)
                if (error := future.exception()) is not None:
                    failures.append(error)
                else:
                    results[done.runner][done.name] = future.result()
                    waiting = sorted([*waiting, *_arms_of(runners[done.runner], done.runner, done.name)])
                if done.runner not in {job.runner for job in (*waiting, *running.values())}:
                    try:
                        _write(runners[done.runner], results[done.runner])
                    except (UserError, OSError) as error:  # other runners go on
                        failures.append(error)
    if failures:
        others = "".join(f"\nalso failed: {str(error).splitlines()[0]}" for error in failures[1:])
        raise ArmFailed(f"{failures[0]}{others}") from failures[0]
    return results


class Job(NamedTuple):
    """An arm that can run now; jobs run in the order of these fields."""

    runner: int
    is_of: bool  # True if it is `of` another; arms that others may wait for go first
    place: int  # of the arm in the comparison's file
    name: str


def _arms_of(runner: Runner, number: int, of: str | None) -> list[Job]:
    """The arms `of` another; of None: those that wait for no other."""
    arms = enumerate(runner.arms.items())
    return [Job(number, of is not None, place, name) for place, (name, arm) in arms if arm.of == of]


def _write(runner: Runner, results: Mapping[str, Result]) -> None:
    """Write and show the table of the evaluated arms, if the arm that they are compared with is among them."""
    comparison, out = runner.comparison, runner.out
    ordered = {name: results[name] for name in comparison.arms if name in results}
    if comparison.against not in ordered:
        show([Text(f"  {out}: no table yet, {comparison.against} has not been evaluated")])
        return
    require_same_tasks(ordered, comparison.against)
    runs = {name: run for name, run in runner.trained_runs().items() if name in ordered}
    write_atomic(out / "curves.png", curves({name: [run] for name, run in runs.items()}, comparison.score))
    write_atomic(out / "differences.png", forest(differences([ordered], comparison.against), _axis(comparison)))
    commands = [command for name in ordered for command in runner.commands(name)]
    rows = list(rows_of(ordered, comparison.against, comparison.score))
    write_atomic(out / "table.md", markdown(rows))
    found = summary(f"Comparison with {comparison.against}", rows, commands)
    write_atomic(out / "comparison.json", json.dumps(found | {"runs": list(runs)}, indent=1))  # for `coterie view`
    write_atomic(out / "report.html", page(found, runs))
    title = f"{len(ordered[comparison.against].scores)} held-out tasks"
    written = Text(f"  {out}: table.md, curves.png, differences.png and report.html")
    show([table(title, rows), *_graded(comparison, ordered), written])


def _axis(comparison: Comparison) -> str:
    return f"{comparison.score}: {comparison.against} − arm"


def _graded(comparison: Comparison, results: Mapping[str, Result]) -> list[Text]:
    """A remark if accuracies, the shares of full rewards, hide that rewards are graded."""
    rewards = {name: result.metrics.get("reward", 0.0) for name, result in results.items()}
    alike = all(abs(rewards[name] - mean([*result.scores.values()])) < SAME_REWARD for name, result in results.items())
    if alike or comparison.score == "reward":
        return []
    means = ", ".join(f"{name} {reward:.3f}" for name, reward in rewards.items())
    return [Text(f"  mean rewards: {means}; `score: reward` in the comparison's file compares them")]
