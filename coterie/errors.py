"""Errors that the command line prints without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec


class UserError(Exception):
    """An error that the user can fix; its text says how. Any other exception is a bug."""


class StopsRun(UserError):
    """Raised while an episode is played or scored: no episode of the run can be, so the run stops."""


class ModelError(UserError):
    """A model, tokenizer or chat template that cannot be loaded or used; the text says what would work."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean clip?` if a known name is similar, else an empty string."""
    by_folded = {known.casefold(): known for known in names}
    near = get_close_matches(name.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


def require_extra(extra: str, *packages: str) -> None:
    """Raise a UserError with the install command if a package of an optional extra is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise UserError(f"{package} is not installed; `pip install 'coterie[{extra}]'` installs it")
