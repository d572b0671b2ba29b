"""The first half of each command: load and check the config, before anything slow is imported.

Importing torch takes seconds, and most errors are in the config. `app` defines the arguments, `run` does the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

from coterie.config import Config, ConfigError, load
from coterie.config.load import to_tree
from coterie.config.problems import undotted
from coterie.config.schema import schema
from coterie.config.settings import MEMORY_KEYS
from coterie.errors import require_extra
from coterie.files import TEMPORARY, FolderInUse, WriteFailed, check_output_path, exclusive_lock, write_atomic
from coterie.learners.distributed import process_group
from coterie.training.user_files import changed_keys, manual_edits
from coterie.user_code import CODE_FOLDER

REPLAYED = ("algorithm", "credit", "reward")
# Other keys than these and MEMORY_KEYS would make it a different run.
ON_RESUME = ("steps", "epochs", "max_sampled_tokens", "eval", "checkpoint", "log", "rollout", "cluster", "sandbox")
MAY_DIFFER = (*ON_RESUME, "folder", "resume")  # of a run and a config that resumes it


def train(config_file: Path, changes: Sequence[str], out: Path | None, examples: int) -> int:
    """Train a new run, or with the key `resume` the one that its folder has; returns the exit code."""
    if _is_run(config_file):
        raise ConfigError(f"{config_file} is a run's folder; `coterie train --resume {config_file}` resumes it")
    config = load(config_file, changes)
    folder = run_folder(config, out)
    if config.resume and (found := _same_run(config, folder)) is not None:
        return _resume(*found, examples)
    from coterie.cli import run

    with new_run_folder(folder) as claimed:
        return run.train_run(config, claimed, examples, resuming=False)


def run_folder(config: Config, out: Path | None) -> Path:
    """Where a run goes: the config's own folder, or its name in `out`, by default runs."""
    if config.folder is None:
        return (out or Path("runs")) / config.name
    if out is not None:
        raise ConfigError(f"folder: {config.folder} is the run's folder, so --out {out} has no effect; remove one")
    return Path(config.folder).expanduser()


def _same_run(config: Config, folder: Path) -> tuple[Config, Path] | None:
    """The run of this config in the folder, or in folder-2, folder-3 …: its config, with new values of the keys that
    may change on resume, and its folder. Prints why other runs there are not resumed."""
    for place in takewhile(_is_run, _run_folders(folder)):
        saved = load(place / "config.yaml")
        changed = [key for key in changed_keys(place, saved, config) if not _is_among(key, MAY_DIFFER)]
        if not changed:
            return _with_new_values(saved, config), place
        listed = ", ".join(changed[:3]) + (" …" if changed[3:] else "")
        print(f"resume: not the run in {place}, which has other values of {listed}", file=sys.stderr)
    return None


def _with_new_values(saved: Config, config: Config) -> Config:
    """A run's config, with another config's values of the keys that may change on resume."""
    for group, name in map(undotted, MEMORY_KEYS):
        value = getattr(getattr(config, group), name)
        saved = replace(saved, **{group: replace(getattr(saved, group), **{name: value})})
    return replace(saved, **{key: getattr(config, key) for key in ON_RESUME})


def _is_among(key: str, groups: Sequence[str]) -> bool:
    """True for keys of these groups, and for those that change memory alone."""
    return undotted(key)[:1] in [(group,) for group in groups] or undotted(key) in map(undotted, MEMORY_KEYS)


def _run_folders(folder: Path) -> Iterator[Path]:
    """The folder of a run, and those that are taken if it is: demo, demo-2, demo-3 …"""
    return chain([folder], (folder.with_name(f"{folder.name}-{n}") for n in count(2)))


def resume(folder: Path, changes: Sequence[str], examples: int, which: str | None = None) -> int:
    """Resume a run from its latest checkpoint, or from `which`; returns the exit code."""
    for change, (key, _) in zip(changes, _changed(changes), strict=True):
        if not _is_among(key, ON_RESUME):
            _require_known(_config_of(folder), key, change)
            single = ("steps", "epochs", "max_sampled_tokens", "sandbox")
            groups = [group if group in single else f"{group}.*" for group in ON_RESUME]
            allowed = ", ".join([*groups, *MEMORY_KEYS])
            raise ConfigError(f"{key}: cannot change when a run is resumed; {allowed} can")
    return _resume(load(_config_of(folder), changes), folder, examples, which)


