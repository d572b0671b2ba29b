"""Laws of the graders: what is right, what is less right, and that no answer whatever stops them."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.config import ConfigError, dump, load
from coterie.config.conflicts import check_conflicts
from coterie.data.files import read
from coterie.data.sources import SOURCES
from coterie.envs.base import TaskEnv, attach_reward
from coterie.envs.reasoning_gym import ReasoningGym
from coterie.rewards import GraderTimeout, make_grader
from coterie.rewards.answer_extraction import final_answer, last_number
from coterie.rewards.choice import choice, letter
from coterie.rewards.exact_match import number
from coterie.rewards.format import format as form
from coterie.rewards.length import length
from coterie.rewards.nli import label, nli
from coterie.rewards.qa import qa
from coterie.types import Task, Weighted
from tests.hangs import HANG


def grade(name: str, answer: Any, truth: Any, deadline: float = HANG, **options: Any) -> float:
    return asyncio.run(make_grader(name, options, deadline)(answer, truth))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris", "Paris"),
        ("I say \\boxed{\\text{Paris}}.", "Paris"),
        ("<answer>Rome</answer> no, <answer> Paris </answer>", "Paris"),
        ("Rome?\n#### Paris\n", "Paris"),
        ("**Final Answer**: Paris", "Paris"),
        ("Answer:\nParis", "Paris"),
        ("The answer is Rome. No! The answer is: **Paris**", "Paris"),
        ("\\boxed{} so the answer is Paris", "Paris"),
        ("<answer>Paris", "<answer>Paris"),
    ],
)
def test_the_answer_is_what_a_text_sets_apart(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "truth", "f1", "exact"),
    [
        ("the Eiffel tower!", "Eiffel Tower", 1.0, 1.0),
        ("Eiffel", "Eiffel Tower", 2 / 3, 0.0),
        ("The answer is the Tower of Eiffel", "Eiffel Tower", 0.8, 0.0),
        ("yes and no", "no", 0.0, 0.0),
        ("Yes.", "yes", 1.0, 1.0),
        ("no", "yes", 0.0, 0.0),
        ("London", ["Paris", "London town", "london"], 1.0, 1.0),
        ("", "Paris", 0.0, 0.0),
        ("a", "A", 1.0, 1.0),
        ("1955", 1955, 1.0, 1.0),
    ],
)
def test_qa_counts_shared_words(answer: str, truth: Any, f1: float, exact: float) -> None:
    assert qa(answer, truth) == pytest.approx(f1)
    assert qa(answer, truth, measure="exact") == exact


def test_f1_is_as_the_definition_says() -> None:
    """Precision and recall of words, counted one by one."""
    draw = random.Random(0)
    for _ in range(200):
        said, gold = (draw.choices("bcde", k=draw.randint(1, 6)) for _ in range(2))
        left, shared = list(gold), 0
        for word in said:
            if word in left:
                left.remove(word)
                shared += 1
        precision, recall = shared / len(said), shared / len(gold)
        expected = 2 * precision * recall / (precision + recall) if shared else 0.0
        assert qa(" ".join(said), " ".join(gold)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("entailment", "entailment"),
        ("Not neutral: it CONTRADICTS the premise.", "contradiction"),
        ("\\boxed{\\text{Neutral}}, though a contradiction is near", "neutral"),
        ("Answer: e", "entailment"),
        ("(c)", "contradiction"),
        ("1", "neutral"),
        ("<answer>it depends</answer> so neutral", "neutral"),
        ("e is for elephant", None),
        ("", None),
    ],
)
def test_a_relation_is_read_from_words_letters_and_numbers(text: str, found: str | None) -> None:
    assert label(text) == found


def test_nli_compares_labels_however_they_are_written() -> None:
    assert nli("It is entailed.", "e") == nli("entailment", 0) == 1.0
    assert nli("neutral", "contradiction") == nli("no idea", "n") == 0.0
    with pytest.raises(ValueError, match="'maybe' is none of entailment"):
        nli("neutral", "maybe")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(C) Paris", "C"),
        ("Answer: **D**.", "D"),
        ("A dog barks, so C.", "C"),
        ("A", "A"),
        ("A.", "A"),
        ("The answer is A because of B", "A"),
        ("\\boxed{\\text{B}}", "B"),
        ("B or C? I pick B since it fits", "B"),
        ("I am Bob", None),
        ("E", None),
        ("", None),
    ],
)
def test_a_choice_is_a_letter_that_stands_alone(text: str, found: str | None) -> None:
    assert letter(text) == found


def test_choice_takes_letters_and_their_numbers() -> None:
    assert choice("It is (b)", "B") == choice("B", 1) == choice("E", "E", letters="ABCDE") == 1.0
    assert choice("A", "B") == 0.0
    with pytest.raises(ValueError, match="'E' is none of A, B, C, D"):
        choice("A", "E")


def test_a_form_is_a_pattern_and_filled_sections_in_order() -> None:
    whole = "<think>2 + 2\n= 4</think>\n<answer>4</answer>"
    assert form(whole, None, sections=("think", "answer")) == 1.0
    for broken in (
        "<answer>4</answer><think>x</think>",
        "<think> </think><answer>4</answer>",
        "<think>x</think><answer>4",
        whole + "<answer>5</answer>",
        "4",
    ):
        assert form(broken, None, sections=("think", "answer")) == 0.0
    assert form(whole, None, pattern=r"^<think>.*</answer>$") == 1.0
    assert form(whole, None, pattern=r"^<answer>", sections=("think",)) == 0.0


def test_length_costs_in_proportion_outside_a_range() -> None:
    costs = [length("word " * size, None, least=10, most=20, margin=10) for size in (0, 5, 10, 20, 25, 30, 99)]
    assert costs == [-1.0, -0.5, 0.0, 0.0, -0.5, -1.0, -1.0]
    assert length("abc", None, most=2, unit="characters") == -1.0


COMPOSED = {
    "name": "compose",
    "parts": [
        {"name": "math", "weight": 0.9},
        {"name": "format", "pattern": "^<think>", "weight": 0.1},
        {"name": "length", "most": 5, "weight": 0.5},
    ],
}


def recipe(folder: Path, reward: Any) -> Path:
    (folder / "sums.jsonl").write_text('{"question": "1 + 1", "answer": 2}\n')
    parts = {
        "policies": {"small": {}},
        "roles": {"solver": "small"},
        "workflow": {"name": "single"},
        "env": {"name": "rows", "train": "sums.jsonl", "test": "sums.jsonl"},
        "reward": reward,
        "algorithm": "grpo",
    }
    path = folder / "sums.yaml"
    path.write_text(yaml.safe_dump(parts, sort_keys=False))
    return path


def test_a_composed_reward_adds_weighted_parts(tmp_path: Path) -> None:
    config = load(recipe(tmp_path, COMPOSED))
    env = attach_reward(config.env.instance, config.reward.name, config.reward.options, 20.0)
    assert isinstance(env, TaskEnv)
    worth = {
        text: asyncio.run(env.grade(text, 2)) for text in ("<think> 2", "2", "<think> 3", "3", "one two 3 4 5 6 2")
    }
    assert list(worth.values()) == pytest.approx([1.0, 0.9, 0.1, 0.0, 0.4])


def test_a_composed_reward_is_stored_as_it_was_read(tmp_path: Path) -> None:
    config = load(recipe(tmp_path, COMPOSED))
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load(tmp_path / "again.yaml", ["name=sums"]) == config


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"name": "format", "patern": "x"}, r"reward.parts.0.patern: unknown key; .*did you mean pattern\?.*line \d+"),
        ({"name": "formt"}, r"reward.parts.0.name: no reward is called 'formt'.*did you mean format"),
        ({"name": "math", "weight": "much"}, r"reward.parts.0.weight: got the text 'much', expected a number"),
        ({"name": "length"}, r"reward.parts.0.most: missing"),
        ({"weight": 1.0}, r"reward.parts.0: got a mapping, expected a name"),
        ({"name": "format", "pattern": "("}, r"parts.0: reward format: pattern '\(' is not a regular expression"),
        ({"name": "format"}, r"parts.0: reward format: give a pattern, sections, or both"),
        ({"name": "length", "most": 1, "least": 2}, r"parts.0: reward length: 0 ≤ least ≤ most"),
        ({"name": "native"}, r"parts.0: native, an environment's own score, cannot be a part"),
    ],
)
def test_a_mistake_in_a_part_is_told_before_anything_runs(tmp_path: Path, part: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config = load(recipe(tmp_path, {"name": "compose", "parts": [part]}))
        check_conflicts(config)


def test_a_users_function_may_be_a_part(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def half(answer, truth, *, scale=1.0): return 0.5 * scale")
    parts = [{"name": "mine.py:half", "scale": 3.0, "weight": 2}, "exact"]
    config = load(recipe(tmp_path, {"name": "compose", "parts": parts}))
    assert grade("compose", "2", 2, parts=config.reward.options["parts"]) == 4.0


@pytest.mark.parametrize(
    ("reward", "dataset", "needed"),
    [
        ("math", "countdown", False),
        ("code", "countdown", True),
        ("native", "countdown", True),
        ("native", "chain_sum", False),
        ("native", "n_queens", True),
    ],
)
def test_a_grader_says_whether_it_executes_what_a_model_wrote(reward: str, dataset: str, needed: bool) -> None:
    env = attach_reward(ReasoningGym(dataset, size=2, test_size=1), reward, {}, 3.0)
    assert isinstance(env, TaskEnv)
    assert env.grade.needs_sandbox is needed


def test_a_composed_reward_needs_what_its_parts_need() -> None:
    parts = [Weighted(name, {}, None, 1.0) for name in ("exact", "code")]
    assert make_grader("compose", {"parts": tuple(parts)}, 3.0).needs_sandbox
    assert not make_grader("compose", {"parts": tuple(parts[:1])}, 3.0).needs_sandbox


def test_countdown_is_scored_by_its_own_scorer_wherever_the_answer_stands() -> None:
    env = attach_reward(ReasoningGym("countdown", size=2, test_size=1), "native", {}, 30.0)
    assert isinstance(env, TaskEnv)
    task = env.tasks("train")[0]

    def worth(answer: str) -> float:
        return asyncio.run(env.grade(answer, env.reference(task)))

    assert [worth(task.answer), worth(f"I try. <answer>{task.answer}</answer>")] == [1.0, 1.0]
    assert max(worth(f"{task.answer} + 1"), worth("?")) < 0.1


# --- real data ---


def rows_of(source: str, *files: str) -> list[Any]:
    folder = Path(os.environ.get("COTERIE_DATA", ""))
    if not os.environ.get("COTERIE_DATA") or not (folder / files[0]).is_file():
        pytest.skip(f"COTERIE_DATA names no folder with {files[0]}")
    raws = [raw for file in files for _, raw in read(folder / file)]
    return [SOURCES[source].parse(raw, str(i)) for i, raw in enumerate(raws)]


WAYS = ("{}", "So <answer>{}</answer>.", "First.\nAnswer: {}")
WRONG = {"entailment": "neutral", "neutral": "contradiction", "contradiction": "entailment"}


@pytest.mark.parametrize("way", WAYS)
def test_every_anli_label_is_right_and_every_other_wrong(way: str) -> None:
    tasks = rows_of("anli", "anli/r1_dev.jsonl", "anli/r2_dev.jsonl")
    assert len(tasks) == 2000
    assert all(nli(way.format(task.answer), task.answer) == 1.0 for task in tasks)
    assert all(nli(way.format(WRONG[task.answer]), task.answer) == 0.0 for task in tasks)


@pytest.mark.parametrize("way", WAYS)
def test_every_hotpotqa_answer_is_right_and_a_changed_one_less(way: str) -> None:
    tasks = rows_of("hotpotqa", "hotpotqa/distractor_100.jsonl")
    assert len(tasks) == 100
    for task in tasks:
        for measure in ("f1", "exact"):
            assert qa(way.format(task.answer), task.answer, measure=measure) == 1.0
            assert qa(way.format(f"{task.answer} perhaps"), task.answer, measure=measure) < 1.0
            assert qa(way.format("nothing of it"), task.answer, measure=measure) < 0.5


def test_every_math500_answer_is_right_in_its_box_and_a_changed_one_wrong() -> None:
    """In the worker process, under a deadline, as in a run."""
    tasks = rows_of("math500", "math500/math500.jsonl")
    right, changed = asyncio.run(both([rf"\boxed{{{task.answer}}}" for task in tasks], tasks))
    assert [task.answer for task, worth in zip(tasks, right, strict=True) if worth != 1.0] == []
    kept = [task.answer for task, worth in zip(tasks, changed, strict=True) if worth != 0.0]
    assert kept == []


async def both(answers: list[str], tasks: list[Any]) -> tuple[list[float], list[float]]:
    ask = make_grader("math", {}, 20.0)
    right = await asyncio.gather(*(ask(answer, task.answer) for answer, task in zip(answers, tasks, strict=True)))
    golds = [task.answer.removeprefix("x=") for task in tasks]  # to math-verify, x=5 and 5 are the same
    other = [golds[i - 1] if golds[i - 1] != gold else "123456" for i, gold in enumerate(golds)]
    changed = await asyncio.gather(
        *(ask(rf"\boxed{{{wrong}}}", task.answer) for wrong, task in zip(other, tasks, strict=True))
    )
    return list(right), list(changed)


def test_every_gsm8k_answer_is_right_and_one_more_is_wrong() -> None:
    tasks = rows_of("gsm8k", "gsm8k/train.jsonl", "gsm8k/test_200.jsonl")
    assert len(tasks) == 7673
    assert all(number(task.meta["solution"], task.answer) == 1.0 for task in tasks)
    assert all(number(f"{last_number(task.answer) + 1}", task.answer) == 0.0 for task in tasks)


def test_a_pattern_that_never_ends_is_killed() -> None:
    with pytest.raises(GraderTimeout):
        grade("format", "a" * 5000 + "!", None, deadline=0.5, pattern="^(a+)+$")
    part = Weighted("format", {"pattern": "^(a+)+$", "sections": ()}, None, 1.0)
    with pytest.raises(GraderTimeout):
        grade("compose", "a" * 5000 + "!", None, deadline=0.5, parts=(part,))
    assert grade("format", "aaa", None, pattern="^(a+)+$", sections=()) == 1.0


def test_the_task_of_a_code_environment_gives_its_tests_to_the_grader() -> None:
    from coterie.envs.code import Mbpp

    task = Task("t", "?", "def f(): return 1", {"tests": {"test_list": ["assert f() == 1"]}})
    assert Mbpp().reference(task) == {"test_list": ["assert f() == 1"]}
