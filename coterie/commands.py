"""What the commands do; `cli` has their words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

import rich
from rich.console import RenderableType
from rich.text import Text

from coterie import checkpoint, report
from coterie.alone import Asked, first_prompts, first_speaker, room
from coterie.build import base_policy, build
from coterie.check import dry_run, findings, tables
from coterie.config import Config, ConfigError, load
from coterie.config.problems import undotted
from coterie.config.schema import schema
from coterie.evaluate import Lone, Report, baselines, evaluate
from coterie.files import write_atomic
from coterie.finite import NotFinite
from coterie.models.errors import ModelError
from coterie.processes import LostProcess, joined
from coterie.replay import replay
from coterie.rollout import Seat, TooManyFailures
from coterie.seeds import stable_hash
from coterie.train import Run, train

# What a user can put right; the text says how. Anything else is a bug and keeps its traceback.
USER_ERRORS = (
    ConfigError,
    ModelError,
    checkpoint.NoCheckpoint,
    checkpoint.BadCheckpoint,
    TooManyFailures,
    NotFinite,
    FileExistsError,
    LostProcess,
)
REPLAYED = ("algorithm", "credit", "reward")
ON_RESUME = ("steps", "eval", "checkpoint", "log", "rollout")  # the rest would make it another run


def start(config_file: Path, changes: Sequence[str], out: Path, examples: int) -> None:
    """Train a new team."""
    if _holds_run(config_file):
        raise ConfigError(f"{config_file} is a run's folder; `coterie train --resume {config_file}` goes on with it")
    config = load(config_file, changes)
    with free(out / config.name) as folder:
        _train(config, folder, examples, resuming=False)


def go_on(folder: Path, changes: Sequence[str], examples: int) -> None:
    """Train on from a run's latest checkpoint."""
    for key, group in _changed(changes):
        if group not in ON_RESUME:
            allowed = ", ".join(group if group == "steps" else f"{group}.*" for group in ON_RESUME)
            raise ConfigError(f"{key}: cannot change when a run is resumed; {allowed} can")
    config = load(_config_of(folder), changes)
    done = int(checkpoint.find(folder).name) if (folder / "latest").is_file() else 0
    if done > config.steps:
        raise ConfigError(f"steps: {folder} has done {done} steps already, and {config.steps} are asked for")
    _train(config, folder, examples, resuming=True)


def measure(what: Path, changes: Sequence[str], which: str | None, compare: bool, json_file: Path | None) -> None:
    """Play the held-out tasks with a saved or an untrained team, and beside it with one agent."""
    run = _team(what, changes, which)
    name = f"team, step {run.step}" if what.is_dir() else "team, untrained"
    team = _held_out(run)
    alone = _alone(run, team) if compare else {}
    reports = {name: team} | (_baselines(run, team, alone) if compare else {})
    _show([report.evaluation(_amount(run), reports)])
    if compare:
        _show([*report.who_is_alone(run.config, alone), *report.unequal(reports)])
    _show([report.by_role(team.metrics), *report.first_failure(reports)])
    if json_file is not None:
        write_atomic(json_file, _as_json(what, run, reports))


def check(config_file: Path, changes: Sequence[str], tasks: int, repeats: int | None) -> bool:
    """Dry-run a config; whether training it can teach anything."""
    config = load(config_file, changes)
    with _loading():
        run = build(config, config_file, console=False)
    _show(report.plan(config))
    with rich.get_console().status("playing a few tasks"):
        dry = dry_run(run, tasks, repeats or min(config.episodes_per_task, 8))
    found = findings(dry)
    _show(tables.dry_run(dry))
    _show([tables.problems(found)])
    return all(finding.level != "error" for finding in found)


def judge_again(folder: Path, changes: Sequence[str], most: int, out: Path | None) -> None:
    """Judge a run's stored episodes under other rules, and show what changes."""
    for key, group in _changed(changes):
        if group not in REPLAYED:
            raise ConfigError(f"{key}: cannot change what was played; {', '.join(REPLAYED)} can be judged otherwise")
    config = load(_config_of(folder), changes)
    verdicts = list(replay(folder, config, rescore=any(group == "reward" for _, group in _changed(changes))))
    _show(report.verdicts(f"{folder} under {config.algorithm.name}, credit {config.credit.name}", verdicts, most))
    if out is not None:
        write_atomic(out, "".join(json.dumps(report.verdict(one)) + "\n" for one in verdicts))


def print_schema() -> None:
    print(json.dumps(schema(), indent=2))


def _holds_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


@contextmanager
def free(folder: Path) -> Iterator[Path]:
    """The folder itself, or demo-2, demo-3 … where there is one already; it is taken at once, for another run may be
    looking for one, and given back if the run does not begin."""
    names = chain([folder], (folder.with_name(f"{folder.name}-{n}") for n in count(2)))
    taken = joined().agree(next(filter(_taken, names)) if joined().first else folder)
    try:
        yield taken
    finally:
        if joined().first and not any(taken.iterdir()):
            taken.rmdir()


