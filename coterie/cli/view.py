"""`coterie view` and `coterie report`. Neither imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from coterie.errors import UserError
from coterie.files import check_output_path, write_atomic

KEY_VARIABLE = "COTERIE_VIEW_KEY"


class NoServer(UserError, ImportError):
    """The packages of the viewer's server are not installed."""


def view(runs: Sequence[Path], host: str, port: int, key_file: Path | None, replays: bool) -> None:
    """Serve the page until a signal comes."""
    server, app, listing = _imported("coterie.web.server", "coterie.view.app", "coterie.view.listing")
    shown = listing.Listing(runs)
    key = server.read_key(key_file, KEY_VARIABLE)
    bound = server.bind(host, port, key, KEY_VARIABLE)
    print(f"{len(shown.refresh())} runs on {server.url_of(bound, host)}  (Ctrl-C ends it)", flush=True)
    viewer = app.App(shown, key, replays)
    running = server.server_of(viewer.asgi(), key)
    viewer.is_ending = lambda: running.should_exit
    running.run(sockets=[bound])


def report(runs: Sequence[Path], out: Path, episodes: int, redact: bool) -> None:
    """Write one self-contained HTML file."""
    from coterie.view.report import write_report

    check_output_path("--out", out)
    page = write_report(runs, episodes, redact)
    write_atomic(out, page)
    print(f"{out}: {len(page.encode()) / 1e6:.1f} MB{', without texts' if redact else ''}")


def _imported(*modules: str) -> list[ModuleType]:
    try:
        return [import_module(module) for module in modules]
    except ModuleNotFoundError as error:
        raise NoServer(f"the viewer needs {error.name}: pip install 'coterie[view]'") from error
