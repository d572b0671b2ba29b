"""MARFT's profile files: a JSON list of agents, each with a role, a system prompt and `with_answer`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import did_you_mean

# The prompts hold the markers of Qwen's chat template; here the model's own template writes them.
MARKER = re.compile(r"<\|im_start\|>\s*(?:system:?)?\s*|<\|im_end\|>")
IGNORED = ("device",)  # a run places its models itself


@dataclass(frozen=True)
class Profile:
    """One agent."""

    role: str  # its name
    prompt: str  # its system message; markers of a chat template are removed
    with_answer: bool = True  # its reply is an answer and is graded


def read_profiles(file: Path) -> tuple[Profile, ...]:
    """The agents of a profile file, in the order in which they speak."""
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file") from None
    except ValueError as error:
        raise ValueError(f"{file}: not JSON: {error}") from None
    if not isinstance(data, list) or not data:
        raise ValueError(f"{file}: a profile is a list of agents, each with role, prompt and with_answer")
    profiles = tuple(_profile(file, number, one) for number, one in enumerate(data, 1))
    check_profiles(profiles, f"{file}: ")
    return profiles


def check_profiles(profiles: tuple[Profile, ...], place: str = "") -> None:
    """Reject duplicate roles, and profiles in which no agent answers."""
    roles = [profile.role for profile in profiles]
    if twice := sorted({role for role in roles if roles.count(role) > 1}):
        raise ValueError(f"{place}agents: two agents have the role {twice[0]!r}; roles are distinct")
    if not any(profile.with_answer for profile in profiles):
        raise ValueError(f"{place}agents: no agent has with_answer: true, so there is no answer to grade")


def plain_prompt(text: str) -> str:
    r"""A prompt as a system message: without markers, and with `\boxed{}` for the doubled braces of a format string."""
    return MARKER.sub("", text).replace("{{}}", "{}").strip()


def _profile(file: Path, number: int, data: Any) -> Profile:
    place = f"{file}, agent {number}"
    if not isinstance(data, dict):
        raise ValueError(f"{place}: an agent is an object with role, prompt and with_answer")
    types = {"role": str, "prompt": str, "with_answer": bool}
    # Checked first; otherwise a misspelt key would be reported as a missing one.
    if unknown := [key for key in data if key not in (*types, *IGNORED)]:
        hint = did_you_mean(unknown[0], types)
        raise ValueError(f"{place}: unknown key {unknown[0]}; an agent has {', '.join(types)}{hint}")
    for key, kind in types.items():
        if not isinstance(data.get(key), kind):
            expected = "true or false" if kind is bool else "a text"
            raise ValueError(f"{place}: {key} must be {expected}, not {json.dumps(data.get(key))[:40]}")
    return Profile(data["role"], data["prompt"], data["with_answer"])
