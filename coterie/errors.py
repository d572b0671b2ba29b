"""Errors that the command line prints without a traceback."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

# Paths of code that is not the user's.
OTHERS_CODE = (str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


class UserError(Exception):
    """An error that the user can fix; its text says how. Any other exception is a bug."""


class StopsRun(UserError):
    """Raised while an episode is played or scored, for a cause that affects every episode, so the run stops."""


class ModelError(UserError):
    """A model, tokenizer or chat template that cannot be loaded or used; the text says what would work."""


class BadAnswer(UserError, TypeError):
    """A workflow returned something that cannot be the team's answer."""


# The largest size of a reward or a metric: the variances of a group must be finite also in float32.
LARGEST_NUMBER = 1e15


class BadReward(UserError, ValueError):
    """A reward or a metric that is not a finite number or too large, or that has a reserved name."""


def is_users_code(frame: FrameSummary) -> bool:
    """True outside Coterie, Python and installed packages."""
    return not frame.filename.startswith(OTHERS_CODE)


def failure_text(error: BaseException) -> str:
    """The text of an error for `episode.error`: that of a UserError, else the traceback from the user's code on."""
    if isinstance(error, UserError):
        return str(error).rstrip()
    shown = TracebackException.from_exception(error)
    users = [i for i, frame in enumerate(shown.stack) if is_users_code(frame)]
    shown.stack = StackSummary.from_list(shown.stack[users[0] :] if users else shown.stack)
    return "".join(shown.format())


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
