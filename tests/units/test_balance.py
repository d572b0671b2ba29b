"""Laws of balancing: as many right as wrong answers per question, and every label is the grader's."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.cli.verifier_data import NothingKept, TopUp, balance
from coterie.config import ConfigError
from coterie.rewards import Grader, GraderFailed
from coterie.rewards.answer_extraction import last_number
from coterie.rewards.exact_match import number
from coterie.verifier.answers import Answer, read_answers, write_answers
from coterie.verifier.balance import choose, group
from coterie.verifier.perturb import moved, perturb
from tests.commands import coterie, stdout_of


def answers(question: str, right: int, wrong: int, truth: int = 7) -> list[Answer]:
    """Distinct answers to a question; the right ones end with the truth."""
    texts = [(f"({n}) it is {truth}", 1.0) for n in range(right)] + [
        (f"it is {truth + 1 + n}", 0.0) for n in range(wrong)
    ]
    return [Answer(f"rows/{question}", question, text, (1, 2), "a", 1.0, label, -1.0) for text, label in texts]


def kept_kinds(kept: list[Answer]) -> dict[str, tuple[int, int]]:
    """By question, how many right and wrong answers were kept."""
    counts = Counter((answer.question, answer.right) for answer in kept)
    return {question: (counts[question, True], counts[question, False]) for question, _ in counts}


def test_every_question_keeps_as_many_right_as_wrong_answers_and_one_of_one_kind_is_dropped() -> None:
    given = {"many": (5, 9), "few": (1, 4), "easy": (3, 0), "hard": (0, 3), "even": (2, 2)}
    read = [answer for question, (right, wrong) in given.items() for answer in answers(question, right, wrong)]
    random.Random(0).shuffle(read)
    questions = group(read)
    assert kept_kinds(choose(questions, 3)) == {"many": (3, 3), "few": (1, 1), "even": (2, 2)}
    assert set(choose(questions, 3)) <= set(read) and choose(questions, 3) == choose(group(read), 3)
    outcomes = {question: one.outcome(2) for question, one in questions.items()}
    assert outcomes == {
        "many": "kept with 2 of each",
        "few": "kept with fewer than 2 of each",
        "easy": "dropped: no wrong answer",
        "hard": "dropped: no right answer",
        "even": "kept with 2 of each",
    }


def test_an_answer_that_was_given_twice_or_to_another_task_with_the_same_question_counts_once() -> None:
    twice = answers("q", 1, 1) * 3 + [replace(answer, task="rows/again") for answer in answers("q", 1, 1)]
    assert kept_kinds(choose(group(twice), 4)) == {"q": (1, 1)}


def test_sampled_wrong_answers_come_before_perturbed_ones() -> None:
    sampled = answers("q", 3, 1)
    perturbed = [replace(sampled[0], text=f"made {n}", label=0.0, perturbed=True) for n in range(5)]
    for k, expected in ((1, [False]), (3, [False, True, True])):
        kept = choose(group([*perturbed, *sampled]), k)
        assert [answer.perturbed for answer in kept if not answer.right] == expected


@pytest.mark.parametrize(
    ("digits", "step", "after"),
    [("12", 3, "15"), ("1,999", 1, "2,000"), ("0.50", -5, "0.45"), ("2", -3, "5"), ("0.05", 1, "0.06"),
     (".5", 1, "0.6"), ("10", -10, "0"), ("1,000", -1, "999"), ("007", 1, "8")],
)  # fmt: skip
def test_a_number_moves_by_units_of_its_last_digit(digits: str, step: int, after: str) -> None:
    assert moved(digits, step) == after


def test_a_perturbed_text_has_another_last_number_and_agrees_with_itself() -> None:
    for seed in range(50):
        text = perturb("3 + 4 = 7. So 3 + 4 is 7. The answer is $7.", random.Random(seed))
        assert text is not None and text.startswith("3 + 4 = 7. So 3 + 4 is ")
        stated, final = text.removesuffix(".").split("3 + 4 is ")[1].split(". The answer is $")
        assert stated == final and last_number(text) not in (None, 7)
    assert perturb("no number", random.Random(0)) is None
    assert perturb("9" * 5000, random.Random(0)) is None


def rows_config(model: Path, folder: Path, truths: dict[str, Any], **changes: Any) -> Path:
    """A config with these questions and their reference answers."""
    rows = [{"question": question, "answer": truth} for question, truth in truths.items()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree: dict[str, Any] = {
        "tasks_per_step": 2,
        "policies": {"a": {"model": str(model), "lora": {"rank": 2}}},
        "roles": {"solver": "a"},
        "workflow": "single",
        "env": {"name": "rows", "train": "rows.jsonl", "test": "rows.jsonl"},
        "reward": "number",
        "algorithm": "grpo",
        "sampling": {"max_tokens": 4},
        "device": "cpu",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(tree | changes))
    return folder / "config.yaml"


def numbered(read: list[Answer]) -> list[Answer]:
    """The answers with the task ids of a file of rows."""
    ids = {question: f"rows/{n}" for n, question in enumerate(dict.fromkeys(a.question for a in read), 1)}
    return [replace(answer, task=ids[answer.question]) for answer in read]


def test_missing_wrong_answers_are_made_from_right_ones_and_graded_again(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    read = numbered([*answers("easy", 4, 0), *answers("half", 4, 1), *answers("hard", 0, 2)])
    config = rows_config(model_folder("llama"), tmp_path, {"easy": 7, "half": 7, "hard": 7})
    write_answers(tmp_path / "a.parquet", read)
    out = stdout_of(
        "verifier", "balance", tmp_path / "a.parquet", "--out", tmp_path / "b.parquet", "--per-label", 3,
        "--config", config, "--rounds", 0,
    )  # fmt: skip
    kept = read_answers(tmp_path / "b.parquet")
    assert kept_kinds(kept) == {"easy": (3, 3), "half": (3, 3)}
    assert all(answer.label == number(answer.text, 7) for answer in kept)
    made = [answer for answer in kept if answer.perturbed]
    assert Counter(answer.question for answer in made) == {"easy": 3, "half": 2}
    assert all(isnan(answer.logprob) and answer.ids not in ((1, 2), ()) for answer in made)
    assert "questions dropped: no right answer" in out and "of these perturbed" in out
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_perturbed_answer_that_the_grader_calls_right_is_not_kept(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """A grader that ignores the number: whatever is changed stays right."""
    config = rows_config(model_folder("llama"), tmp_path, {"q": 7}, reward={"name": "format", "pattern": "it is"})
    write_answers(tmp_path / "a.parquet", numbered(answers("q", 4, 0)))
    with pytest.raises(NothingKept, match="no wrong answer"):
        balance(tmp_path / "a.parquet", tmp_path / "b.parquet", 2, None, only_perturbing(config))
    assert not (tmp_path / "b.parquet").exists()


def test_answers_of_a_base_are_perturbed_and_those_of_an_unknown_policy_are_refused(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    config = rows_config(model_folder("llama"), tmp_path, {"q": 7})
    for policy in ("a (base)", "b"):
        read = [replace(answer, policy=policy) for answer in numbered(answers("q", 2, 0))]
        write_answers(tmp_path / f"{policy}.parquet", read)
    balance(tmp_path / "a (base).parquet", tmp_path / "c.parquet", 2, None, only_perturbing(config))
    assert kept_kinds(read_answers(tmp_path / "c.parquet")) == {"q": (2, 2)}
    with pytest.raises(ConfigError, match="the answers have the policy b, and the config has a, "):
        balance(tmp_path / "b.parquet", tmp_path / "d.parquet", 2, None, only_perturbing(config))


def test_a_perturbed_answer_on_which_the_grader_fails_is_not_kept(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> float:
        raise GraderFailed("died")

    monkeypatch.setattr(Grader, "__call__", fail)
    monkeypatch.setattr("coterie.rollout.scoring.BACKOFF", ())
    config = rows_config(model_folder("llama"), tmp_path, {"q": 7, "r": 7})
    write_answers(tmp_path / "a.parquet", numbered([*answers("q", 2, 0), *answers("r", 1, 1)]))
    balance(tmp_path / "a.parquet", tmp_path / "b.parquet", 2, None, only_perturbing(config))
    assert kept_kinds(read_answers(tmp_path / "b.parquet")) == {"r": (1, 1)}


def only_perturbing(config: Path) -> TopUp:
    return TopUp(config, [], None, 0, 1, [], [], True)


def test_short_questions_are_sampled_again(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    pattern = {"name": "format", "pattern": "[a-l]"}
    config = rows_config(model_folder("llama"), tmp_path, {"What is 1 + 1?": "?", "full": "?"}, reward=pattern)
    read = numbered([*answers("What is 1 + 1?", 1, 0), *answers("full", 2, 2)])
    write_answers(tmp_path / "a.parquet", read)
    words = ["verifier", "balance", tmp_path / "a.parquet", "--config", config, "--no-perturb", "--rounds", 4]
    out = stdout_of(*words, "--out", tmp_path / "b.parquet")
    kept = read_answers(tmp_path / "b.parquet")
    assert kept_kinds(kept) == {"What is 1 + 1?": (2, 2), "full": (2, 2)} and "tasks 1/1" in out
    assert not any(answer.perturbed for answer in kept) and not (tmp_path / "b.parquet.parts").exists()
    stdout_of(*words, "--out", tmp_path / "c.parquet")
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "c.parquet").read_bytes()


def test_answers_of_another_config_are_refused(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    config = rows_config(model_folder("llama"), tmp_path, {"other": 7})
    for task, text in (("rows/1", "another question: 'other'"), ("rows/2", "no such task")):
        file = tmp_path / f"{Path(task).name}.parquet"
        write_answers(file, [replace(answer, task=task) for answer in answers("q", 1, 1)])
        with pytest.raises(ConfigError, match=f"the task {task}, and the config has {text}"):
            balance(file, tmp_path / "b.parquet", 2, None, only_perturbing(config))


@pytest.mark.parametrize("option", ["--policy a", "--answers 3", "--rounds 0", "--no-perturb", "steps=1"])
def test_options_without_a_config_are_refused(tmp_path: Path, option: str) -> None:
    result = coterie("verifier", "balance", tmp_path / "a", "--out", tmp_path / "b", *option.split())
    assert result.exit_code == 2 and "no effect without --config" in result.stderr


def test_a_picture_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "b.png").touch()
    result = coterie("verifier", "balance", tmp_path / "a", "--out", tmp_path / "b.parquet")
    assert result.exit_code == 2 and "b.png" in result.stderr
