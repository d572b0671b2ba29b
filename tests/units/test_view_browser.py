"""The viewer in a real browser: Debian's chromium, driven by Playwright. Skipped where there is none."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.view.app import App
from coterie.view.listing import Listing
from coterie.view.report import write_report
from tests.browser import MISSING, opened_browser, serving, watched_page
from tests.hangs import HANG
from tests.runs import naming_config, trained
from tests.view_runs import (
    KINDS,
    episodes,
    open_log,
    write_comparison,
    write_games,
    write_run,
    write_step,
    write_verifier,
)

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
EVIL = "</script><img src=x onerror=alert(1)><script>alert(1)</script>\u202etxt.exe\u0007"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        write_run(folder / kind, kind)
    write_hostile(folder / "hostile")
    write_verifier(folder / "judge")
    write_games(folder / "bench")
    write_comparison(folder / "pair")
    return folder


def write_hostile(folder: Path) -> None:
    """A run in which every text that a model or a file can hold tries to get out of the page."""
    log = open_log(folder, "chain", note=EVIL)
    strings = {str(i): EVIL for i in range(20)}
    (folder / "tokens.jsonl").write_text(json.dumps({"policies": ["actor", "reasoner"], "strings": strings}) + "\n")
    played = episodes("chain", random.Random(0))
    for episode in played:
        episode.answer = episode.error = EVIL
        for turn in episode.turns:
            turn.text, turn.messages = EVIL, [{"role": EVIL, "content": EVIL}]
    played[0].error, played[1].error_kind = None, EVIL
    with log.step(1) as one:
        one.add({f"reward/{EVIL}": 1.0, "reward": 0.5})
        one.episodes(played)
    log.finished()
    log.close()
    (folder.parent / "odd").mkdir()
    result = {
        "game": EVIL,
        "algorithm": EVIL,
        "seed": 0,
        "reached": 1,
        "average": None,
        "seconds": 1,
        "rewards": [0, 1],
    }
    (folder.parent / "odd" / "games.json").write_text(json.dumps([result]))


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with serving(App(Listing([runs]))) as address:
        yield address


@pytest.fixture(scope="module")
def trained_run(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, to replay."""
    return trained(naming_config(model_folder("llama"), steps=2), tmp_path_factory.mktemp("trained") / "pair").folder