def _taken(folder: Path) -> bool:
    """Make a folder, unless there is one."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _config_of(folder: Path) -> Path:
    run = folder.parent.parent
    if folder.parent.name == "checkpoints" and _holds_run(run):
        raise ConfigError(f"{folder} is a checkpoint; `coterie eval {run} --checkpoint {folder.name}` plays it")
    if not _holds_run(folder):
        raise ConfigError(f"{folder} holds no run: there is no config.yaml in it")
    return folder / "config.yaml"


def _changed(changes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Of each override its key and the first name in it."""
    for change in changes:
        key = change.partition("=")[0].strip()
        yield key, (*undotted(key), "")[0]


def _team(what: Path, changes: Sequence[str], which: str | None) -> Run:
    """The team of a run's checkpoint, or the untrained one of a config."""
    is_run = what.is_dir()
    if which is not None and not is_run:
        raise ConfigError(f"--checkpoint {which}: {what} is a config, whose team is untrained; name a run's folder")
    for key, group in _changed(changes):
        if is_run and group == "policies":
            raise ConfigError(f"{key}: cannot change, because {what} has saved its policies as they are")
    config = load(_config_of(what) if is_run else what, changes)
    saved = checkpoint.find(what, which or "latest") if is_run else None
    with _loading():
        run = build(config, what, console=False, training=False, saved=saved)
        if saved:
            checkpoint.restore(run, saved)
    return run


@contextmanager
def _loading() -> Iterator[None]:
    rich.get_console().quiet = not joined().first
    with rich.get_console().status("loading the models"):
        try:
            yield
        except (ValueError, ImportError) as error:  # how parts complain of their options, their files, their packages
            raise ConfigError(str(error)) from error


def _train(config: Config, folder: Path, examples: int, resuming: bool) -> None:
    # Not where examples are asked for: they are of the team as it began.
    saved = checkpoint.find(folder) if resuming and not examples and (folder / "latest").is_file() else None
    with _loading():
        run = build(config, folder, saved=saved)
    _show(report.plan(config))
    before = _held_out(run) if examples else None  # fresh weights: a resumed run's are put in after this
    if resuming:
        checkpoint.resume(run)
        _show([Text(f"  going on at step {run.step}\n")])
    try:
        train(run)
    except KeyboardInterrupt:
        _show([report.next_steps(folder, run.step, config.steps)])
        raise
    finally:
        run.log.close()
    if before is not None and not run.stopping:
        after = _held_out(run)
        _show(report.dialogues(before, after, examples))
        _show([report.evaluation(_amount(run), {"untrained team": before, f"after {run.step} steps": after})])
    _show([report.next_steps(folder, run.step, config.steps)])


def _held_out(run: Run) -> Report:
    """As the training loop measures it, so that the numbers are the same."""
    seats, seed = run.seats(evaluating=True), stable_hash(run.config.seed, "eval")
    with rich.get_console().status(f"playing {_amount(run)}"):
        measured = evaluate(run.collector, run.held_out, run.config.eval.episodes_per_task, seats, seed)
    run.engine.clear()
    return measured


def _alone(run: Run, team: Report) -> dict[str, Lone]:
    """Models without their adapters, with room for as many tokens as the whole team: the last role's, asked the bare
    question, and that of the role that begins, asked what that role is asked, where this is not the same."""
    seats = run.seats(evaluating=True)
    most = room(team.episodes, seats)

    def lone(role: str, asked: Asked, stop: tuple[str, ...]) -> Lone:
        policy, sampling = seats[role].policy, replace(seats[role].sampling, max_tokens=most, stop=stop)
        return Lone(policy, Seat(base_policy(policy), sampling), asked, run.config.sampling_of(role).temperature)

    last, first = list(run.collector.workflow.roles)[-1], first_speaker(team.episodes)
    alone = {"single agent": lone(last, Asked(), run.config.sampling.stop)}
    prompts = first_prompts(team.episodes, first, run.collector.chats[seats[first].policy]) if first else {}
    if first and prompts:
        alone[f"single agent as {first}"] = lone(first, Asked(prompts), seats[first].sampling.stop)
    return alone


def _baselines(run: Run, team: Report, alone: Mapping[str, Lone]) -> dict[str, Report]:
    repeats, seed = run.config.eval.episodes_per_task, stable_hash(run.config.seed, "eval")
    with rich.get_console().status(f"playing {_amount(run)} with one agent"):
        return baselines(run.collector, run.held_out, repeats, team, alone, seed)


def _amount(run: Run) -> str:
    repeats = run.config.eval.episodes_per_task
    return f"{len(run.held_out)} held-out tasks" + (f" × {repeats} episodes" if repeats > 1 else "")


def _as_json(what: Path, run: Run, reports: dict[str, Report]) -> str:
    found = {name: one.metrics for name, one in reports.items()}
    size = {"tasks": len(run.held_out), "episodes_per_task": run.config.eval.episodes_per_task}
    return json.dumps({"of": str(what), "step": run.step, **size, "reports": found}, indent=2) + "\n"


def _show(parts: Iterable[RenderableType]) -> None:
    for part in parts:
        # A command to copy must not be broken at the 80 columns of a pipe.
        rich.get_console().print(part, soft_wrap=isinstance(part, Text))
