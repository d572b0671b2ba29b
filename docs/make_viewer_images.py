"""Makes the pictures of docs/viewer.md: writes small runs, opens them in chromium, and saves what it shows.

    python docs/make_viewer_images.py      needs playwright and /usr/bin/chromium

The runs are made up, by the log and the credit assignment of real ones: a solver answers sums, a checker comments. So
are the figures of the comparison, the games and the verifier.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
import threading
from pathlib import Path

import torch
import yaml
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from coterie.algorithms.grpo import Grpo
from coterie.credit.difference import Difference
from coterie.files import append_line
from coterie.rollout.metrics import rollout_metrics
from coterie.training.log import RunLog
from coterie.types import Episode, Message, Task, Turn
from coterie.view.app import App
from coterie.view.listing import Listing
from coterie.web.server import bind, server_of

IMAGES = Path(__file__).parent / "images"
STEPS, TASKS, REPEATS = 30, 6, 6
ROLES = ("solver", "checker")


class Words:
    """Words as tokens, numbered as they occur."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.ids.setdefault(word, len(self.ids)) for word in re.findall(r"\s*\S+", text))


def turn(role: str, asked: str, said: str, words: Words, draw: random.Random, seen: tuple[int, ...]) -> Turn:
    ids = words.encode(said)
    logprobs = tuple(-abs(draw.gauss(0, 0.9)) for _ in ids)
    made = Turn(role, role, 3, 0, words.encode(asked), ids, logprobs, 1.0, said, "end", seen)
    made.messages = [Message(role="user", content=asked)]
    made.entropy = torch.tensor([abs(draw.gauss(0.7, 0.5)) for _ in ids])
    made.started = 1.7e9 + len(seen) * 2
    made.ended = made.started + 0.4 + 0.02 * len(ids)
    return made


def play(task: Task, repeat: int, skill: float, words: Words, draw: random.Random) -> Episode:
    a, b, c = task.meta["numbers"]
    right = draw.random() < skill
    first = a + b if right else a + b - draw.choice([1, 10])
    solved = (
        f"First I add {a} and {b}, which gives {first}. Adding {c} gives {first + c}.\nSo the answer is {first + c}."
    )
    checks = draw.random() < skill
    fixed = a + b + c if checks else first + c
    word = "correct" if fixed == first + c else "wrong"
    said = f"I add again: {a} + {b} = {a + b}, and {c} more. The solution is {word}. The answer is {fixed}."
    turns = [turn("solver", task.prompt, solved, words, draw, ())]
    turns.append(turn("checker", f"{task.prompt}\n\nA solution:\n{solved}\n\nCheck it.", said, words, draw, (0,)))
    return Episode(f"{task.id}/{repeat}", task, repeat, turns, answer=str(fixed), reward=float(fixed == a + b + c))


def tasks(draw: random.Random, first: int, count: int) -> list[Task]:
    numbers = [(draw.randint(12, 48), draw.randint(12, 48), draw.randint(2, 9)) for _ in range(count)]
    return [
        Task(
            f"sum-{first + i}",
            f"A shop sold {a} red, {b} blue and {c} green pens. How many?",
            a + b + c,
            {"numbers": n},
        )
        for i, n in enumerate(numbers)
        for a, b, c in [n]
    ]


def write_run(folder: Path, seed: int, gain: float) -> None:
    draw, words = random.Random(seed), Words()
    tree = {
        "name": folder.name,
        "seed": seed,
        "steps": 40,
        "workflow": {"name": "chain"},
        "algorithm": {"name": "grpo"},
    }
    tree |= {"policies": {role: {"lr": gain / 100} for role in ROLES}, "roles": {role: role for role in ROLES}}
    log = RunLog(folder, yaml.safe_dump(tree), 40, None, console=False)
    held = tasks(draw, 900, 40)
    for step in range(STEPS + 1):
        skill = 0.25 + gain * (1 - 0.93**step)
        if step % 10 == 0:
            with log.step(step) as one:
                played = [play(task, 0, skill, words, draw) for task in held]
                one.add({f"eval/{name}": value for name, value in rollout_metrics(played).items()})
                one.held_out(played)
        if step:
            write_step(log, step, skill, words, draw)
    (folder / "tokens.jsonl").write_text(
        json.dumps({"policies": ROLES, "strings": {str(id): word for word, id in words.ids.items()}}) + "\n"
    )


def write_step(log: RunLog, step: int, skill: float, words: Words, draw: random.Random) -> None:
    played = [play(task, n, skill, words, draw) for task in tasks(draw, step * TASKS, TASKS) for n in range(REPEATS)]
    credit = Difference()
    forks = credit.forks(played)
    others = {}
    for fork in forks:
        chance = skill * (0.3 if "checker" in fork.purpose else 0.8)
        other = play(fork.origin.task, fork.origin.repeat, chance, words, draw)
        other.id, other.origin, other.fork = fork.id, fork.origin.id, fork.purpose
        others[fork.id] = other
    with log.step(step) as one:
        numbers = credit.assign(played, others, team_chain=False) | Grpo().compute_advantages(played, {})
        for own in (turn for episode in played[: 2 * REPEATS] for turn in episode.turns):
            assert own.advantages is not None
            own.movement = own.advantages * 0.04 * torch.rand(len(own.response_ids)) + 0.01 * torch.randn(
                len(own.response_ids)
            )
        one.add(rollout_metrics(played) | numbers)
        for role in ROLES:
            noise = draw.gauss(0, 0.02)
            one.add({f"{role}/entropy": 1.1 * 0.985**step + noise, f"{role}/kl_step": 0.01 + abs(noise) / 4})
            one.add({f"{role}/clip_fraction": abs(noise), f"{role}/grad_norm": 0.6 + 5 * noise})
        one.add({"tokens_per_second": 5200 + draw.gauss(0, 90), "seconds/rollout": 4.1 + draw.random() / 3})
        one.add({"seconds/update": 1.8 + draw.random() / 5, "seconds/credit": 0.02, "seconds/record": 0.05})
        one.episodes(played, list(others.values()))


