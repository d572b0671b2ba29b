"""Writes docs/algorithms.md from what the algorithms say of themselves: `python docs/make_algorithms.py`."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from coterie.config.registry import BUILTIN, Kind, find

PAGE = Path(__file__).with_name("algorithms.md")

HEAD = """# Algorithms

Made by `python docs/make_algorithms.py` from the classes themselves. An algorithm is chosen by its name,
`algorithm: grpo`, or by name and options, `algorithm: {name: grpo, drop_constant: true}`. What all of them share:
`clip`, `clip_high`, `dual_clip`, `level` (a ratio per token or per turn), `epochs`, `minibatches`, `reduce`, `kl`,
`kl_in`, `entropy`, `stop_kl`, `truncate`, `max_stale`, `rotate`, `rotate_turns`; `coterie schema` has their types.
How well they do on games with a known optimum: [games](games.md).
"""

CREDIT = """# Credit

What each turn earned, out of the team's reward and the turns' own, is decided before the algorithm sees it:
`credit: team`, or another of these.
"""


def page() -> str:
    parts = [HEAD, *_entries("algorithm"), CREDIT, *_entries("credit")]
    return "\n".join(parts)


def _entries(kind: Kind) -> list[str]:
    named = {name: find(kind, name) for name in BUILTIN[kind]}
    return [_entry(name, cls, _parent(cls, list(named.values()))) for name, cls in named.items()]


def _parent(cls: Any, named: list[Any]) -> Any:
    """The nearest ancestor that has an entry, else what all share."""
    ancestors = [ancestor for ancestor in cls.__mro__[1:] if is_dataclass(ancestor)]
    return next((ancestor for ancestor in ancestors if ancestor in named), ancestors[-1])


def _entry(name: str, cls: Any, parent: Any) -> str:
    text = inspect.cleandoc(cls.__doc__)
    own = ", ".join(_option(field) for field in _own_fields(cls, parent))
    return f"## {name}\n\n{text}\n" + (f"\nOptions of its own, or with another default: {own}.\n" if own else "")


def _own_fields(cls: Any, parent: Any) -> list[Field[Any]]:
    """Fields that its parent does not have, or has with another default."""
    before = {f.name: f.default for f in fields(parent)}
    return [f for f in fields(cls) if f.name not in before or before[f.name] != f.default]


def _option(field: Field[Any]) -> str:
    plain = field.default is not MISSING
    shown = list(field.default) if isinstance(field.default, tuple) else field.default
    words = {None: "null", True: "true", False: "false"}
    value = words[shown] if shown is None or isinstance(shown, bool) else shown
    return f"`{field.name}: {value}`" if plain else f"`{field.name}`"


if __name__ == "__main__":
    PAGE.write_text(page())
