"""Removes texts from a report and keeps the numbers: strings under keys that are not allow-listed are blanked."""

from __future__ import annotations

from typing import Any

# Allow-list: keys whose strings are names and states, never prompts or replies.
KEPT = frozenset(
    {"state", "version", "algorithm", "workflow", "kind", "kinds", "id", "task", "role", "policy", "roles", "policies"}
    | {"stop", "left_out", "fork", "origin", "error_kind", "episode", "turns", "name", "more"}
)
TEXTS = frozenset({"answer", "meta", "prompt", "messages", "text", "content", "error", "cause"})  # whatever their type


def redacted(value: Any, key: str = "") -> Any:
    """The same structure without texts. A config keeps names and numbers, and loses prompts and paths."""
    if key in TEXTS and value is not None and not (key == "prompt" and isinstance(value, int)):
        return _blank(value)
    if key == "config":
        return {name: _setting(setting) for name, setting in value.items()}
    if key == "key":  # of a group: a task, a role, a round
        return value
    if key == "tokens" and isinstance(value, list):
        return ["▒" * max(1, len(text)) for text in value]
    if isinstance(value, dict):
        return {name: redacted(inner, name if isinstance(name, str) else "") for name, inner in value.items()}
    if isinstance(value, list):
        return [redacted(inner, key) for inner in value]
    return _blank(value) if isinstance(value, str) and key not in KEPT else value


def _blank(value: Any) -> Any:
    if isinstance(value, list):
        return []
    return {} if isinstance(value, dict) else f"▒ {len(str(value))} characters"


def _setting(value: Any) -> Any:
    return _blank(value) if isinstance(value, str) and ("/" in value or " " in value) else value
