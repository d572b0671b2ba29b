"""The second half of each command: build the run, then train, evaluate, check or replay it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import rich
from rich.text import Text

from coterie.analysis.replay import replay
from coterie.check import dry_run, findings
from coterie.cli import check_tables, report
from coterie.config import Config, ConfigError
from coterie.config.requirements import require_packages
from coterie.console import show
from coterie.evaluation.evaluate import Report, accuracy_by_task, evaluate, reward_by_task
from coterie.evaluation.single_agent_baseline import (
    SingleAgent,
    SingleAgentWorkflow,
    baselines,
    first_prompts,
    first_speaker,
    max_team_tokens,
)
from coterie.files import WriteFailed, read_rows, write_atomic
from coterie.learners.distributed import process_group
from coterie.rewards.verifier import uses_verifier
from coterie.rollout.agent import Player
from coterie.seeds import stable_hash
from coterie.training import checkpoint
from coterie.training.build import build
from coterie.training.log import OutOfMemory
from coterie.training.loop import Run, train
from coterie.training.models import base_policy


def train_run(config: Config, folder: Path, examples: int, resuming: bool, which: str | None = None) -> int:
    """Train a new run, or resume one from the checkpoint `which`; returns the exit code: 128 + n after signal n."""
    try:
        return _train(config, folder, examples, resuming, which)
    except WriteFailed as error:
        if not (folder / "config.yaml").is_file():
            raise
        then = (
            "starts from the beginning" if checkpoint.latest(folder) is None else "resumes from the latest checkpoint"
        )
        raise WriteFailed(f"{error}; when this is fixed, `coterie train --resume {folder}` {then}") from error
    except OutOfMemory as error:
        if (saved := checkpoint.latest(folder)) is None:
            raise
        then = f"`coterie train --resume {folder} learning.microbatch_tokens=N` continues after step {int(saved.name)}"
        keys = "learning.checkpointing and engine.rows may change there too, engine.context may not"
        raise OutOfMemory(f"{error}\n{then}; {keys}") from error


def _train(config: Config, folder: Path, examples: int, resuming: bool, which: str | None) -> int:
    latest = checkpoint.latest(folder) if which is None else checkpoint.find(folder, which)
    read_rows(folder / "metrics.jsonl")  # reports damaged rows before the models load
    done = int(latest.name) if latest else 0
    if config.epochs is None:
        _check_steps(config, folder, done)
    # With --examples the untrained weights are evaluated first, so the build loads no checkpoint.
    with session(config) as (build_run, train_to_end):
        with _loading():
            run = build_run(config, folder, saved=None if examples else latest)
        _check_steps(run.config, folder, done)
        show(report.plan(run.config))
        return _train_built(run, train_to_end, examples, resuming, which)


@contextmanager
def session(config: Config) -> Iterator[tuple[Callable[..., Run], Callable[[Run], None]]]:
    """How a run is built and trained: in this process, or on the config's cluster, which is left at the end."""
    if config.cluster is None:
        yield build, train
        return
    require_packages(config)
    from coterie.cluster.driver import driving  # needs Ray, which is optional

    with driving(config) as driver:
        yield driver.build, driver.train


def _train_built(
    run: Run, train_to_end: Callable[[Run], None], examples: int, resuming: bool, which: str | None
) -> int:
    config, folder = run.config, run.folder  # with the steps of its epochs
    before = _held_out(run) if examples else None  # with fresh weights: a resumed run's are restored below
    if resuming:
        rewound = checkpoint.resume(run, which)
        moved = f"; later steps were moved to {rewound}" if rewound else ""
        show([Text(f"  resuming after step {run.step}{moved}\n")])
    try:
        train_to_end(run)
    except KeyboardInterrupt:  # the second signal
        run.stopping = True
    finally:
        run.log.close()
    show(report.learning_curve(run.log.evaluations, "verifier's " if uses_verifier(config.reward) else ""))
    if before is not None and not run.stopping:
        after = _held_out(run)
        show(report.dialogues(before, after, examples))
        show([report.evaluation(_amount(run), {"untrained team": before, f"after {run.step} steps": after})])
    show([report.next_steps(folder, config, run.step, run.finished)])
    return 128 + run.signal if run.stopping else 0


def _check_steps(config: Config, folder: Path, done: int) -> None:
    if done > config.steps:
        key = "steps" if config.epochs is None else f"epochs={config.epochs}"
        raise ConfigError(f"{key}: {folder} has done {done} steps already, and {config.steps} are requested")


def evaluate_run(config: Config, what: Path, which: str | None, compare: bool, json_file: Path | None) -> None:
    """Evaluate the team of a run's checkpoint, or the untrained one of a config."""
    run = load_team(config, what, which)
    name = f"team, step {run.step}" if what.is_dir() else "team, untrained"
    team = _held_out(run)
    single_agents = _single_agents(run, team) if compare else {}
    reports = {name: team} | (_baselines(run, team, single_agents) if compare else {})
    show([report.evaluation(_amount(run), reports)])
    if compare:
        show([*report.single_agents(run.config, single_agents, reports), *report.unequal(reports)])
    show([report.by_role(team.metrics), *report.first_failure(reports)])
    if json_file is not None:
        write_atomic(json_file, _as_json(what, run, reports))


