"""Run folders for the viewer, written by the run's own log with episodes made by hand: no model plays them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from coterie.algorithms.grpo import Grpo
from coterie.credit.team import Team
from coterie.files import append_line
from coterie.training.log import RunLog
from coterie.types import Episode, Message, Metrics, Task, Turn

WORDS = ["So", " the", " answer", " is", " four", ".", " I", " agree", " with", " it", "\n", " 2", " +", " x"]


def turn(role: str, text: Sequence[int], asked: str, round: int = 0, seen: Sequence[int] = (), **changes: Any) -> Turn:
    prompt = tuple(100 + ord(character) % 50 for character in asked)
    spoken = "".join(WORDS[i] for i in text)
    made = Turn(role, role, 1, round, prompt, tuple(text), tuple(-0.3 * (i + 1) for i in text), 1.0, spoken, "end")
    made.messages = [Message(role="system", content="Be brief."), Message(role="user", content=asked)]
    made.seen, made.started, made.ended = tuple(seen), 1e9 + len(seen), 1e9 + len(seen) + 0.8
    made.entropy = torch.linspace(0.1, 2.0, len(text))
    made.movement = torch.linspace(-0.2, 0.3, len(text))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def said(draw: random.Random) -> list[int]:
    return [draw.randrange(len(WORDS)) for _ in range(draw.randint(3, 9))]


def chain(draw: random.Random, task: str) -> list[Turn]:
    first = turn("reasoner", said(draw), f"Think about {task}.")
    return [first, turn("actor", said(draw), f"Answer {task}.", seen=[0])]


def debate(draw: random.Random, task: str) -> list[Turn]:
    both = [turn(role, said(draw), f"Debate {task}.") for role in ("left", "right")]
    return [*both, *(turn(role, said(draw), f"Reply about {task}.", 1, (0, 1)) for role in ("left", "right"))]


def tools(draw: random.Random, task: str) -> list[Turn]:
    call = turn("solver", said(draw), f"Use the tool on {task}.")
    again = turn("solver", said(draw), f"Use the tool on {task}. Again.", 1, (0,), stop="length")
    result = "4\n" * 500
    again.messages = [*(again.messages or ()), Message(role="tool", content=result)]
    return [call, again]


KINDS: dict[str, Callable[[random.Random, str], list[Turn]]] = {"chain": chain, "debate": debate, "tools": tools}


def episodes(kind: str, draw: random.Random, tasks: int = 3, repeats: int = 4) -> list[Episode]:
    made = []
    for t in range(tasks):
        for n in range(repeats):
            task = Task(f"{kind}-{t}", f"What is {t} + {t}?", 2 * t)
            played = Episode(f"{task.id}/{n}", task, n, KINDS[kind](draw, task.prompt), answer="four")
            played.reward = float(draw.random() < 0.5)
            made.append(played)
    Team().assign(made, {}, team_chain=False)
    Grpo().compute_advantages(made, {})
    return made


def metrics(step: int, roles: Sequence[str]) -> Metrics:
    numbers = {"reward": 0.3 + 0.02 * step, "stderr/reward": 0.05, "seconds/rollout": 1.0, "seconds/update": 2.0}
    for role in roles:
        numbers |= {f"reward/{role}": 0.2 + 0.02 * step, f"{role}/entropy": 2 - 0.1 * step, f"credit/{role}": 0.1}
    return numbers


def open_log(folder: Path, kind: str, **config: Any) -> RunLog:
    roles = sorted({t.role for t in KINDS[kind](random.Random(0), "x")})
    tree = {"name": folder.name, "steps": 4, "workflow": {"name": kind}, "algorithm": {"name": "grpo"}}
    named = {"roles": {role: role for role in roles}, "policies": {role: {"model": "none"} for role in roles}}
    log = RunLog(folder, yaml.safe_dump(tree | named | config), 4, None, console=False)
    folder.mkdir(parents=True, exist_ok=True)
    row = {"policies": roles, "strings": {str(i): word for i, word in enumerate(WORDS)}}
    (folder / "tokens.jsonl").write_text(json.dumps(row) + "\n")
    return log


def write_step(log: RunLog, kind: str, step: int) -> None:
    draw = random.Random(step)
    played = episodes(kind, draw)
    forks = [
        Episode(f"{e.id}/without", e.task, e.repeat, e.turns[:1], reward=0.0, origin=e.id, fork="without 'reasoner'")
        for e in played[:4]
    ]
    with log.step(step) as one:
        one.add(metrics(step, sorted({t.role for e in played for t in e.turns})))
        one.episodes(played, forks if kind == "chain" else ())


def write_evaluation(log: RunLog, kind: str, step: int) -> None:
    played = episodes(kind, random.Random(100 + step), tasks=6, repeats=1)
    with log.step(step) as one:
        reward = sum(e.reward for e in played) / len(played)
        one.add({"eval/reward": reward, "eval/stderr/reward": 0.1})
        one.held_out(played)


def write_run(folder: Path, kind: str, **config: Any) -> Path:
    """A finished run of four steps."""
    log = open_log(folder, kind, **config)
    write_evaluation(log, kind, 0)
    for step in range(1, 5):
        write_step(log, kind, step)
    write_evaluation(log, kind, 4)
    log.finished()
    log.close()
    return folder


def write_verifier(folder: Path) -> Path:
    """A finished run of `coterie verifier train`, as its own log writes it."""
    log = RunLog(folder, yaml.safe_dump({"answers_sha256": "0", "model": "none", "epochs": 2}), 4, None, console=False)
    for step in range(1, 5):
        with log.step(step) as one:
            one.add({"loss": 0.7 / step, "grad_norm": 1.0, "lr": 1e-3, "answers": 8.0})
            found = {"auc": 0.7, "auc_within": 0.5 + 0.1 * step, "ece": 0.1, "accuracy_within": 0.6}
            found |= {"within_low": 0.4 + 0.1 * step, "within_high": 0.55 + 0.1 * step, "questions": 5, "answers": 20}
            one.add({f"eval/{name}": value for name, value in found.items()})
        bins = [{"score": 0.1 * step, "right": 0.2, "answers": 12}, {"score": 0.8, "right": 0.9, "answers": 8}]
        append_line(folder / "reliability.jsonl", json.dumps({"step": step, "bins": bins}))
    log.finished()
    log.close()
    return folder


def write_games(folder: Path) -> Path:
    """What `coterie bench games --out` writes."""
    folder.mkdir()
    team = {"game": "naming", "average": None, "seconds": 2.0}
    results: list[dict[str, Any]] = [
        team | {"algorithm": name, "seed": seed, "reached": 0.9 + 0.05 * seed, "rewards": [0.2, 0.5 + 0.1 * seed]}
        for name in ("grpo", "happo")
        for seed in (0, 1)
    ]
    versus = {"game": "kuhn", "algorithm": "grpo", "seed": 0, "reached": 0.04, "average": 0.03, "seconds": 9.0}
    (folder / "games.json").write_text(json.dumps([*results, versus | {"rewards": [0.0, 0.0]}]))
    return folder


def write_comparison(folder: Path) -> Path:
    """What `coterie compare` writes: two arms and their table."""
    for arm in ("team", "alone"):
        write_run(folder / arm, "chain", seed=len(arm))
    found = {"title": "Comparison with alone", "commands": "coterie train team.yaml", "runs": ["team", "alone"]}
    found |= {"table": {"columns": ["arm", "accuracy"], "rows": [["team", "0.700"], ["alone", "0.600"]]}}
    (folder / "comparison.json").write_text(json.dumps(found))
    return folder
