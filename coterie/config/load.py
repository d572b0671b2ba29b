"""Load a config: a YAML file and `a.b=1` overrides → `Config`; and dump it as YAML again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coterie.config import yamltree
from coterie.config.problems import ConfigError, Problems, Sources, shortened
from coterie.config.problems import Path as Keys
from coterie.config.reader import Reader
from coterie.config.registry import foreign_format, function_name
from coterie.config.settings import ENCODER, PARTS, Config
from coterie.config.verl_names import replace_estimator
from coterie.errors import did_you_mean
from coterie.types import Part, Weighted
from coterie.user_code import resolve_copies

LONGEST_NAME = 200  # bytes; file systems allow 255, and a suffix such as `-2` may follow


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, or a graph in siiRL's format; each override, like `policies.solver.lr=1e-4`, goes over it."""
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder without a run; a config is a YAML file, as recipes/demo.yaml")
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; `coterie init NAME` copies a recipe that comes with Coterie")
    problems = Problems(Sources(str(path)))
    text = read_text(path)
    if (foreign := foreign_format(text)) is not None:
        tree, overrides = foreign.translate(text, path, overrides, problems)
    else:
        tree = yamltree.read(text, problems)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys to values")
    tree.setdefault("name", path.stem)
    return from_tree(tree, problems, path.parent, overrides)


def read_text(path: Path) -> str:
    """A file's text; a ConfigError with the line if it is not UTF-8."""
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not UTF-8 on line {line}: the byte 0x{data[error.start]:02x}") from error


def from_tree(tree: dict[str, Any], problems: Problems, folder: Path, overrides: Sequence[str] = ()) -> Config:
    """A config from plain data; relative paths in it are looked up in `folder` first."""
    for key in tree:  # a mapping from Python has no line numbers
        problems.sources.places.setdefault((key,), problems.sources.file)
    _expand_short_forms(tree)
    for override in overrides:
        yamltree.override(tree, override, problems)
        _expand_short_forms(tree)
    replace_estimator(tree, problems)
    _drop_misspelt_roles(tree, problems)
    _choose_length(tree, problems)
    tree = resolve_copies(tree, folder)
    config = Reader(problems, folder).value(Config, tree, ())
    problems.raise_any()
    for path, message in _unusable_names(config):
        problems.add(path, message)
    problems.raise_any()
    return replace(config, _sources=problems.sources)


def dump(config: Config) -> str:
    """The whole config as YAML, defaults included; loading it gives an equal config."""
    return yamltree.write(to_tree(config))


def to_tree(config: Config) -> dict[str, Any]:
    """The whole config as plain data, with only one of steps and epochs. The default encoder is left out: if it were
    written, `check_conflicts` would reject it for algorithms without a mixer, for example in a replay."""
    tree: dict[str, Any] = to_plain(config)
    del tree["epochs" if config.epochs is None else "steps"]
    if config.encoder == ENCODER:
        del tree["encoder"]
    return tree


def _expand_short_forms(tree: dict[str, Any]) -> None:
    """`workflow: chain` and `solver: small` become mappings, so that overrides can set keys inside."""
    for part in PARTS:
        if part in tree and isinstance(tree[part], str):
            tree[part] = {"name": tree[part]}
    if "roles" in tree and isinstance(tree["roles"], dict):
        roles = tree["roles"].items()
        tree["roles"] = {name: {"policy": role} if isinstance(role, str) else role for name, role in roles}
    for policy in tree["policies"].values() if isinstance(tree.get("policies"), dict) else ():
        if isinstance(policy, dict) and (policy.get("api") or policy.get("human")):  # has no weights
            policy.setdefault("frozen", True)
            policy.setdefault("lora", None)


def _drop_misspelt_roles(tree: dict[str, Any], problems: Problems) -> None:
    """Report roles that exist only in overrides and have no policy: their names are misspelt."""
    roles, sources = tree.get("roles"), problems.sources
    if not isinstance(roles, dict) or sources.is_overridden(("roles",)):
        return
    added = {name: role for name, role in roles.items() if sources.is_overridden(("roles", name))}
    for name in [name for name, role in added.items() if isinstance(role, dict) and "policy" not in role]:
        del roles[name]
        others = ", ".join(roles) or "none"
        problems.add(("roles", name), f"no such role; there is {others}{did_you_mean(name, roles)}")


def _choose_length(tree: dict[str, Any], problems: Problems) -> None:
    """A run has `steps` or `epochs`; the one on the command line replaces the other in the file."""
    if tree.get("epochs") is None or "steps" not in tree:
        return
    overridden = [key for key in ("steps", "epochs") if problems.sources.is_overridden((key,))]
    if len(overridden) != 1:
        problems.add(("epochs",), f"a run has either epochs or steps, and steps is {tree['steps']}; remove one of them")
        return
    other = "epochs" if overridden == ["steps"] else "steps"
    del tree[other]
    problems.sources.forget((other,))


def to_plain(value: Any) -> Any:
    """A value in types that YAML has: dataclasses become mappings, functions their names."""
    if inspect.isfunction(value) or inspect.isclass(value):
        return function_name(value)
    if isinstance(value, Part):
        weight = {"weight": value.weight} if isinstance(value, Weighted) else {}
        return {"name": value.name, **weight, **to_plain(value.options)}
    if is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.name[0] != "_"}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _unusable_names(config: Config) -> Iterator[tuple[Keys, str]]:
    """Names that cannot be folder names: of the run, and of policies and critics, which are folders of a checkpoint.
    Checked on loading, because the run's folder is created right after."""
    if not config.name.strip(" .") or any(character in config.name for character in "/\\"):
        yield ("name",), f"{config.name!r} cannot be the name of the run's folder"
    elif not config.name.isprintable():
        yield ("name",), f"{config.name!r} has an unprintable character and cannot be the name of the run's folder"
    folders = [("name", config.name)]
    folders += [(group, quote(name, safe=" ")) for group in ("policies", "critics") for name in getattr(config, group)]
    for key, folder in folders:
        if (length := len(folder.encode())) > LONGEST_NAME:
            yield (key,), f"{shortened(folder, 20)!r} names a folder and has {length} bytes; at most {LONGEST_NAME}"