def load_team(config: Config, what: Path, which: str | None) -> Run:
    """The team of a run's checkpoint, `latest` by default, or the untrained one of a config; not for training."""
    saved = checkpoint.find(what, which or "latest") if what.is_dir() else None
    with _loading():
        run = build(config, what, console=False, training=False, saved=saved)
        if saved:
            checkpoint.restore(run, saved)
    return run


def check_config(config: Config, config_file: Path, tasks: int, repeats: int | None) -> bool:
    """Dry-run a config; returns whether training can work."""
    with _loading():
        run = build(config, config_file, console=False)
    config = run.config  # with the steps of its epochs
    show(report.plan(config))
    with rich.get_console().status("playing a few tasks"):
        dry = dry_run(run, tasks, repeats or min(config.episodes_per_task, 8))
    found = findings(dry)
    show(check_tables.dry_run(dry))
    show([check_tables.problems(found)])
    return all(finding.level != "error" for finding in found)


def replay_run(config: Config, folder: Path, rescore: bool, most: int, out: Path | None) -> None:
    """Recompute the advantages of a run's stored episodes under other rules, and show what changes."""
    turns = list(replay(folder, config, rescore))
    show(report.replayed_turns(f"{folder} under {config.algorithm.name}, credit {config.credit.name}", turns, most))
    if out is not None:
        write_atomic(out, "".join(json.dumps(report.replayed_turn(one)) + "\n" for one in turns))


@contextmanager
def _loading() -> Iterator[None]:
    rich.get_console().quiet = not process_group().is_main
    with rich.get_console().status("loading the models"):
        try:
            yield
        except (ValueError, ImportError) as error:  # raised by parts for their options, files and packages
            raise ConfigError(str(error)) from error


def _held_out(run: Run) -> Report:
    """Evaluate as the training loop does, with the same seed, so that the numbers agree."""
    if not run.held_out:
        raise ConfigError("eval.tasks: is 0, so there is nothing to evaluate; set it, and env.test to held-out rows")
    players, seed = run.players(evaluating=True), stable_hash(run.config.seed, "eval")
    with rich.get_console().status(f"playing {_amount(run)}"):
        evaluated = evaluate(run.collector, run.held_out, run.config.eval.episodes_per_task, players, seed)
    run.engine.clear()
    return evaluated


def _single_agents(run: Run, team: Report) -> dict[str, SingleAgent]:
    """Single-agent baselines: models without their adapters, with the token budget of the whole team.

    The model of the last role gets the bare question. The model of the first speaker gets that role's prompt, if it is
    not the bare question.
    """
    players = run.players(evaluating=True)
    most = max_team_tokens(team.episodes, players)

    def agent(role: str, workflow: SingleAgentWorkflow, stop: tuple[str, ...]) -> SingleAgent:
        policy, sampling = players[role].policy, replace(players[role].sampling, max_tokens=most, stop=stop)
        player = Player(base_policy(policy), sampling)
        return SingleAgent(policy, player, workflow, run.config.sampling_of(role).temperature)

    own = [role for role in run.collector.workflow.roles if players[role].policy in run.collector.chats]
    if not own:
        return {}  # endpoints or people play all roles
    last, first = own[-1], first_speaker(team.episodes)
    first = first if first in own else None
    agents = {"single agent": agent(last, SingleAgentWorkflow(), run.config.sampling.stop)}
    prompts = first_prompts(team.episodes, first, run.collector.chats[players[first].policy]) if first else {}
    if first and prompts:
        agents[f"single agent as {first}"] = agent(first, SingleAgentWorkflow(prompts), players[first].sampling.stop)
    return agents


def _baselines(run: Run, team: Report, agents: Mapping[str, SingleAgent]) -> dict[str, Report]:
    repeats, seed = run.config.eval.episodes_per_task, stable_hash(run.config.seed, "eval")
    if not agents:
        return {}
    with rich.get_console().status(f"playing {_amount(run)} with one agent"):
        return baselines(run.collector, run.held_out, repeats, team, agents, seed)


def _amount(run: Run) -> str:
    repeats = run.config.eval.episodes_per_task
    return f"{len(run.held_out)} held-out tasks" + (f" × {repeats} episodes" if repeats > 1 else "")


def _as_json(what: Path, run: Run, reports: dict[str, Report]) -> str:
    found = {name: one.metrics for name, one in reports.items()}
    by_task = {
        "accuracy": {name: accuracy_by_task(one.episodes) for name, one in reports.items()},
        "reward": {name: reward_by_task(one.episodes) for name, one in reports.items()},
    }
    size = {"tasks": len(run.held_out), "episodes_per_task": run.config.eval.episodes_per_task}
    content = {"of": str(what), "step": run.step, **size, "reports": found, **by_task}
    return json.dumps(content, indent=2) + "\n"