@pytest.fixture(scope="module")
def browser(trained_run: Path) -> Iterator[Any]:
    """Started after the training: Playwright's event loop runs in this thread, and training needs its own."""
    with opened_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page that fails its test if it logs an error, asks another host, or opens a dialog."""
    opened, problems = watched_page(browser, address)
    yield opened
    opened.close()
    assert problems == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_gets_from_the_list_to_tokens_and_groups(kind: str, page: Any, address: str) -> None:
    page.goto(f"{address}/")
    page.get_by_role("link", name=kind, exact=True).click()
    api.expect(page.locator("figure.chart canvas").first).to_be_visible()
    page.get_by_role("link", name="Episodes", exact=True).click()
    page.get_by_role("link", name=f"{kind}-0/0", exact=True).first.click()
    api.expect(page.locator(".tokens").first).to_be_visible()
    page.get_by_role("button", name="entropy").click()
    shaded = "span => span.style.backgroundColor"
    assert page.locator(".t").first.evaluate(shaded) != page.locator(".t").last.evaluate(shaded)
    page.locator(".t").first.hover()
    api.expect(page.locator(".t").first).to_have_attribute("title", re.compile(r"log-prob −[\d.]+ · .*entropy 0.1"))
    page.locator("a.group").first.click()
    api.expect(page.get_by_role("heading", name="Compared with each other")).to_be_visible()
    api.expect(page.locator(".turn.own")).to_have_count(1)
    warned = page.locator(".note.warn", has_text="different prompts")
    api.expect(warned).to_have_count(0 if kind == "chain" else 1)


def test_turns_that_did_not_see_each_other_stand_side_by_side(page: Any, address: str) -> None:
    page.goto(f"{address}/#/run/debate/episodes/1/0")
    api.expect(page.locator(".turn")).to_have_count(4)
    tops = [round(page.locator(f"#turn-{i}").bounding_box()["y"]) for i in range(4)]
    assert tops[0] == tops[1] < tops[2] == tops[3]


def test_what_a_tool_returned_is_folded(page: Any, address: str) -> None:
    page.goto(f"{address}/#/run/tools/episodes/1/0")
    page.locator(".asked summary").nth(1).click()
    api.expect(page.get_by_text("1000 characters")).to_be_visible()
    api.expect(page.locator("#turn-1 .message .text").last).to_be_hidden()


def test_a_filter_and_a_counterfactual_lead_where_they_say(page: Any, address: str) -> None:
    page.goto(f"{address}/#/run/chain/episodes")
    page.locator("select[name=step]").select_option("2")
    page.get_by_role("button", name="Filter").click()
    api.expect(page.locator("tbody tr")).to_have_count(12)
    page.goto(f"{address}/#/run/chain/episodes/1/0")
    page.locator("#turn-0 .without a").click()  # from the turn that was replaced
    api.expect(page.locator(".note", has_text="A fork of chain-0/0: without 'reasoner'")).to_be_visible()
    page.go_back()
    page.locator("table").get_by_role("link", name="without 'reasoner'").click()
    api.expect(page.locator(".note", has_text="A fork of chain-0/0")).to_be_visible()


def test_several_runs_are_drawn_over_each_other_and_paired(page: Any, address: str) -> None:
    page.goto(f"{address}/")
    for kind in ("chain", "debate"):
        page.get_by_label(f"choose {kind}").check()
    page.get_by_role("link", name="Curves of 2 runs").click()
    api.expect(page.locator("figure", has_text="team reward").locator(".entry")).to_have_count(4)
    page.goto(f"{address}/#/paired/chain/0/chain/4")
    api.expect(page.locator("tbody tr")).to_have_count(6)


def test_a_verifiers_page_has_its_reliability_auc_and_loss(page: Any, address: str) -> None:
    page.goto(f"{address}/#/run/judge")
    figures = page.locator("figure.chart")
    api.expect(figures.filter(has_text="share of right answers by score").locator(".entry")).to_have_count(3)
    for title in ("answers by score", "within a question", "calibration error", "loss"):
        api.expect(figures.filter(has_text=title).locator("canvas").first).to_be_visible()
    api.expect(page.locator(".fact").nth(1)).to_have_text("0.9 ± 0.075AUC within a question")


def test_games_and_comparisons_have_pages_of_the_same_parts(page: Any, address: str) -> None:
    page.goto(f"{address}/")
    page.get_by_role("link", name="bench: games").click()
    api.expect(page.locator("tbody tr").first).to_have_text("grpo0.925 ± 0.035 (0.9)0.04 (0.04, pool 0.03)")
    api.expect(page.locator("figure.chart", has_text="naming").locator(".entry")).to_have_count(2)
    page.goto(f"{address}/")
    page.get_by_role("link", name="pair: comparison").click()
    api.expect(page.locator("table").first).to_contain_text("team0.700")
    api.expect(page.locator("figure", has_text="team reward").locator(".entry")).to_have_count(4)


def test_a_run_is_replayed_under_another_algorithm_from_its_page(browser: Any, trained_run: Path) -> None:
    with serving(App(Listing([trained_run]), replays=True)) as address:
        opened = browser.new_page()
        opened.goto(f"{address}/#/run/pair")
        opened.get_by_label("changes").fill("algorithm=rloo")
        opened.get_by_role("button", name="Replay").click()
        told = opened.get_by_text("turns would have another advantage")
        api.expect(told).to_be_visible(timeout=HANG * 1000)
        assert told.inner_text().split(" turns")[0] == "32 of 32"
        opened.locator("tbody").get_by_role("link").first.click()
        api.expect(opened.locator(".tokens").first).to_be_visible()
        opened.close()


def test_a_live_run_grows_before_the_readers_eyes(page: Any, address: str, runs: Path) -> None:
    log = open_log(runs / "live", "chain")
    write_step(log, "chain", 1)
    page.goto(f"{address}/#/run/live")
    step = page.locator(".fact").first.locator("b")
    api.expect(step).to_have_text("1 / 4")
    api.expect(page.locator("#live")).to_have_text("live")
    write_step(log, "chain", 2)
    api.expect(step).to_have_text("2 / 4")
    log.finished()
    log.close()
    api.expect(page.locator("h1 + span .chip")).to_have_text("finished")


PLACES = ["", "/episodes", "/episodes/1/0", "/episodes/1/1", "/episodes/1/group/0"]


@pytest.mark.parametrize("place", ["results/odd", *(f"run/hostile{place}" for place in PLACES)])
def test_a_hostile_run_is_shown_as_text(place: str, page: Any, address: str) -> None:
    page.goto(f"{address}/#/{place}")
    api.expect(page.locator("h1")).to_be_visible()
    page.wait_for_timeout(300)
    assert page.locator("main img").count() == page.locator("main script").count() == 0
    if place.endswith("/1/0"):
        assert "\\u202etxt.exe\\u0007" in page.locator(".t").first.inner_text()


def test_a_report_opens_from_a_file_and_runs_nothing_of_the_run(page: Any, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "run.html").write_text(write_report([runs / "hostile", runs / "chain"], 4, redact=False))
    page.goto(f"file://{tmp_path}/run.html")
    api.expect(page.locator("figure.chart canvas").first).to_be_visible()
    api.expect(page.locator(".note", has_text="It loads nothing from elsewhere.")).to_be_visible()
    page.goto(f"file://{tmp_path}/run.html#/run/chain/episodes")
    page.get_by_role("link", name="chain-0/0", exact=True).first.click()
    page.locator("a.group").first.click()
    api.expect(page.locator(".turn.own")).to_have_count(1)
    page.goto(f"file://{tmp_path}/run.html#/run/hostile/episodes/1/0")
    api.expect(page.locator(".tokens").first).to_be_visible()
