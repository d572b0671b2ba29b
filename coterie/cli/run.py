"""What happens once a config is known to be sound: a team is trained, measured, tried out, or judged again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import rich
from rich.console import RenderableType
from rich.text import Text

from coterie.analysis.replay import replay
from coterie.check import dry_run, findings
from coterie.cli import check_tables, report
from coterie.config import Config, ConfigError
from coterie.evaluation.evaluate import Report, SingleAgent, baselines, evaluate, right_by_task
from coterie.evaluation.single_agent_baseline import SingleAgentWorkflow, first_prompts, first_speaker, max_team_tokens
from coterie.files import WriteFailed, read_rows, write_atomic
from coterie.learners.distributed import process_group
from coterie.rollout.agent import Player
from coterie.seeds import stable_hash
from coterie.training import checkpoint
from coterie.training.build import base_policy, build
from coterie.training.loop import Run, train


def train_run(config: Config, folder: Path, examples: int, resuming: bool, which: str | None = None) -> int:
    """Train a new team, or one that has a checkpoint, from `which` of them; the exit code, 128 + its number after a
    signal."""
    try:
        return _train(config, folder, examples, resuming, which)
    except WriteFailed as error:
        if not (folder / "config.yaml").is_file():
            raise
        then = f"when that is put right, `coterie train --resume {folder}` goes on from the latest checkpoint"
        raise WriteFailed(f"{error}; {then}") from error


def _train(config: Config, folder: Path, examples: int, resuming: bool, which: str | None) -> int:
    latest = checkpoint.latest(folder) if which is None else checkpoint.find(folder, which)
    read_rows(folder / "metrics.jsonl")  # what is wrong in it is told before the models load
    done = int(latest.name) if latest else 0
    if done > config.steps:
        raise ConfigError(f"steps: {folder} has done {done} steps already, and {config.steps} are asked for")
    # Not where examples are asked for: they are of the team as it began.
    with _loading():
        run = build(config, folder, saved=None if examples else latest)
    _show(report.plan(config))
    before = _held_out(run) if examples else None  # fresh weights: a resumed run's are put in after this
    if resuming:
        rewound = checkpoint.resume(run, which)
        moved = f"; later steps were moved to {rewound}" if rewound else ""
        _show([Text(f"  resuming after step {run.step}{moved}\n")])
    try:
        train(run)
    except KeyboardInterrupt:  # the second signal
        run.stopping = True
    finally:
        run.log.close()
    _show(report.learning_curve(run.log.evaluations))
    if before is not None and not run.stopping:
        after = _held_out(run)
        _show(report.dialogues(before, after, examples))
        _show([report.evaluation(_amount(run), {"untrained team": before, f"after {run.step} steps": after})])
    _show([report.next_steps(folder, run.step, config.steps)])
    return 128 + run.signal if run.stopping else 0


def evaluate_run(config: Config, what: Path, which: str | None, compare: bool, json_file: Path | None) -> None:
    """Play the held-out tasks with the team of a run's checkpoint, or with an untrained one where `which` is None."""
    saved = checkpoint.find(what, which) if which else None
    with _loading():
        run = build(config, what, console=False, training=False, saved=saved)
        if saved:
            checkpoint.restore(run, saved)
    name = f"team, step {run.step}" if saved else "team, untrained"
    team = _held_out(run)
    alone = _alone(run, team) if compare else {}
    reports = {name: team} | (_baselines(run, team, alone) if compare else {})
    _show([report.evaluation(_amount(run), reports)])
    if compare:
        _show([*report.who_is_alone(run.config, alone), *report.unequal(reports)])
    _show([report.by_role(team.metrics), *report.first_failure(reports)])
    if json_file is not None:
        write_atomic(json_file, _as_json(what, run, reports))


