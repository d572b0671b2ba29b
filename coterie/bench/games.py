"""Trains every algorithm on every game with a known optimum: how close it gets, how reliably, and how fast."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import rich
import torch
import typer
import yaml

from coterie.config import load
from coterie.config.registry import BUILTIN
from coterie.console import table
from coterie.files import read_rows, write_atomic
from coterie.games.measure import final_exploitability, team_reward
from coterie.games.model import tiny_player
from coterie.games.plot import plot
from coterie.games.setups import GAMES, config_of, plays
from coterie.models.progress_bars import no_progress_bars
from coterie.training.build import build
from coterie.training.loop import Run, train

QUICK = ("naming", "additive")


@dataclass(frozen=True)
class Result:
    """The result of one run and its time."""

    game: str
    algorithm: str
    seed: int
    reached: float  # the share of the optimal reward; in zero-sum games the exploitability of the last policy
    average: float | None  # in zero-sum games: the exploitability of the pool of snapshots, one of which plays a game
    seconds: float
    rewards: list[float]  # the team's mean reward in each training step


def games(
    algorithms: Annotated[str, typer.Option(metavar="A,B", help="Algorithms to train.  [default: all]")] = "",
    games: Annotated[str, typer.Option(metavar="X,Y", help=f"Games to play: {', '.join(GAMES)}.  [default: all]")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per algorithm and game.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed of the naming game and of the additive one.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = os.cpu_count() or 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write games.json and games.svg there, for `coterie view`.")
    ] = None,
) -> None:
    """Train every algorithm on games with a known optimum: coterie bench games --algorithms grpo,happo"""
    names = _chosen(games, list(QUICK) if quick else list(GAMES), list(GAMES), "game")
    by = _chosen(algorithms, list(BUILTIN["algorithm"]), list(BUILTIN["algorithm"]), "algorithm")
    pairs = [(g, a) for g in names for a in by if plays(a, g) and (algorithms or a in (GAMES[g].only or by))]
    if not pairs:
        learns_nothing = "share one reward or one chain of credit, and in a zero-sum game the team's reward is 0"
        raise typer.BadParameter(f"no algorithm plays {', '.join(names)}: {', '.join(by)} {learns_nothing}")
    todo = [(game, algorithm, seed) for game, algorithm in pairs for seed in range(1 if quick else seeds)]
    results = play_all(todo, jobs)
    rich.print(*tables(results))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / "games.json", json.dumps([asdict(result) for result in results], indent=1))
        write_atomic(out / "games.svg", plot([(r.game, r.algorithm, r.reached, _is_zero_sum(r)) for r in results]))


def _chosen(text: str, default: list[str], known: list[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text else default
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"no {what} is called {name!r}; there are {', '.join(known)}")
    return names


def play_all(todo: Sequence[tuple[str, str, int]], jobs: int) -> list[Result]:
    """One result per run, in order; one thread per process, because two on a core are slower than one."""
    # In /dev/shm if possible: a step is shorter than flushing its files to disk.
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="coterie-games-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        if jobs == 1:
            return [play(*run, scratch) for run in todo]
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_die_with_parent) as pool:
            return [run.result() for run in [pool.submit(play, *run, scratch) for run in todo]]
    finally:
        shutil.rmtree(scratch)


def _die_with_parent() -> None:
    """End a worker when the bench ends, even if the bench is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def play(game: str, algorithm: str, seed: int, scratch: Path) -> Result:
    """Train one algorithm on one game, with a fresh tiny model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    started = time.perf_counter()
    run = started_run(game, algorithm, seed, scratch / f"{game}-{algorithm}-{seed}")
    with no_progress_bars():
        train(run)
    run.log.close()
    torch.set_num_threads(threads)
    if run.stopping:  # an interrupted run is no result
        raise KeyboardInterrupt
    reached, average = final_exploitability(run) if GAMES[game].zero_sum else (team_reward(run), None)
    rewards = [round(row["reward"], 4) for row in read_rows(run.log.metrics_path) if "reward" in row]
    return Result(game, algorithm, seed, reached, average, time.perf_counter() - started, rewards)


def started_run(game: str, algorithm: str, seed: int, folder: Path) -> Run:
    """A run that has not taken a step yet."""
    folder.mkdir(parents=True)
    model = tiny_player(folder / "model", seed, head=2.0 if GAMES[game].zero_sum else 0.25)
    (folder / "config.yaml").write_text(yaml.safe_dump(config_of(game, algorithm, model, seed), sort_keys=False))
    return build(load(folder / "config.yaml"), folder / "run", console=False)


def _is_zero_sum(result: Result) -> bool:
    return GAMES[result.game].zero_sum


def tables(results: Sequence[Result]) -> list[Any]:
    """One table of team rewards, one of exploitability in zero-sum games."""
    team = [result for result in results if not _is_zero_sum(result)]
    versus = [result for result in results if _is_zero_sum(result)]
    shown = [table("share of the optimum: mean (worst seed), seconds a run", _rows(team))] if team else []
    title = "exploitability of the last policy and of the pool: mean (worst seed), seconds a run"
    return [*shown, table(title, _rows(versus))] if versus else shown


def _rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    by: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        by.setdefault(result.algorithm, {}).setdefault(result.game, []).append(result)
    return [{"algorithm": a, **{g: _cell(some) for g, some in row.items()}} for a, row in by.items()]


def _cell(results: Sequence[Result]) -> str:
    reached, pools = [r.reached for r in results], [r.average for r in results if r.average is not None]
    seconds = f"{mean(r.seconds for r in results):.1f}s"
    if not pools:
        return f"{mean(reached):.3f} ({min(reached):.3f})  {seconds}"
    return f"{mean(reached):.3f} ({max(reached):.3f})  pool {mean(pools):.3f} ({max(pools):.3f})  {seconds}"
