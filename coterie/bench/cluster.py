"""Speed of a Ray cluster: rollout with 1, 2, … workers, weight pushes, asynchronous against synchronous training."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import rich
import typer

from coterie.config import Config
from coterie.config.load import from_tree
from coterie.config.problems import Problems, Sources
from coterie.config.requirements import require_packages
from coterie.console import table
from coterie.files import read_rows
from coterie.statistics import mean
from coterie.types import Episode, Split, Task, Team

AT_ONCE = 4  # episodes that a worker plays at the same time
CORES = 0.1  # requested per worker, so that many fit on a small machine: they mostly wait


@dataclass(frozen=True)
class Waiting:
    """A role says one token, then the episode waits, as for a slow tool."""

    seconds: float
    roles: tuple[str, ...] = ("solver",)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        turn = await team.solver.say(task.prompt, max_tokens=1)
        await asyncio.sleep(self.seconds)
        return turn.text


@dataclass(frozen=True)
class Nothing:
    """Tasks without a reward."""

    size: int

    def tasks(self, split: Split) -> list[Task]:
        return [Task(f"{split}/{i}", "Say a word.", None) for i in range(self.size)]

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None: ...


def cluster(
    workers: Annotated[str, typer.Option(help="Numbers of rollout workers to measure, in order.")] = "1,2,4",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of a rollout.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds that each episode waits.")] = 1.0,
    address: Annotated[str, typer.Option(help="The address of the cluster, as in a config.")] = "local",
    model: Annotated[str, typer.Option(help="A model as in a config; all its weights are pushed.")] = "demo",
    ahead: Annotated[str, typer.Option(help="Values of cluster.ahead to train with, in order.")] = "0,1",
    steps: Annotated[int, typer.Option(min=2, help="Training steps per value of --ahead.")] = 6,
) -> None:
    """Play slow episodes on more and more workers: coterie bench cluster --workers 1,2,4,6

    Each worker plays four at once, so the ideal time is episodes × seconds / (4 × workers). Then train with the last
    number of workers, once per value of --ahead.
    """
    counts, lags = ([int(number) for number in numbers.split(",")] for numbers in (workers, ahead))

    def config(count: int, lag: int = 0) -> Config:
        return config_of(episodes, seconds, address, model, count, lag, steps)

    require_packages(config(1))
    with TemporaryDirectory() as folder:
        rows = [measured(config(count), Path(folder) / str(count)) for count in counts]
        rich.print(table(f"{episodes} episodes of {seconds:g} s, {AT_ONCE} at once per worker", rows))
        trained = [measured_training(config(counts[-1], lag), Path(folder) / f"ahead {lag}") for lag in lags]
    rich.print(table(f"{steps} training steps with {counts[-1]} workers, seconds per step after the first", trained))


def config_of(
    episodes: int, seconds: float, address: str, model: str, workers: int, ahead: int = 0, steps: int = 1
) -> Config:
    tree = {
        "steps": steps,
        "policies": {"solver": {"model": model, "lora": None}},
        "roles": {"solver": "solver"},
        "workflow": {"name": f"{__file__}:Waiting", "seconds": seconds},
        "env": {"name": f"{__file__}:Nothing", "size": episodes},
        "reward": "native",
        "algorithm": {"name": "ppo", "truncate": 2.0},
        "tasks_per_step": episodes,
        "episodes_per_task": 1,
        "rollout": {"concurrency": AT_ONCE},
        "eval": {"tasks": 0},
        "cluster": {
            "address": address,
            "rollout": {"workers": workers, "cpus": CORES},
            "learner": {"cpus": CORES},
            "chunk": 1,
            "ahead": ahead,
        },
    }
    return from_tree(tree, Problems(Sources("coterie bench cluster")), Path())


def measured(config: Config, folder: Path) -> dict[str, Any]:
    """The seconds of the second rollout, and of a push of all weights to all workers."""
    from coterie.cluster.driver import driving  # needs Ray, which is optional

    assert config.cluster is not None
    with driving(config) as driver:
        run = driver.build(config, folder, console=False)
        plan, workers = run.plan(0), config.cluster.rollout.workers
        run.collector.collect(plan.tasks[: AT_ONCE * workers], 1, plan.players, plan.seed)
        rollout = timed(lambda: run.collector.collect(plan.tasks, 1, plan.players, plan.seed))
        megabytes = sum(tensor.numel() * 4 for tensor in run.learners["solver"].weights().values()) / 1e6
        push = timed(lambda: driver.push_and_wait("solver"))
    seconds: float = config.workflow.options["seconds"]
    ideal = len(plan.tasks) * seconds / (AT_ONCE * workers)
    numbers = {"seconds": rollout, "ideal": ideal, "push, seconds": push, "weights, MB": megabytes}
    return {"workers": workers} | {name: f"{number:.2f}" for name, number in numbers.items()}


def measured_training(config: Config, folder: Path) -> dict[str, Any]:
    """The mean seconds of a step, and of its phases, after the first."""
    from coterie.cluster.driver import driving

    assert config.cluster is not None
    with driving(config) as driver:
        driver.train(driver.build(config, folder, console=False))
    rows = read_rows(folder / "metrics.jsonl")
    phases = {name: mean([row[f"seconds/{name}"] for row in rows[1:]]) for name in ("rollout", "update")}
    numbers = {"step": (rows[-1]["time"] - rows[0]["time"]) / (len(rows) - 1)} | phases
    return {"ahead": config.cluster.ahead} | {name: f"{number:.2f}" for name, number in numbers.items()}


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
