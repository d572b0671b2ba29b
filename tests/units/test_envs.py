"""Laws of where tasks come from and how they are scored."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from coterie.envs.base import TaskEnv, attach_reward
from coterie.envs.dataset_env import Gsm8k
from coterie.envs.reasoning_gym import ReasoningGym
from coterie.envs.rows import Rows
from coterie.errors import BadAnswer
from coterie.rewards import GraderTimeout, make_grader
from coterie.rollout.collector import Collector
from coterie.types import Env, Episode, Task
from coterie.workflows.refine import Refine
from tests.scripted import Scripted

QUESTIONS = [
    {"question": "Clips in all?", "answer": "48 + 24 = <<48+24=72>>72\n#### 72", "level": 1},
    {"question": "Pay?", "answer": "It is\n#### 1,080", "level": 2},
    {"question": "Left over?", "answer": "#### -5", "level": 3},
]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def parquet(path: Path, rows: list[Any]) -> Path:
    path = path.with_suffix(".parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def score(env: Env, task: Task, answer: Any) -> Episode:
    episode = Episode("e", task, 0, answer=answer)
    asyncio.run(env.score(episode))
    return episode


def test_no_held_out_task_is_a_training_task() -> None:
    """A small world, so that chance alone would mix them: sums of two digits from 0 to 9."""
    params = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    env = ReasoningGym("chain_sum", params, size=100, test_size=50)
    train = {task.prompt for task in env.tasks("train")}
    test = [task.prompt for task in env.tasks("test")]
    assert len(test) == len(set(test)) == 50
    assert not train & set(test)


def test_a_world_that_training_exhausts_has_no_test() -> None:
    params = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}
    with pytest.raises(ValueError, match="500 training tasks leave chain_sum no other for the test"):
        ReasoningGym("chain_sum", params, size=500, test_size=5).tasks("test")


def test_a_seed_gives_the_same_tasks_and_its_neighbour_others() -> None:
    def prompts(seed: int) -> list[str]:
        return [task.prompt for task in ReasoningGym("chain_sum", size=50, seed=seed).tasks("train")]

    assert prompts(0) == prompts(0)
    assert len(set(prompts(0)) & set(prompts(1))) < 5


def test_task_ids_are_unique_and_tasks_carry_their_metadata() -> None:
    env = ReasoningGym("chain_sum", size=20, test_size=20, prompt="{expression} = ?")
    tasks = [*env.tasks("train"), *env.tasks("test")]
    assert len({task.id for task in tasks}) == 40
    assert all(task.prompt == f"{task.meta['expression']} = ?" for task in tasks)
    assert all(eval(task.meta["expression"]) == int(task.answer) for task in tasks)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ReasoningGym("chain_sums"), r"dataset: unknown chain_sums; did you mean chain_sum\?"),
        (lambda: ReasoningGym("chain_sum", {"max_term": 2}), r"params.max_term: unknown; did you mean max_terms\?"),
        (lambda: ReasoningGym("chain_sum", {"size": 2}), r"params.size: unknown"),
        (lambda: ReasoningGym("chain_sum", {"max_terms": 0}), r"params: chain_sum rejects them: max_terms must be"),
        (lambda: ReasoningGym("chain_sum", {"max_terms": "two"}), r"params: chain_sum rejects them: "),
        (lambda: ReasoningGym("chain_sum", prompt="{expresion}"), r"prompt: unknown field {expresion}"),
    ],
)
def test_a_mistake_in_a_dataset_is_told_when_it_is_made(build: Callable[[], Env], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_the_native_reward_is_the_datasets_own_scorer() -> None:
    env = attach_reward(ReasoningGym("prime_factorization", size=20, prompt="Split: {question}"), "native", {}, 30.0)
    task = next(task for task in env.tasks("train") if len(task.meta["factors"]) > 1)
    right = score(env, task, task.answer)
    assert (right.reward, right.metrics) == (1.0, {"accuracy": 1.0, "grader_timeouts": 0.0})
    # Any factorisation earns part of the credit, so this is not a comparison of texts.
    assert 0 < score(env, task, str(task.meta["number"])).reward < 1
    assert score(env, task, "I cannot tell").reward == 0.0


def test_another_reward_compares_with_the_answer() -> None:
    env = attach_reward(ReasoningGym("chain_sum", size=2), "number", {}, 1.0)
    task = env.tasks("train")[0]
    assert score(env, task, f"It is {task.answer}.").metrics["accuracy"] == 1.0
    assert score(env, task, "?").metrics["accuracy"] == 0.0


def test_an_answer_that_hangs_its_grader_fails_the_episode_also_where_a_workflow_asks_for_the_grade(
    tmp_path: Path,
) -> None:
    (tmp_path / "slow.py").write_text("def slow(answer, truth):\n    while answer == 'hang': pass\n    return 1.0\n")
    file = jsonl(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}])
    env = attach_reward(Rows(file), f"{tmp_path}/slow.py:slow", {}, 0.3)
    team = Scripted({"optimizer": ["hang", "fine"], "evaluator": ["Verdict: incorrect", "Verdict: correct"]})
    collector = Collector(Refine(), env, None, {}, 1, 60.0, None)  # type: ignore[arg-type]
    task = env.tasks("train")[0]

    episode = Episode("e", task, 0)

    async def go() -> None:
        outcome = await Refine().run(task, team, None)
        episode.turns = team.said()
        await collector.score(episode, outcome)

    with pytest.raises(GraderTimeout):
        asyncio.run(go())
    assert episode.metrics["grader_timeouts"] == 2.0  # it was asked twice


def test_a_reward_that_would_do_nothing_is_an_error() -> None:
    class ScoresItself:
        def tasks(self, split: str) -> list[Task]:
            return [Task("1", "q", "a")]

        def open(self, task: Task) -> None:
            return None

        async def score(self, episode: Episode) -> None:
            episode.reward = 0.25

    env = ScoresItself()
    assert isinstance(env, Env)
    assert attach_reward(env, "native", {}, 1.0) is env
    with pytest.raises(ValueError, match="reward exact: no effect, because ScoresItself scores itself"):
        attach_reward(env, "exact", {}, 1.0)
    with pytest.raises(ValueError, match="reward native: Rows has none of its own"):
        attach_reward(Rows(Path("x.jsonl")), "native", {}, 1.0)
    with pytest.raises(ValueError, match="did you mean exact"):
        attach_reward(Rows(Path("x.jsonl")), "exakt", {}, 1.0)


@pytest.mark.parametrize("write", [jsonl, parquet])
def test_a_users_rows_become_tasks(tmp_path: Path, write: Callable[[Path, list[Any]], str]) -> None:
    rows = [{"problem": "1 + 1", "result": 2, "level": "easy"}, {"problem": "2 + 2", "result": 4, "level": "hard"}]
    file = write(tmp_path / "sums.jsonl", rows)
    env = attach_reward(Rows(file, test=file, question="problem", answer="result", limit=1), "number", {}, 1.0)
    assert env.tasks("train") == [Task("sums/1", "1 + 1", 2, {"level": "easy"})]
    assert env.tasks("test") == env.tasks("train")
    assert score(env, env.tasks("train")[0], "two, I mean 2").reward == 1.0
    assert pickle.loads(pickle.dumps(env)) == env


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "q", "answer": 1}\n\n{"question": "r"}', r"sums.jsonl, row 3: no field answer; it has question"),
        ('{"question": "q", "answer": 1}\n{"question": ', r"sums.jsonl, row 2: not JSON"),
        ("[1]", r"sums.jsonl, row 1: not an object: \[1\]"),
        ('{"question": null, "answer": 1}', r"sums.jsonl, row 1: question is empty; fill it in, or leave the row out"),
        ('{"question": "a\\ud800", "answer": 1}', r"sums.jsonl, row 1: question has a lone surrogate at character 1"),
        ('{"question": "q", "answer": [{"a": "\\udfff"}]}', r"sums.jsonl, row 1: answer has a lone surrogate at"),
        ('{"question": "q", "answer": ""}', r"sums.jsonl, row 1: answer is empty"),
    ],
)
def test_a_bad_row_is_told_by_file_and_number(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Rows(path).tasks("train")


def test_a_missing_or_foreign_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.jsonl: no such file"):
        Rows(Path("nowhere.jsonl")).tasks("train")
    (tmp_path / "sums.csv").write_text("a,b")
    with pytest.raises(ValueError, match=r"sums.csv: must be a .jsonl, .json or .parquet file"):
        Rows(tmp_path / "sums.csv").tasks("train")
    with pytest.raises(ValueError, match=r"^test: evaluation needs held-out tasks"):
        Rows(Path("nowhere.jsonl")).tasks("test")


@pytest.mark.parametrize("write", [jsonl, parquet])
def test_gsm8k_keeps_the_marked_number(tmp_path: Path, write: Callable[[Path, list[Any]], str]) -> None:
    env = Gsm8k(train=write(tmp_path / "train.jsonl", QUESTIONS))
    tasks = env.tasks("train")
    assert [task.answer for task in tasks] == ["72", "1080", "-5"]
    assert tasks[0].prompt == "Clips in all?"
    assert tasks[0].meta["solution"].startswith("48 + 24")


def test_a_workflow_without_an_answer_fails_its_episode_and_never_counts_as_wrong(tmp_path: Path) -> None:
    env = attach_reward(Gsm8k(train=jsonl(tmp_path / "train.jsonl", QUESTIONS)), "number", {}, 1.0)
    with pytest.raises(BadAnswer, match=r"the workflow returned None, .* `return turn\.text`"):
        asyncio.run(env.score(Episode("e", env.tasks("train")[0], 0)))


@pytest.mark.parametrize("answer", [{"nobody": "72"}, ("72", {"metric": 1.0}), ["72"], None])
def test_an_answer_that_is_no_text_is_never_graded_as_a_wrong_one(answer: Any) -> None:
    for reward in ("number", "exact", "math", "qa"):
        told = rf"reward {reward} grades a text, and the workflow returned .*; return a text"
        with pytest.raises(BadAnswer, match=told):
            asyncio.run(make_grader(reward, {}, 1.0)(answer, "72"))


def test_gsm8k_tells_of_a_row_without_a_marked_answer(tmp_path: Path) -> None:
    rows = [*QUESTIONS, {"question": "q", "answer": "72"}]
    with pytest.raises(ValueError, match=r"train.jsonl, row 4: the answer does not end in `#### number`"):
        Gsm8k(train=jsonl(tmp_path / "train.jsonl", rows)).tasks("train")


def test_gsm8k_without_a_file_or_the_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr("coterie.data.hub.snapshot_download", offline)
    with pytest.raises(ValueError, match=r"gsm8k: download from the Hugging Face hub failed \(no route\); .*--source"):
        Gsm8k().tasks("train")


def test_every_gsm8k_solution_is_worth_its_answer() -> None:
    folder = Path(os.environ.get("COTERIE_DATA", "")) / "gsm8k"
    if not (folder / "train.jsonl").is_file():
        pytest.skip("COTERIE_DATA names no folder with gsm8k")
    env = attach_reward(Gsm8k(folder / "train.jsonl", folder / "test_200.jsonl"), "number", {}, 1.0)
    assert isinstance(env, TaskEnv)
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test)) == (7473, 200)
    assert all(asyncio.run(worth_of_solutions(env, [*train, *test])))


async def worth_of_solutions(env: TaskEnv, tasks: list[Task]) -> list[float]:
    return [await env.grade(task.meta["solution"], task.answer) for task in tasks]