def check_config(config: Config, config_file: Path, tasks: int, repeats: int | None) -> bool:
    """Dry-run a config; whether training it can teach anything."""
    with _loading():
        run = build(config, config_file, console=False)
    _show(report.plan(config))
    with rich.get_console().status("playing a few tasks"):
        dry = dry_run(run, tasks, repeats or min(config.episodes_per_task, 8))
    found = findings(dry)
    _show(check_tables.dry_run(dry))
    _show([check_tables.problems(found)])
    return all(finding.level != "error" for finding in found)


def replay_run(config: Config, folder: Path, rescore: bool, most: int, out: Path | None) -> None:
    """Judge a run's stored episodes under other rules, and show what changes."""
    verdicts = list(replay(folder, config, rescore))
    _show(report.verdicts(f"{folder} under {config.algorithm.name}, credit {config.credit.name}", verdicts, most))
    if out is not None:
        write_atomic(out, "".join(json.dumps(report.verdict(one)) + "\n" for one in verdicts))


@contextmanager
def _loading() -> Iterator[None]:
    rich.get_console().quiet = not process_group().is_main
    with rich.get_console().status("loading the models"):
        try:
            yield
        except (ValueError, ImportError) as error:  # how parts complain of their options, their files, their packages
            raise ConfigError(str(error)) from error


def _held_out(run: Run) -> Report:
    """As the training loop measures it, so that the numbers are the same."""
    players, seed = run.players(evaluating=True), stable_hash(run.config.seed, "eval")
    with rich.get_console().status(f"playing {_amount(run)}"):
        measured = evaluate(run.collector, run.held_out, run.config.eval.episodes_per_task, players, seed)
    run.engine.clear()
    return measured


def _alone(run: Run, team: Report) -> dict[str, SingleAgent]:
    """Models without their adapters, with room for as many tokens as the whole team: the last role's, asked the bare
    question, and that of the role that begins, asked what that role is asked, where this is not the same."""
    players = run.players(evaluating=True)
    most = max_team_tokens(team.episodes, players)

    def lone(role: str, asked: SingleAgentWorkflow, stop: tuple[str, ...]) -> SingleAgent:
        policy, sampling = players[role].policy, replace(players[role].sampling, max_tokens=most, stop=stop)
        return SingleAgent(
            policy, Player(base_policy(policy), sampling), asked, run.config.sampling_of(role).temperature
        )

    last, first = list(run.collector.workflow.roles)[-1], first_speaker(team.episodes)
    alone = {"single agent": lone(last, SingleAgentWorkflow(), run.config.sampling.stop)}
    prompts = first_prompts(team.episodes, first, run.collector.chats[players[first].policy]) if first else {}
    if first and prompts:
        alone[f"single agent as {first}"] = lone(first, SingleAgentWorkflow(prompts), players[first].sampling.stop)
    return alone


def _baselines(run: Run, team: Report, alone: Mapping[str, SingleAgent]) -> dict[str, Report]:
    repeats, seed = run.config.eval.episodes_per_task, stable_hash(run.config.seed, "eval")
    with rich.get_console().status(f"playing {_amount(run)} with one agent"):
        return baselines(run.collector, run.held_out, repeats, team, alone, seed)


def _amount(run: Run) -> str:
    repeats = run.config.eval.episodes_per_task
    return f"{len(run.held_out)} held-out tasks" + (f" × {repeats} episodes" if repeats > 1 else "")


def _as_json(what: Path, run: Run, reports: dict[str, Report]) -> str:
    found = {name: one.metrics for name, one in reports.items()}
    right = {name: right_by_task(one.episodes) for name, one in reports.items()}
    size = {"tasks": len(run.held_out), "episodes_per_task": run.config.eval.episodes_per_task}
    return json.dumps({"of": str(what), "step": run.step, **size, "reports": found, "right": right}, indent=2) + "\n"


def _show(parts: Iterable[RenderableType]) -> None:
    for part in parts:
        # A command to copy must not be broken at the 80 columns of a pipe.
        rich.get_console().print(part, soft_wrap=isinstance(part, Text))