def _resume(config: Config, folder: Path, examples: int, which: str | None = None) -> int:
    if not os.access(folder, os.W_OK):
        raise WriteFailed(f"{folder} is read-only: a resumed run has to write to it")
    for line in manual_edits(folder) if process_group().is_main else ():
        print(line, file=sys.stderr)
    from coterie.cli import run

    with exclusive_lock(folder) if process_group().is_main else nullcontext():
        return run.train_run(config, folder, examples, resuming=True, which=which)


def evaluate(what: Path, changes: Sequence[str], which: str | None, compare: bool, json_file: Path | None) -> None:
    """Evaluate a saved or untrained team on the held-out tasks, beside single-agent baselines."""
    check_output_path("--json", json_file)
    config = team_config(what, changes, which)
    from coterie.cli import run

    run.evaluate_run(config, what, which, compare, json_file)


def team_config(what: Path, changes: Sequence[str], which: str | None) -> Config:
    """The config of a run's folder, whose checkpoint `which` will be loaded, or of a config file."""
    is_run = what.is_dir()
    if which is not None and not is_run:
        raise ConfigError(f"--checkpoint {which}: {what} is a config, whose team is untrained; pass a run's folder")
    for key, group in _changed(changes):
        if is_run and group == "policies":
            raise ConfigError(f"{key}: cannot change: the policies of {what} are saved")
    return load(_config_of(what) if is_run else what, changes)


def check(config_file: Path, changes: Sequence[str], tasks: int, repeats: int | None) -> bool:
    """Dry-run a config; returns whether training can work."""
    config = load(config_file, changes)
    from coterie.cli import run

    return run.check_config(config, config_file, tasks, repeats)


def replay(folder: Path, changes: Sequence[str], most: int, out: Path | None) -> None:
    """Recompute the advantages of a run's stored episodes under other rules, and show what changes."""
    groups = []
    for change, (key, group) in zip(changes, _changed(changes), strict=True):
        if group not in (*REPLAYED, "sandbox"):
            _require_known(_config_of(folder), key, change)
            raise ConfigError(f"{key}: cannot change in a replay; {', '.join(REPLAYED)} can")
        groups.append(group)
    check_output_path("--out", out)
    config = load(_config_of(folder), changes)
    from coterie.cli import run

    run.replay_run(config, folder, "reward" in groups, most, out)


def compare(file: Path, changes: Sequence[str], out: Path, jobs: int, seeds: int | None, only: Sequence[str]) -> None:
    """Train and evaluate the arms of a comparison."""
    from coterie.analysis import compare as comparison

    if seeds is None:
        comparison.compare(file, tuple(changes), out, jobs, tuple(only))
    else:
        comparison.compare_seeds(file, tuple(changes), out, jobs, seeds, tuple(only))


def serve(
    what: Path,
    changes: Sequence[str],
    which: str | None,
    host: str,
    port: int,
    key_file: Path | None,
    max_queue: int,
    max_body: int,
) -> None:
    """Serve a team over HTTP."""
    require_extra("serve", "starlette", "uvicorn")
    config = team_config(what, changes, which)
    for name in [name for name, policy in config.policies.items() if policy.human]:
        raise ConfigError(
            f"policies.{name}.human: a person plays in `coterie chat` and `coterie eval`, not in a server"
        )
    from coterie.serve import server
    from coterie.training.build import for_inference
    from coterie.web.server import read_key

    key = read_key(key_file, server.KEY_VARIABLE)
    server.serve(lambda: for_inference(what, which, config), host, port, key, max_queue, max_body)


def chat(what: Path, changes: Sequence[str], which: str | None, seed: int | None) -> None:
    """Talk to a team in the terminal."""
    config = team_config(what, changes, which)
    from coterie.cli.chat import Chat
    from coterie.training.build import for_inference

    Chat(for_inference(what, which, config), seed).run(input)


def export(folder: Path, out: Path, which: str | None, merge: bool, repository: str | None, public: bool) -> None:
    """Write a run's policies into a new folder, and upload it if there is a repository."""
    _config_of(folder)
    from coterie.training import export as exporting

    for name, path in exporting.export_policies(folder, out, which, merge).items():
        print(f"{name}: {path}")
    if repository is not None:
        print(f"pushed to {exporting.push(out, repository, public)}")


