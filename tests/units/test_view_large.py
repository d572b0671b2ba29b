"""A large run in the viewer: 200 steps with 100,000 turns, in a real browser and a server of its own."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coterie.algorithms.grpo import Grpo
from coterie.credit.team import Team
from coterie.types import Episode, Task, Turn
from tests.browser import MISSING, opened_browser, watched_page
from tests.view_runs import WORDS, metrics, open_log, turn

pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
STEPS, TASKS, REPEATS, LENGTH = 200, 32, 8, 200  # two turns an episode: 102,400 turns
# Scrolls through the page, a screen's third at a time; the milliseconds between frames.
SCROLL = """async () => {
  const gaps = [];
  let last = performance.now();
  for (let i = 0; i < 60; i++) {
    window.scrollBy(0, 260);
    await new Promise(requestAnimationFrame);
    gaps.push(performance.now() - last);
    last = performance.now();
  }
  return gaps.sort((a, b) => a - b);
}"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "large"
    draw, log = random.Random(0), open_log(folder, "chain", steps=STEPS)
    played = [Episode(f"{t}/{n}", task(t), n, turns(draw, t), reward=1.0) for t in range(TASKS) for n in range(REPEATS)]
    for episode in played:
        episode.reward = float(draw.random() < 0.5)
    Team().assign(played, {}, team_chain=False)
    Grpo().compute_advantages(played, {})
    with log.step(1) as one:
        one.add(metrics(1, ["reasoner", "actor"]))
        one.episodes(played)
    log.finished()
    log.close()
    for step in range(2, STEPS + 1):  # other steps have the same episodes
        shutil.copy(folder / "episodes/000001.jsonl.gz", folder / f"episodes/{step:06d}.jsonl.gz")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "time": 1e9 + step} | metrics(step, ["reasoner", "actor"])) + "\n")
    return folder.parent


def task(number: int) -> Task:
    return Task(f"task-{number}", "A question. " * 25, 4)


def turns(draw: random.Random, number: int) -> list[Turn]:
    texts = [[draw.randrange(len(WORDS)) for _ in range(LENGTH)] for _ in range(2)]
    first = turn("reasoner", texts[0], f"Think about {number}. " * 20)
    return [first, turn("actor", texts[1], f"Answer {number}. " * 20 + first.text, seen=[0])]


def test_it_opens_in_two_seconds_scrolls_smoothly_and_stays_below_300_mb(large: Path) -> None:
    command = [sys.executable, "-m", "coterie", "view", str(large), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = next(word for word in process.stdout.readline().split() if word.startswith("http"))
        with opened_browser() as browser:
            page, problems = watched_page(browser, address)
            page.goto(address)
            for place, shown in PLACES.items():
                seconds, gaps = opened(page, f"{address}/{place}", shown)
                print(f"{place or 'list':38} {seconds:5.2f} s, 95 % of frames within {gaps[56]:.0f} ms")
                assert seconds < 2 and gaps[56] < 50, place
            assert problems == []
        memory = memory_of(process.pid)
        print(f"memory of the server: {memory:.0f} MB")
        assert memory < 300
    finally:
        process.kill()


PLACES = {
    "#/run/large": "figure canvas",
    "#/run/large/episodes": "tbody tr",
    "#/run/large/episodes?task=task-9": "tbody tr",
    "#/run/large/episodes/100/17": ".tokens",
    "#/run/large/episodes/100/group/3": ".tokens",
}


def opened(page: Any, address: str, shown: str) -> tuple[float, list[float]]:
    """The seconds until the page shows something, and the times between frames while it is scrolled."""
    started = time.perf_counter()
    page.goto(address)
    page.locator(shown).first.wait_for()
    return time.perf_counter() - started, page.evaluate(SCROLL)


def memory_of(pid: int) -> float:
    """The most that a process has had in memory, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000
