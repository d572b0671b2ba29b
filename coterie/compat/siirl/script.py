"""What siiRL takes on its command line: told as overrides, or in the graph's own `global_config`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.compat.siirl.config_sheet import Given
from coterie.compat.siirl.read import GLOBALS
from coterie.compat.siirl.settings import COMPOUND, GROUPS, SETTINGS, TEAM, full_name
from coterie.config import yamltree
from coterie.config.hints import hint_for
from coterie.config.problems import Path, Problems, did_you_mean, undotted

Script = dict[str, Given]


def split(overrides: Sequence[str], problems: Problems) -> tuple[Script, list[str]]:
    """siiRL's parameters among the overrides, by their whole names, and the rest, which are keys of ours."""
    script: Script = {}
    rest: list[str] = []
    for override in overrides:
        key = override.partition("=")[0].strip()
        name = full_name(key, (TEAM,))
        if name is None and undotted(key)[:1] not in {(group,) for group in GROUPS}:
            rest.append(override)
        elif name is None:
            problems.found.append(f"{key}: {unknown(key)} (override {override})")
        else:
            script |= _parsed(name, key, override, problems)
    return script, rest


def in_globals(globals: Mapping[str, Any], problems: Problems) -> Script:
    """The parameters that stand in `global_config` under siiRL's own groups; the rest of it is for `!Ref` alone."""
    script: Script = {}
    for path, value in leaves(globals, ()):
        key = ".".join(path)
        if full_name(key, ()) is not None:
            script[key] = Given(value, problems.sources.place((GLOBALS, *path)))
        elif undotted(key)[0] in GROUPS:
            problems.add((GLOBALS, *path), unknown(key))
    return script


def unknown(key: str) -> str:
    """What to say of a parameter that means nothing here."""
    hint = hint_for(undotted(key))
    near = did_you_mean(key, [*SETTINGS, *COMPOUND]) or did_you_mean(f"{TEAM}{key}", [*SETTINGS, *COMPOUND])
    return (
        f"unknown key; {hint}" if hint else f"unknown key: siiRL has no such parameter, or it means nothing here{near}"
    )


def leaves(data: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Every value in nested mappings, with the keys that lead to it."""
    for key, item in data.items():
        if isinstance(item, dict) and item:
            yield from leaves(item, (*path, key))
        else:
            yield (*path, key), item


def _parsed(name: str, key: str, override: str, problems: Problems) -> Script:
    tree: dict[str, Any] = {}
    yamltree.override(tree, override, problems)
    value: Any = tree
    for part in undotted(key):
        value = value[part] if isinstance(value, dict) and part in value else None
    return {name: Given(value, f"override {override}")}
