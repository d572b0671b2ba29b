"""No string crashes, hangs or escapes from a grader, a parser or a workflow, and none earns 1: by the path of training.

Every team says hostile strings instead of what a model would say. A few run by default, all 10,000 in the slow test.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from coterie.config.registry import BUILTIN, find
from coterie.models.chat import Chat
from coterie.rewards.reasoning_gym_grammars import EVALUATING, LOOSE
from coterie.types import Episode, Sample, Sampling
from tests.hostile import CANARY, SECRET, hostile_strings
from tests.runs import started
from tests.teams import parts, split, written

ANSWER = 918273645  # which no string says
# Roles that earn 1 for calling a wrong answer wrong, or for finding nothing where nothing is, as some strings do.
JUDGES = {"verifier", "evaluator", "validator", "retriever", "query_optimizer"}
READ = 20_000  # ids of a prompt that is looked through for the secret


@cache
def as_ids(model: Path, count: int, canary: Path) -> list[tuple[int, ...]]:
    """The strings as a model would say them."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    (end,) = tokenizer("<|im_end|>", add_special_tokens=False)["input_ids"]
    return [(*tokenizer(text, add_special_tokens=False)["input_ids"], end) for text in hostile_strings(count, canary)]


class Recites:
    """Says one string after the other, whoever is asked; remembers whether a prompt held the secret."""

    def __init__(self, chat: Chat, *_: Chat, strings: Sequence[tuple[int, ...]]) -> None:
        self.tokenizer, self.next, self.said, self.leaked = chat.tokenizer, cycle(strings), 0, False

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        self.said += 1
        if len(prompt_ids) < READ:
            self.leaked = self.leaked or SECRET in str(self.tokenizer.decode(list(prompt_ids)))
        ids = next(self.next)
        return Sample(ids, (0.0,) * len(ids), "end", 0)

    def weights_changed(self, policy: str, version: int) -> None: ...

    def clear(self) -> None: ...


def graded_by(reward: Any, data: Path, answer: Any = ANSWER) -> dict[str, Any]:
    (data / "row.jsonl").write_text(json.dumps({"question": "?", "answer": answer}) + "\n")
    return {"workflow": {"name": "single"}, "env": {"name": "rows", **split(data, "row.jsonl")}, "reward": reward}


# x = 0 solves the first equation of seeds 0 and 1, and one string is -0.
SEEDS = {"polynomial_equations": 2}


def gym(dataset: str) -> dict[str, Any]:
    env = {"name": "reasoning_gym", "dataset": dataset, "size": 4, "test_size": 1, "seed": SEEDS.get(dataset, 0)}
    return {"workflow": {"name": "single"}, "env": env, "reward": "native"}


COMPOSED = {"name": "compose", "parts": [{"name": "math", "weight": 0.5, "seconds": 60}, {"name": "qa", "weight": 0.5}]}
GRADERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "exact": lambda data: graded_by("exact", data),
    "number": lambda data: graded_by("number", data),
    "math": lambda data: graded_by({"name": "math", "seconds": 60}, data),
    "math, strict": lambda data: graded_by({"name": "math", "seconds": 60, "strict": True}, data),
    "qa": lambda data: graded_by("qa", data, "Zanzibar"),
    "nli": lambda data: graded_by("nli", data, "contradiction"),
    "choice": lambda data: graded_by("choice", data, "D"),
    "format": lambda data: graded_by({"name": "format", "sections": ["plan"]}, data),
    "length": lambda data: graded_by({"name": "length", "most": 3}, data),
    "compose": lambda data: graded_by(COMPOSED, data),
    "code": lambda data: {
        "workflow": {"name": "single"},
        "env": {"name": "mbpp", **split(data, "code.jsonl")},
        "reward": {"name": "code", "test_seconds": 1.0, "seconds": 4.0},
    },
}
NATIVE = sorted({*EVALUATING, *LOOSE, "prime_factorization", "boxnet", "game_of_life", "propositional_logic"})


