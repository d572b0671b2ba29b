"""`coterie report`: the viewer's page with its data in one HTML file, which loads nothing and can be mailed."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coterie import __version__
from coterie.episode_files import Row
from coterie.view.episodes import compared, group_members, one_episode
from coterie.view.listing import Listing, NoRuns
from coterie.view.page import STATIC, describe, dumped
from coterie.view.redact import redacted
from coterie.view.run_folder import RunFolder

PRIVATE = ("folder", "host", "pid")  # details of this machine, never in a report
SAFE = "!'()*~-._"  # what JavaScript's encodeURIComponent leaves as it is

# The files that the page loads.
FILES = r'<link rel="stylesheet" href="/static/(?P<style>[\w.]+)">|<script src="/static/(?P<script>[\w.]+)"></script>'

Paths = dict[str, Any]  # the server's responses, by path


def write_report(folders: Sequence[Path], episodes: int, redact: bool, extra: Mapping[str, Any] | None = None) -> str:
    """The page of one or several runs; `extra`: a title, a table and commands that come first."""
    listing = Listing(folders)
    runs = listing.refresh()
    if not runs and extra is None:
        raise NoRuns(f"{', '.join(map(str, folders))}: no run in it; a run's folder has a config.yaml")
    paths: Paths = {}
    for name, run in runs.items():
        paths |= _run_paths(name, run, episodes)
    paths |= _pairs(runs)
    about = _about(runs, paths, redact)
    data = {"runs": list(runs), "about": about, "paths": redacted(paths) if redact else paths, **(extra or {})}
    return _page(data, "Coterie: " + ", ".join(runs))


def _run_paths(name: str, run: RunFolder, episodes: int) -> Paths:
    own = f"/api/runs/{_at(name)}"
    described = {key: value for key, value in describe(run).items() if key not in PRIVATE}
    chosen = dict(_sample(run, episodes))
    described["stored"] = {kind: sorted({step for step, _ in places}) for kind, places in chosen.items()}
    paths: Paths = {own: described, f"{own}/metrics": run.metrics()}
    for kind, places in chosen.items():
        paths |= _episode_paths(own, run, kind, places)
    return paths


def _episode_paths(own: str, run: RunFolder, kind: str, places: Sequence[tuple[int, int]]) -> Paths:
    paths: Paths = {}
    listed = []
    for step, line in places:
        file = run.file(kind, step)
        entry = {key: value for key, value in file.index[line].items() if key not in ("at", "size")}
        listed.append({"step": step, "line": line} | entry)
        shown = one_episode(run, kind, step, line)
        paths[f"{own}/{kind}/{step}/{line}"] = shown
        for other in shown["counterfactuals"]:
            where = other["kind"], other["step"], other["line"]
            paths[f"{own}/{_at(*where)}"] = one_episode(run, *where)
        for number in {turn["group_number"] for turn in shown["turns"]} - {None}:
            paths[f"{own}/{kind}/{step}/group/{number}"] = group_members(run, kind, step, number)
    paths[f"{own}/{kind}"] = {"episodes": listed, "more": None}
    return paths


def _sample(run: RunFolder, count: int) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """The episodes to include, by kind: from the first and the last step, for evaluations with the same tasks."""
    for kind in ("episodes", "eval"):
        steps = run.steps(kind)
        ends = sorted({steps[0], steps[-1]}, reverse=True) if steps else []
        each = -(-count // len(ends)) if ends else 0
        yield kind, [(step, line) for step in ends for line in range(min(each, len(run.file(kind, step))))]
    yield "counterfactuals", []


def _pairs(runs: Mapping[str, RunFolder]) -> Paths:
    """Paired evaluations: each run's first against its last, and the first run's last against every other's."""
    last = {name: run.steps("eval")[-1] for name, run in runs.items() if run.steps("eval")}
    pairs = [(name, runs[name].steps("eval")[0], name, step) for name, step in last.items()]
    pairs += [(first, last[first], name, step) for first in list(last)[:1] for name, step in list(last.items())[1:]]
    return {f"/api/paired/{_at(a, s, b, t)}": compared((runs[a], s), (runs[b], t)) for a, s, b, t in pairs}


def _about(runs: Mapping[str, RunFolder], paths: Paths, redact: bool) -> str:
    places = [(run, kind, step) for run in runs.values() for kind in ("episodes", "eval") for step in run.steps(kind)]
    stored = sum(len(run.file(kind, step)) for run, kind, step in places)
    lists = [answer for answer in paths.values() if isinstance(answer, dict) and "more" in answer]
    included = sum(len(answer["episodes"]) for answer in lists)
    texts = "every text of theirs is left out" if redact else "with their prompts, replies and answers"
    when = time.strftime("%Y-%m-%d %H:%M")
    return (
        f"Written by Coterie {__version__} on {when}. This file contains the config and all metrics of {len(runs)} "
        f"run{'s' if len(runs) > 1 else ''}, and {included} of {stored} stored episodes; {texts}. "
        "It loads nothing from elsewhere."
    )


def _at(*parts: object) -> str:
    return "/".join(quote(str(part), safe=SAFE) for part in parts)


def _page(data: Row, title: str) -> str:
    """The page's own files and the data, inline. `<` in the data is escaped, so that no text can end its script."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def inline(found: re.Match[str]) -> str:
        kind = "style" if found["style"] else "script"
        text = STATIC[found["style"] or found["script"]].decode()
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
        return f"<{kind}>{text}</{kind}>"

    page = re.sub(FILES, inline, STATIC["index.html"].decode())
    icon = base64.b64encode(STATIC["icon.svg"]).decode()
    page = page.replace("/static/icon.svg", f"data:image/svg+xml;base64,{icon}")
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; " + "; ".join(
        f"{kind}-src {' '.join(sums)}" for kind, sums in hashes.items()
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    shown = dumped(data).replace("<", "\\u003c")
    script = f'<script type="application/json" id="data">{shown}</script>'
    title = title.replace("&", "&amp;").replace("<", "&lt;")
    page = page.replace("<title>Coterie</title>", f"{head}<title>{title}</title>")
    return page.replace('<main id="page"></main>', f'<main id="page"></main>{script}')
