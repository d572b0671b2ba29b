"""Debian's chromium, driven by Playwright: a viewer in a thread, pages that note what goes wrong, a reader of runs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.view.app import App
from coterie.view.listing import Listing
from coterie.web.server import bind, server_of

CHROMIUM = shutil.which("chromium")
MISSING = (
    "playwright is not installed: pip install playwright"
    if find_spec("playwright") is None
    else "chromium is not installed: apt-get install chromium"
    if CHROMIUM is None
    else None
)  # why no browser can be opened
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
WAIT = 20_000  # milliseconds for what a page shows: the machine may be busy


@contextmanager
def serving(app: App) -> Iterator[str]:
    """The address of a viewer in a thread."""
    bound = bind("127.0.0.1", 0, None, "")
    server = server_of(app.asgi(), None)
    app.is_ending = lambda: server.should_exit
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@contextmanager
def opened_browser() -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def watched_page(browser: Any, address: str) -> tuple[Any, list[str]]:
    """A page, and a list to which it adds every logged error, dialog, and request to another host."""
    page, problems = browser.new_page(), []
    page.set_default_timeout(WAIT)
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append("a dialog was opened"), dialog.dismiss()))
    local = (address, "file://", "data:")
    page.on("request", lambda request: None if request.url.startswith(local) else problems.append(request.url))
    return page, problems


class Reader:
    """Clicks through runs, in a thread of its own: Playwright's event loop would stand in the way of training."""

    def __init__(self) -> None:
        self.pool, self.stack = ThreadPoolExecutor(1), ExitStack()
        self.listing = Listing([])
        self.pool.submit(self._open).result()

    def _open(self) -> None:
        self.address = self.stack.enter_context(serving(App(self.listing)))
        self.page, self.problems = watched_page(self.stack.enter_context(opened_browser()), self.address)

    def read(self, run: Path, groups: bool = True) -> list[str]:
        """From a run's curves to the tokens of an episode and the group of a turn; what went wrong on the way.
        `groups`: whether its algorithm compares turns."""
        return self.pool.submit(self._read, run, groups).result()

    def _read(self, run: Path, groups: bool) -> list[str]:
        from playwright.sync_api import expect

        self.listing.folders = [run]
        self.page.goto(f"{self.address}/?{run.parent.name}#/run/{run.name}")  # another address: loads the page anew
        expect(self.page.locator("figure.chart canvas").first).to_be_visible()
        self.page.get_by_role("link", name="Episodes", exact=True).click()
        self.page.locator("tbody tr a").first.click()
        expect(self.page.locator(".tokens").first).to_be_visible()
        if groups:
            self.page.locator("a.group").first.click()
            expect(self.page.locator(".turn.own")).to_have_count(1)
        return self.problems

    def close(self) -> None:
        self.pool.submit(self.stack.close).result()
        self.pool.shutdown()


@contextmanager
def reading() -> Iterator[Reader | None]:
    """A reader; None where no browser can be opened."""
    reader = Reader() if MISSING is None else None
    yield reader
    if reader is not None:
        reader.close()
