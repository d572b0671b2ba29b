"""Shared by the viewer's server and `coterie report`: the files of the page, and a run's data as JSON."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from coterie.view.run_folder import KINDS, RunFolder

STATIC = {file.name: file.read_bytes() for file in (resources.files(__package__) / "static").iterdir()}


def describe(run: RunFolder) -> Any:
    """A run's page, without its metrics."""
    names = {section: run.names(section) for section in ("roles", "policies")}
    stored = {kind: run.steps(kind) for kind in KINDS}
    return run.summary() | names | {"config": run.config(), "stored": stored, "reliability": run.reliability()}


def dumped(value: Any) -> str:
    """JSON without NaN and infinities, which it does not have, and in ASCII: texts may have lone surrogates."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    """NaN and infinities become null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
