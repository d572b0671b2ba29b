"""Names that folders are called by; looked at as soon as a config is read, for then the run's folder is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from coterie.config.problems import Path, shortened

if TYPE_CHECKING:
    from coterie.config.config import Config

LONGEST = 200  # bytes; file systems take 255, and `-2` or a suffix may follow


def unusable_names(config: Config) -> Iterator[tuple[Path, str]]:
    """The run's folder is called by its name, and a checkpoint has a folder for each policy and critic."""
    if not config.name.strip(" .") or any(sign in config.name for sign in "/\\"):
        yield ("name",), f"{config.name!r} cannot be a folder's name, and the run's folder is called by it"
    elif not config.name.isprintable():
        yield ("name",), f"{config.name!r} has a character that cannot be printed, and a folder is called by it"
    named = [("name", config.name)]
    named += [(group, quote(name, safe=" ")) for group in ("policies", "critics") for name in getattr(config, group)]
    for key, folder in named:
        if (length := len(folder.encode())) > LONGEST:
            called = f"{shortened(folder, 20)!r} has {length} bytes, and a folder is called by it"
            yield (key,), f"{called}; give it a name of at most {LONGEST}"