def write_verifier(folder: Path) -> None:
    draw, tree = random.Random(3), {"answers_sha256": "0", "model": "demo", "epochs": 2}
    log = RunLog(folder, yaml.safe_dump(tree), 40, None, console=False)
    for step in range(1, 41):
        learned = 1 - 0.93**step
        with log.step(step) as one:
            one.add({"loss": 0.69 - 0.35 * learned + draw.gauss(0, 0.02), "grad_norm": 0.5 + draw.random() / 5})
            one.add({"lr": 1e-3, "answers": 64.0, "tokens_per_second": 9000.0, "seconds/update": 1.1})
            if step % 8 == 0:
                within = 0.5 + 0.38 * learned
                measured = {"auc": within + 0.05, "auc_within": within, "accuracy_within": within - 0.02}
                measured |= {"within_low": within - 0.04, "within_high": within + 0.04, "ece": 0.14 - 0.11 * learned}
                one.add({f"eval/{key}": value for key, value in measured.items()})
        if step % 8 == 0:
            scores = [0.05 + 0.1 * i for i in range(10)]
            bins = [{"score": s, "right": 0.5 + (s - 0.5) * learned, "answers": draw.randint(20, 90)} for s in scores]
            append_line(folder / "reliability.jsonl", json.dumps({"step": step, "bins": bins}))
    log.finished()


def write_games(folder: Path) -> None:
    folder.mkdir()
    draw = random.Random(4)
    results = [
        {"game": game, "algorithm": algorithm, "seed": seed, "reached": best - draw.random() / 30, "average": None}
        | {"seconds": 3.0, "rewards": [best * (1 - 0.9**step) + draw.gauss(0, 0.02) for step in range(60)]}
        for game in ("naming", "additive", "climbing")
        for algorithm, best in (("grpo", 1.0), ("happo", 0.99), ("mappo", 0.97), ("qmix", 0.94))
        for seed in range(3)
    ]
    (folder / "games.json").write_text(json.dumps(results))


def write_comparison(folder: Path) -> None:
    columns = ["arm", "accuracy", "sampled / task", "sampled in training", "team − arm", "differ", "p"]
    rows = [["team", "0.775 (0.642–0.892)", "94", "220,000", "", "", ""]]
    rows += [["single", "0.600 (0.450–0.742)", "96", "221,000", "+0.175 (+0.050 to +0.300)", "23%", "0.02"]]
    found = {"title": "Comparison with team", "table": {"columns": columns, "rows": rows}, "runs": ["team", "single"]}
    write_run(folder / "team", 5, 0.55)
    write_run(folder / "single", 6, 0.35)
    commands = "coterie train team.yaml name=team\ncoterie train single.yaml name=single"
    (folder / "comparison.json").write_text(json.dumps(found | {"commands": commands}))


def picture(page: Page, address: str, place: str, name: str, colour: str | None = None) -> None:
    page.goto(f"{address}/{place}")
    page.locator("h1").first.wait_for()
    if colour:
        page.get_by_role("button", name=colour).click()
    save(page, name)


def replay(page: Page, address: str) -> None:
    """The result of a replay, on the page of a run. It is made here: the made-up run has no models."""
    rows = [
        {"step": 30, "episode": f"sum-180/{n}", "line": n, "role": "solver", "advantage": 0.9 - 0.2 * n}
        | {"advantage now": 0.7 - 0.3 * n}
        for n in range(4)
    ]
    found = {"turns": 2160, "changed": 1512, "flipped": 0, "rows": rows}
    page.route("**/replay", lambda route: route.fulfill(json=found))
    page.goto(f"{address}/#/run/sums")
    page.get_by_role("button", name="Replay").click()
    page.get_by_text("would have another advantage").scroll_into_view_if_needed()
    page.mouse.wheel(0, 2000)
    save(page, "replay")


def save(page: Page, name: str) -> None:
    page.wait_for_timeout(600)
    path = IMAGES / f"viewer-{name}.png"
    page.screenshot(path=path)
    Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(path, optimize=True)


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    IMAGES.mkdir(exist_ok=True)
    for name, seed, gain in (("sums", 0, 0.5), ("sums-slow", 1, 0.3)):
        write_run(folder / name, seed, gain)
    bound = bind("127.0.0.1", 0, None, "")
    server = server_of(App(Listing([folder]), replays=True).asgi(), None)
    threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        page = browser.new_page(viewport={"width": 1240, "height": 780})
        picture(page, address, "#/", "runs")
        picture(page, address, "#/run/sums", "curves")
        picture(page, address, "#/run/sums/episodes?step=12", "list")
        picture(page, address, "#/run/sums/episodes/12/1", "episode", colour="movement")
        picture(page, address, "#/run/sums/episodes/12/group/0?from=1.0", "group", colour="advantage")
        picture(page, address, "#/paired/sums/0/sums/30", "paired")
        write_verifier(folder / "verifier")
        write_games(folder / "bench")
        write_comparison(folder / "arms")
        picture(page, address, "#/results/arms", "comparison")
        picture(page, address, "#/results/bench", "games")
        picture(page, address, "#/run/verifier", "verifier")
        replay(page, address)
        browser.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