def teams(name: str, data: Path) -> dict[str, Any]:
    chosen = parts(name, data)
    if name == "swe":
        return chosen | {"env": {**chosen["env"], "seconds": 20}, "rollout": {"deadline": 600, "concurrency": 16}}
    if name == "graph":
        agents = [{"role": role} for role in ("first", "second")]
        workflow = {"name": name, "agents": agents, "rewarded": ["second"]}
        return chosen | {"workflow": workflow, "env": {**chosen["env"], "name": "graph"}}
    return chosen


WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{f"grader {name}": made for name, made in GRADERS.items()},
    **{f"native {name}": lambda data, name=name: gym(name) for name in NATIVE},
    **{f"workflow {name}": lambda data, name=name: teams(name, data) for name in BUILTIN["workflow"]},
}
SOME = ["grader math", "grader compose", "grader code", "native countdown", "native spiral_matrix"]
SOME += ["native complex_arithmetic", "workflow debate", "workflow refine", "workflow math_tool", "workflow swe"]
SOME += ["workflow search", "workflow deep_research"]


@pytest.fixture(scope="module")
def model(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("llama")


@pytest.fixture
def canary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file and an environment variable that nothing may touch."""
    path = tmp_path_factory.getbasetemp() / "canary"
    path.write_text("alive")
    monkeypatch.setenv(CANARY, SECRET)
    yield path
    assert path.read_text() == "alive"
    assert os.environ[CANARY] == SECRET


def config(way: dict[str, Any], model: Path) -> dict[str, Any]:
    workflow = dict(way["workflow"])
    made = find("workflow", workflow.pop("name"))
    roles = (
        [one if isinstance(one, str) else one["role"] for one in workflow["agents"]] if "agents" in workflow else None
    )
    options = {key: Path(value) if key in ("corpus", "profile_path") else value for key, value in workflow.items()}
    return {
        "rollout": {"deadline": 600, "score_deadline": 120, "concurrency": 16},
        "steps": 1,
        "tasks_per_step": 1,
        "episodes_per_task": 2,
        "policies": {"all": {"model": str(model), "lora": {"rank": 2}}},
        "roles": dict.fromkeys(roles or made(**options).roles, "all"),
        "algorithm": {"name": "grpo", "gamma_turn": 0},
        "eval": {"tasks": 1},
        "device": "cpu",
    } | way


def survives(way: str, count: int, data: Path, model: Path, canary: Path) -> None:
    """As many episodes as it takes to say all strings, by the collector of a run."""
    data.mkdir()
    written(data)
    (data / "sums.jsonl").write_text(json.dumps({"question": "?", "answer": ANSWER}) + "\n")
    run = started(config(WAYS[way](data), model), data / "run")
    says = Recites(*run.collector.chats.values(), strings=as_ids(model, count, canary))
    collector = replace(run.collector, engine=says)
    began, highest, seed = time.monotonic(), 0.0, 0
    while says.said < count:
        seed += 1
        episodes = collector.collect(run.tasks.tasks[:1], min(count, 200), run.players(), seed)
        highest = max(highest, harmless(episodes))
    assert not says.leaked
    print(f"{way}: {says.said} strings, {time.monotonic() - began:.0f} s, highest reward {highest:.3g}")


def harmless(episodes: Sequence[Episode]) -> float:
    """The highest reward, where no episode failed and none earned 1."""
    assert [episode.error for episode in episodes if episode.error] == []
    turns = [turn for episode in episodes for turn in episode.turns if turn.role not in JUDGES]
    highest = max(episode.reward for episode in episodes)
    assert max([highest, *(turn.reward or 0.0 for turn in turns)]) < 1
    return highest


@pytest.mark.parametrize("way", SOME)
def test_a_few_hostile_strings_are_survived(way: str, tmp_path: Path, model: Path, canary: Path) -> None:
    survives(way, 24, tmp_path / "data", model, canary)


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_ten_thousand_hostile_strings_are_survived(way: str, tmp_path: Path, model: Path, canary: Path) -> None:
    survives(way, int(os.environ.get("COTERIE_HOSTILE", "10000")), tmp_path / "data", model, canary)