def pack(folder: Path, out: Path, part_bytes: int) -> None:
    """Pack a run's latest state into a new folder of small files."""
    _config_of(folder)
    from coterie.training.portable import pack as write_parts

    parts = write_parts(folder, out, part_bytes)
    size = sum(part.stat().st_size for part in parts) / 1e6
    print(f"{out}: {size:.1f} MB in {len(parts)} parts; `coterie train --resume {out}` unpacks it and goes on")


def unpacked(folder: Path, out: Path | None) -> Path:
    """The run's folder; a packed run is extracted into `out` first."""
    if not (folder / "portable.json").is_file():
        return folder
    from coterie.training.portable import unpack

    return unpack(folder, out or Path("runs"))


def import_marft(
    system: str, file: Path, out: Path | None, model: str, horizon: int, data: Path | None, load_path: Path | None
) -> None:
    """Write a recipe from a MARFT profile."""
    if system != "marft":
        raise ConfigError(f"import {system}: marft can be imported; graphs of siiRL are trained as they are")
    from coterie.compat.marft.recipe import recipe

    target = out or Path(f"{file.stem}.yaml")
    if target.exists():
        raise FileExistsError(f"{target} exists already; name another file with --out")
    if data is not None and not data.is_file():
        raise ConfigError(f"--data {data}: there is no such file")
    try:
        text = recipe(file, model, horizon, data and data.resolve(), load_path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    write_atomic(target, text)
    print(f"{target}: `coterie check {target}`, then `coterie train {target}`")


def print_schema() -> None:
    print(json.dumps(schema(), indent=2))


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


@contextmanager
def new_run_folder(folder: Path) -> Iterator[Path]:
    """A new, locked folder for a run: `folder`, or demo-2, demo-3 … if it has a run. Removed if the run does not start.

    An empty folder, left by a run that was killed before it started, is reused.
    """
    names = _run_folders(folder)
    with ExitStack() as locks:
        first = process_group().is_main
        claimed = process_group().broadcast(next(name for name in names if _claim(name, locks)) if first else folder)
        try:
            yield claimed
        finally:
            if first and _is_empty(claimed):
                shutil.rmtree(claimed)


def _claim(folder: Path, locks: ExitStack) -> bool:
    """Create and lock a folder; False if it is not empty or is locked."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot create a run here: {error.strerror}") from error
    with ExitStack() as lock:
        try:
            lock.enter_context(exclusive_lock(folder))
        except (FolderInUse, FileNotFoundError):  # another run is starting in it, or has just removed it
            return False
        if _is_empty(folder):
            locks.push(lock.pop_all())
            return True
    return False


def _is_empty(folder: Path) -> bool:
    """True if a folder has nothing but leftovers of a run that was killed before it wrote its config."""
    return folder.is_dir() and all(path.name.startswith((TEMPORARY, CODE_FOLDER)) for path in folder.iterdir())


def _config_of(folder: Path) -> Path:
    run = folder.parent.parent
    if folder.parent.name == "checkpoints" and _is_run(run):
        raise ConfigError(f"{folder} is a checkpoint; `coterie eval {run} --checkpoint {folder.name}` evaluates it")
    if _is_empty(folder):
        again = "`coterie train CONFIG` starts a new one in this folder"
        raise ConfigError(f"{folder} is empty: its run ended before its first step; {again}")
    if not _is_run(folder):
        raise ConfigError(f"{folder} is not a run: it has no config.yaml")
    return folder / "config.yaml"


def _require_known(config_file: Path, key: str, change: str) -> None:
    """Raise a ConfigError with a similar key if there is none of this name. Only a key that is not written is loaded:
    a new value of another one, such as another algorithm, may not fit the rest."""
    tree: Any = to_tree(load(config_file))
    for name in undotted(key):
        if not isinstance(tree, dict) or name not in tree:
            load(config_file, [change])
            return
        tree = tree[name]


def _changed(changes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The key of each override, and the first name in it."""
    for change in changes:
        key = change.partition("=")[0].strip()
        yield key, (*undotted(key), "")[0]
