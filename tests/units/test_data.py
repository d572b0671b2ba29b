"""Laws of data preparation: every good row becomes a task, every bad one is set aside with the reason."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from rich.table import Table

from coterie.cli.data import gym_rows, gym_source
from coterie.data.files import as_parquet, is_prepared, read, read_prepared, storage_problem
from coterie.data.hub import from_hub
from coterie.data.prepare import SPLITS, SourceRow, read_source, split_by_hash, split_from_name, split_rows, write
from coterie.data.preview import statistics
from coterie.data.row import Raw, Row
from coterie.data.sources import SOURCES
from coterie.envs.base import TaskEnv, attach_reward
from coterie.envs.code import DeepCoder, HumanEval, Mbpp
from coterie.envs.dataset_env import Aime, Anli, DatasetEnv, Gsm8k, HotpotQa, Math
from coterie.envs.rows import Rows
from coterie.envs.swe.env import Swe
from coterie.rewards.code.test_formats import read_tests
from coterie.types import Episode
from tests.commands import coterie
from tests.hub import hub, parquet

MBPP = {"text": "Add.", "code": "def add(a, b): return a + b", "task_id": 601, "test_list": ["assert add(1, 2) == 3"]}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def one():\n    '''Give 1.'''\n",
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}
SWE = {
    "instance_id": "a__a-1",
    "repo": "a/a",
    "base_commit": "f00",
    "problem_statement": "It breaks.",
    "patch": "+ fixed",
    "test_patch": "+ test",
    "FAIL_TO_PASS": '["test_a"]',
    "PASS_TO_PASS": [],
}
HOTPOT = {
    "id": "h1",
    "question": "Where?",
    "answer": "Bath",
    "supporting_facts": {"title": ["Bath"], "sent_id": [0]},
    "context": {"title": ["Bath", "Rome"], "sentences": [["Bath is here.", " It is old."], ["Rome is not."]]},
}
# A source's row and what of it a task has.
GOOD: list[tuple[str, Raw, tuple[str, str | None]]] = [
    ("gsm8k", {"question": "Pay?", "answer": "It is\n#### 1,080"}, ("Pay?", "1080")),
    ("deepscaler", {"problem": "1 + 1", "answer": "2", "type": "Algebra"}, ("1 + 1", "2")),
    ("aime2024", {"problem": "1 + 1", "answer": 2, "year": 2024}, ("1 + 1", "2")),
    ("math500", {"problem": "1 + 1", "answer": "2", "unique_id": "test/a/1.json"}, ("1 + 1", "2")),
    ("anli", {"premise": "P", "hypothesis": "H", "label": 2}, ("Premise: P\nHypothesis: H", "contradiction")),
    (
        "anli",
        {"uid": "u", "premise": "P", "hypothesis": "H", "label": "e"},
        ("Premise: P\nHypothesis: H", "entailment"),
    ),
    ("hotpotqa", HOTPOT, ("Where?", "Bath")),
    ("mbpp", MBPP, ("Add.\nYour code must pass this test:\nassert add(1, 2) == 3", MBPP["code"])),
    ("swebench", SWE, ("It breaks.", "+ fixed")),
    ("deepcoder", {"problem": "Add.", "tests": {"inputs": ["1 2"], "outputs": ["3"]}}, ("Add.", None)),
]
BAD: list[tuple[str, Raw, str]] = [
    ("gsm8k", {"question": "Pay?"}, "no field answer; it has question"),
    ("gsm8k", {"question": "Pay?", "answer": "#### none"}, "the answer does not end in `#### number`"),
    ("gsm8k", {"question": " ", "answer": "#### 1"}, "question is empty"),
    ("deepscaler", {"problem": "p", "answer": None}, "answer is null, not text"),
    ("anli", {"premise": "P", "hypothesis": "H", "label": -1}, "label is '-1', not one of"),
    (
        "hotpotqa",
        {"question": "q", "answer": "a", "context": [1]},
        "context and supporting_facts are not lists of pairs",
    ),
    ("mbpp", {**MBPP, "test_list": []}, "test_list is not a list of asserts"),
    ("mbpp", {**MBPP, "test_list": ["assert ("]}, "tests cannot be read: SyntaxError"),
    ("humaneval", {**HUMANEVAL, "test": "def check(candidate): pass"}, "tests cannot be read: .*have no assert"),
    ("deepcoder", {"problem": "p"}, "no field tests"),
    ("deepcoder", {"problem": "p", "tests": "{"}, "tests are not JSON"),
    ("deepcoder", {"problem": "p", "tests": []}, "tests cannot be read"),
    ("swebench", {**SWE, "FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty"),
    ("swebench", {**SWE, "PASS_TO_PASS": "x"}, "PASS_TO_PASS is not a list of tests"),
]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("name", "raw", "wanted"), GOOD)
def test_a_sources_row_becomes_a_question_and_an_answer(name: str, raw: Raw, wanted: tuple[str, str | None]) -> None:
    row = SOURCES[name].parse(raw, "the/id")
    assert isinstance(row, Row), row
    assert (row.question, row.answer) == wanted
    assert storage_problem(row) is None


@pytest.mark.parametrize(("name", "raw", "reason"), BAD)
def test_a_bad_row_is_told_why(name: str, raw: Raw, reason: str) -> None:
    found = split_rows(SOURCES[name], [SourceRow("x.jsonl", 1, raw, None)])
    ((_, why),) = found.rejected
    assert re.search(reason, why), why


def test_what_a_search_team_needs_is_in_the_meta_whichever_way_it_came() -> None:
    pairs = {**HOTPOT, "supporting_facts": [["Bath", 0]]}
    pairs["context"] = [["Bath", ["Bath is here.", " It is old."]], ["Rome", ["Rome is not."]]]
    hub, file = (SOURCES["hotpotqa"].parse(raw, "") for raw in (HOTPOT, pairs))
    assert isinstance(hub, Row) and hub == file
    assert hub.id == "h1" and hub.meta["supporting_facts"] == [["Bath", 0]]


@pytest.mark.parametrize(
    "tests",
    [
        {"functional": "def check(candidate):\n    assert candidate(1) == 2\ncheck(Solution().f)"},
        {"fn_name": "f", "inputs": [[1]], "outputs": [2]},
        [{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}],
        [{"type": "stdin_stdout", "input": "1", "output": "2"}],
        [{"testtype": "functional", "input": "1", "output": "2", "metadata": {"func_name": "f"}}],
        [{"testtype": "functional", "input": "1", "output": "2"}],
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_every_way_to_write_tests_is_read_by_the_code_grader(tests: Any, as_text: bool) -> None:
    raw = {"problem": "p", "solutions": ["x = 1"], "tests": json.dumps(tests) if as_text else tests}
    row = SOURCES["deepcoder"].parse(raw | {"metadata": {"func_name": "f"}}, "d/1")
    assert isinstance(row, Row), row
    assert row.answer == "x = 1" and read_tests(row.meta["tests"]).inputs


def test_mbpp_is_split_as_its_authors_did() -> None:
    rows = [{**MBPP, "task_id": number, "text": f"Add {number}."} for number in (1, 10, 11, 510, 511, 974)]
    splits = split_rows(SOURCES["mbpp"], [SourceRow("mbpp.jsonl", 1, row, None) for row in rows]).splits
    assert [row.id for row in splits["test"]] == ["mbpp/11", "mbpp/510"]
    assert len(splits["train"]) == 4


def mbpp(*numbers: int) -> list[Raw]:
    return [{**MBPP, "task_id": number, "text": f"Add {number}."} for number in numbers]


def test_a_files_name_wins_over_the_ids_of_its_rows_and_that_is_told(tmp_path: Path) -> None:
    jsonl(tmp_path / "test.jsonl", mbpp(11, 601, 602))
    jsonl(tmp_path / "train.jsonl", mbpp(12, 603))
    jsonl(tmp_path / "more.jsonl", mbpp(13, 604))
    done = coterie("data", "prepare", "mbpp", "--source", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    rows = {split: [row.id for row in read_prepared(tmp_path / "out" / f"{split}.parquet")] for split in SPLITS}
    assert rows == {
        "train": ["mbpp/604", "mbpp/12", "mbpp/603"],
        "test": ["mbpp/13", "mbpp/11", "mbpp/601", "mbpp/602"],
    }
    told = " ".join(done.output.split())
    for line in (
        "test.parquet 1 of test.jsonl, as its name says test.parquet",
        "test.parquet 2 of test.jsonl, as its name says, although their ids say train",
        "train.parquet 1 of train.jsonl, as its name says, although their ids say test",
        "test.parquet 1 of more.jsonl, by their ids",
    ):
        assert line in told, told


def test_a_file_whose_name_says_both_splits_is_refused(tmp_path: Path) -> None:
    jsonl(tmp_path / "train_and_test.jsonl", mbpp(11, 601))
    done = coterie("data", "prepare", "mbpp", "--source", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "train_and_test: the file's name contains both train and test; rename it" in done.output


def problems(count: int, start: int = 0) -> list[Raw]:
    return [{"problem": f"{n} + 1", "answer": str(n + 1)} for n in range(start, start + count)]


def test_deepscaler_has_a_held_out_split_that_shares_no_question_with_training() -> None:
    rows = [*problems(300), *problems(300)]  # its files overlap
    found = [SourceRow("train_math.jsonl", i, row, "train") for i, row in enumerate(rows, 1)]
    result = split_rows(SOURCES["deepscaler"], found)
    train, test = ({row.question for row in result.splits[split]} for split in ("train", "test"))
    assert 30 < len(test) < 90 and len(train) + len(test) == 300 and not train & test
    assert len(result.splits["test"]) == len(test)  # and none comes twice
    own = [SourceRow("test.jsonl", i, row, "test") for i, row in enumerate(problems(5, start=900), 1)]
    result = split_rows(SOURCES["deepscaler"], [*found, *own])
    assert (len(result.splits["train"]), len(result.splits["test"])) == (300, 5)  # a test set of the user's own


def test_a_training_file_of_another_data_set_is_for_training_alone() -> None:
    found = [SourceRow("train.jsonl", i, row, "train") for i, row in enumerate(sums(50), 1)]
    assert not split_rows(SOURCES["gsm8k"], found).splits["test"]


def test_sentences_of_an_article_are_joined_by_one_space(tmp_path: Path) -> None:
    context = [["Bath", ["Bath is here.", "It is old. ", "", " So."]]]
    file = jsonl(tmp_path / "train.jsonl", [{**HOTPOT, "context": context}])
    (task,) = HotpotQa(file, prompt="{context}").tasks("train")
    assert task.prompt == "Bath\nBath is here. It is old. So."
    coterie("data", "prepare", "hotpotqa", "--source", file, "--out", tmp_path / "out")
    ((_, document),) = read(tmp_path / "out" / "corpus.jsonl")
    assert document == {"title": "Bath", "text": "Bath is here. It is old. So."}


def test_a_files_name_tells_its_split() -> None:
    names = {
        "r1_dev": "test",
        "test_200": "test",
        "train": "train",
        "train-00000-of-00001": "train",
        "validation": "test",
    }
    assert {name: split_from_name(name) for name in names} == names
    assert split_from_name("contest") is None and split_from_name("distractor_100") is None


def sums(count: int, start: int = 0) -> list[Raw]:
    return [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(start, start + count)]


def test_where_nothing_tells_some_rows_are_held_out_always_the_same() -> None:
    found = [SourceRow("all.jsonl", i, row, None) for i, row in enumerate(sums(500), 1)]
    splits = split_rows(SOURCES["gsm8k"], found).splits
    assert 60 < len(splits["test"]) < 140
    assert {row.question for row in splits["test"]} == {
        row["question"] for row in sums(500) if split_by_hash(row["question"]) == "test"
    }


def test_no_training_row_is_in_the_test_and_none_comes_twice() -> None:
    train, test = [*sums(10), *sums(2)], sums(3)
    found = [SourceRow("train", i, row, "train") for i, row in enumerate(train, 1)]
    found += [SourceRow("test", i, row, "test") for i, row in enumerate([*test, test[0]], 1)]
    result = split_rows(SOURCES["gsm8k"], found)
    assert [row.answer for row in result.splits["train"]] == ["4", "5", "6", "7", "8", "9", "10"]
    assert len(result.splits["test"]) == 4  # as its authors made it
    assert result.reasons == {"the same question as a row of the test": 5}
    twice = [SourceRow("a", i, {"uid": "u", "premise": str(i), "hypothesis": "h", "label": 0}, "test") for i in (1, 2)]
    assert split_rows(SOURCES["anli"], twice).reasons == {"the same id as an earlier row": 1}


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_prepared_files_are_what_the_environment_reads(tmp_path: Path, kind: str) -> None:
    for split, rows in (("train", sums(5)), ("test", sums(2, 50))):
        file = tmp_path / f"{split}.{kind}"
        if kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        elif kind == "json":
            file.write_text(json.dumps(rows))
        else:
            jsonl(file, rows)
    done = coterie("data", "prepare", "gsm8k", "--source", tmp_path, "--out", tmp_path / "out", "--limit", 4)
    assert done.exit_code == 0, done.output
    out = tmp_path / "out"
    assert sorted(file.name for file in out.iterdir()) == ["test.parquet", "train.parquet"]
    prepared = Gsm8k(out / "train.parquet", out / "test.parquet")
    raw = Gsm8k(tmp_path / f"train.{kind}", tmp_path / f"test.{kind}", limit=4)
    for split in ("train", "test"):
        assert prepared.tasks(split) == raw.tasks(split)  # the same ids, too
        assert prepared.tasks(split) == Rows(out / "train.parquet", out / "test.parquet").tasks(split)


def test_what_is_no_good_is_set_aside_with_the_reason(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in sums(2)]
    lines += [
        "{",
        "[1]",
        '{"question": "q"}',
        '{"question": "\\ud800", "answer": "#### 1"}',
        "",
        '{"a": ' * 5000,
        "\xff",
    ]
    file = tmp_path / "train.jsonl"
    file.write_bytes("\n".join(lines).encode("latin-1"))
    done = coterie("data", "prepare", "gsm8k", "--source", file, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert len(list(read_prepared(tmp_path / "out" / "train.parquet"))) == 2
    aside = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [row["row"] for row in aside] == [3, 4, 5, 6, 8, 9]
    for row, reason in zip(
        aside, ["not JSON", "not an object", "no field", "cannot be stored", "not JSON", "not JSON"], strict=True
    ):
        assert reason in row["reason"], row
    assert aside[2]["raw"] == {"question": "q"} and aside[2]["source"] == "train.jsonl"


def test_preparing_leaves_all_or_nothing(tmp_path: Path) -> None:
    result = split_rows(SOURCES["gsm8k"], [SourceRow("train", i, row, "train") for i, row in enumerate(sums(3), 1)])
    result.splits["test"].append(Row("broken", "q", "a", {"a set": {1}}))  # the train file is written before it
    with pytest.raises(TypeError):
        write("gsm8k", result, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare", "gsm8"], "gsm8: unknown; there are gsm8k,"),
        (["prepare", "gsm8k", "--source", "nowhere"], "nowhere: no such file or folder"),
        (["prepare", "gsm8k", "--source", "bad.jsonl"], "no valid row; the first problem: bad.jsonl, row 1: not JSON"),
        (["prepare", "gsm8k", "--source", "bad.json"], "bad.json: not JSON"),
        (["prepare", "gsm8k", "--source", "bad.parquet"], "bad.parquet: not Parquet"),
        (["prepare", "gsm8k", "--source", "bad.csv"], "bad.csv: must be a .jsonl, .json or .parquet file"),
        (["prepare", "gsm8k", "--source", "good.jsonl", "--out", "there"], "there already exists"),
        (["prepare", "reasoning_gym:chain_sums"], "did you mean chain_sum?"),
        (["prepare", "reasoning_gym:chain_sum", "--source", "x"], "--source has no effect"),
        (["show", "good.jsonl"], "good.jsonl: was not written by `coterie data prepare`"),
        (["stats", "nowhere"], "nowhere: no such file or folder"),
        (["stats", "."], "has no file written by `coterie data prepare`"),
    ],
)
def test_a_users_mistake_is_told_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("jsonl", "json", "parquet", "csv"):
        Path(f"bad.{kind}").write_text("{")
    jsonl(Path("good.jsonl"), sums(2))
    Path("there").mkdir()
    done = coterie("data", *words)
    assert done.exit_code == 2
    assert message in done.output


def test_list_show_and_stats_say_what_there_is(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", sums(4))
    coterie("data", "prepare", "gsm8k", "--source", tmp_path / "train.jsonl", "--out", tmp_path / "out")
    listed = coterie("data", "list").output
    assert all(name in listed for name in SOURCES)
    shown = coterie("data", "show", tmp_path / "out", "--rows", 1).output
    assert "What is 0 + 1?\n→ 1" in shown and "What is 1 + 1?" not in shown
    counted = coterie("data", "stats", tmp_path / "out").output
    assert "train.parquet" in counted and "25%" in counted


def test_stats_keep_an_answer_of_several_lines_in_one(tmp_path: Path) -> None:
    row = {**MBPP, "code": "def add(a, b):\n    return a + b"}
    jsonl(tmp_path / "mbpp.jsonl", [row])
    coterie("data", "prepare", "mbpp", "--source", tmp_path / "mbpp.jsonl", "--out", tmp_path / "out")
    (table,) = statistics(tmp_path / "out")
    assert isinstance(table, Table)
    assert [str(cell) for cell in table.columns[-1].cells] == ["def add(a, b): return a … 100%"]


def test_made_up_tasks_are_prepared_like_others(tmp_path: Path) -> None:
    name = "reasoning_gym:chain_sum"
    done = coterie("data", "prepare", name, "--out", tmp_path / "out", "--limit", 5)
    assert done.exit_code == 0, done.output
    out = tmp_path / "out"
    env = Rows(out / "train.parquet", out / "test.parquet")
    tasks = [*env.tasks("train"), *env.tasks("test")]
    assert len({task.id for task in tasks}) == len(tasks) == 10
    assert all(eval(task.meta["expression"]) == int(task.answer) for task in tasks)
    again = split_rows(gym_source(name), gym_rows(name, None, 5))
    assert again.splits["train"][0].question == tasks[0].prompt


def with_hub(address: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command whose hub is at this address, with a cache of its own and without the `datasets` package."""
    (folder / "without").mkdir(exist_ok=True)
    (folder / "without" / "datasets.py").write_text("raise ImportError('not a dependency')")
    path = os.pathsep.join([str(folder / "without"), *filter(None, sys.path)])
    own = {"HF_ENDPOINT": address, "HF_HOME": str(folder / "cache"), "PYTHONPATH": path, "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **own}, cwd=folder, capture_output=True, text=True, timeout=600
    )


PREPARE = ("-m", "coterie", "data", "prepare")
GSM8K_ON_THE_HUB = {
    "openai/gsm8k/main/train/0000.parquet": sums(3),
    "openai/gsm8k/main/train/0001.parquet": sums(2, 5),
    "openai/gsm8k/main/test/0000.parquet": sums(2, 9),
    "openai/gsm8k/socratic/train/0000.parquet": sums(4, 20),
}


def test_without_a_file_rows_come_from_the_hub(tmp_path: Path) -> None:
    """The real client of the hub, and a hub on loopback."""
    with hub(GSM8K_ON_THE_HUB) as (address, downloaded):
        done = with_hub(address, tmp_path, *PREPARE, "gsm8k")  # as the README has it
        assert done.returncode == 0, done.stderr
        assert sorted(downloaded) == sorted(path for path in GSM8K_ON_THE_HUB if "main" in path)
        prepared = {split: list(read_prepared(tmp_path / f"data/gsm8k/{split}.parquet")) for split in SPLITS}
        assert [row.answer for row in prepared["train"]] == ["1", "2", "3", "6", "7"]
        assert [row.answer for row in prepared["test"]] == ["10", "11"]
        ids = "from coterie.envs.dataset_env import Gsm8k; print(*(task.id for task in Gsm8k().tasks('train')))"
        asked = with_hub(address, tmp_path, "-c", ids)
        assert asked.stdout.split() == [row.id for row in prepared["train"]], asked.stderr
        assert len(downloaded) == 3  # the second time they came from the cache


def test_what_the_hub_keeps_in_part_or_not_at_all_is_told_in_a_line(tmp_path: Path) -> None:
    with hub({"openai/gsm8k/main/partial-test/0000.parquet": sums(2)}) as (address, _):
        part, none = (with_hub(address, tmp_path, *PREPARE, name) for name in ("gsm8k", "math500"))
    assert (part.returncode, none.returncode) == (2, 2)
    assert "openai/gsm8k: expected one main/test/*.parquet on the hub's branch" in part.stderr.splitlines()[-1]
    assert "download from the Hugging Face hub failed" in none.stderr and "--source" in none.stderr.splitlines()[-1]
    assert "Traceback" not in part.stderr + none.stderr and not (tmp_path / "data").exists()


def test_a_data_set_with_one_config_need_not_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(config: str) -> None:
        (tmp_path / config / "test").mkdir(parents=True)
        (tmp_path / config / "test" / "0000.parquet").write_bytes(parquet(problems(2)))

    monkeypatch.setattr("coterie.data.hub.snapshot_download", lambda *_, **__: str(tmp_path))
    place("default")
    assert [raw for _, raw in from_hub(SOURCES["math500"], "test")] == problems(2)
    place("another")
    with pytest.raises(ValueError, match=r"expected one \*/test/\*.parquet on .*, found another, default; download"):
        list(from_hub(SOURCES["math500"], "test"))


def test_every_source_names_its_place_on_the_hub_once() -> None:
    for source in SOURCES.values():
        places = [(hub.path, hub.config, split) for hub in source.hubs for split in hub.splits]
        assert bool(places) is not (source.name == "swe") and len(places) == len(set(places))


def test_rows_of_ones_own_projects_are_prepared_and_can_be_run_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine" / "calc").mkdir(parents=True)
    (tmp_path / "mine" / "calc" / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    own = {"issue": "add subtracts", "repository": "calc", "tests": "python -m unittest test_calc"}
    test = (
        "import unittest, calc\nclass T(unittest.TestCase):\n    def test(self):\n        assert calc.add(1, 2) == 3\n"
    )
    rows = [own | {"test_files": {"test_calc.py": test}}, own | {"issue": "b", "repository": "nowhere"}, {"issue": "c"}]
    jsonl(tmp_path / "mine" / "train.jsonl", rows)
    said = coterie("data", "prepare", "swe", "--source", tmp_path / "mine", "--out", tmp_path / "out")
    assert said.exit_code == 0, said.output
    reasons = [row["reason"] for _, row in read(tmp_path / "out" / "rejected.jsonl")]
    assert reasons == [
        f"repository: there is no folder {tmp_path}/mine/nowhere",
        "no field repository; it has issue",
    ]
    env = Swe(train=tmp_path / "out" / "train.parquet")
    (task,) = env.tasks("train")
    episode = Episode(
        "e", task, 0, answer="--- a/calc.py\n+++ b/calc.py\n@@ -2 +2 @@\n-    return a - b\n+    return a + b\n"
    )
    asyncio.run(env.score(episode))
    assert task.id == "swe/train/1" and episode.reward == 1.0
    assert "not on the hub" in coterie("data", "prepare", "swe", "--out", tmp_path / "no").output


def test_an_environment_asks_in_its_own_words_or_the_users(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "anli.jsonl", [{"premise": "P.", "hypothesis": "H.", "label": "c"}])
    assert "one word: entailment" in Anli(file).tasks("train")[0].prompt
    (task,) = Anli(file, prompt="Is {hypothesis} so, if {premise}?").tasks("train")
    assert (task.prompt, task.answer) == ("Is H. so, if P.?", "contradiction")
    (task,) = HotpotQa(jsonl(tmp_path / "h.jsonl", [HOTPOT]), prompt="{context}\n\n{question}").tasks("train")
    assert task.prompt == "Bath\nBath is here. It is old.\n\nRome\nRome is not.\n\nWhere?"
    with pytest.raises(ValueError, match=r"prompt: unknown field {premise}"):
        Gsm8k(prompt="{premise}")


def test_a_bad_row_of_a_file_stops_the_environment_that_reads_it(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "m.jsonl", [{"problem": "p", "answer": "1"}, {"problem": "p"}])
    with pytest.raises(ValueError, match=r"m.jsonl, row 2: no field answer"):
        Math(file).tasks("train")


def test_any_text_comes_back_from_a_prepared_file(tmp_path: Path) -> None:
    rows = [Row("a\0b", "\n\u202e😀\r\n", "", {"deep": [{"x": None, "y": [1.5, "é"]}]}), Row("b", " ", None, {})]
    file = tmp_path / "x.parquet"
    file.write_bytes(as_parquet("mine", rows))
    assert list(read_prepared(file)) == rows and is_prepared(file)


# --- real data ---

REAL: list[tuple[str, str, Callable[..., DatasetEnv], tuple[int, int], int]] = [
    ("gsm8k", "gsm8k", Gsm8k, (7473, 200), 0),
    ("deepscaler", "deepscaler", Math, (6458, 1721), 270),  # 4 without an answer, 266 in both of its files
    ("aime2024", "aime24", Aime, (0, 30), 0),
    ("math500", "math500", Math, (0, 500), 0),
    ("anli", "anli", Anli, (0, 2000), 0),
    ("hotpotqa", "hotpotqa", HotpotQa, (84, 16), 0),
    ("deepcoder", "deepcoder", DeepCoder, (1889, 200), 0),
    ("mbpp", "mbpp", Mbpp, (474, 500), 0),
    ("humaneval", "humaneval", HumanEval, (0, 164), 0),
    ("swebench", "swebench_lite", Rows, (0, 300), 0),
]


@pytest.mark.parametrize(("name", "folder", "env", "sizes", "rejected"), REAL)
def test_real_data_is_prepared_and_read_back(
    tmp_path: Path, name: str, folder: str, env: Callable[..., TaskEnv], sizes: tuple[int, int], rejected: int
) -> None:
    place = Path(os.environ.get("COTERIE_DATA", "")) / folder
    if not os.environ.get("COTERIE_DATA") or not place.is_dir():
        pytest.skip(f"COTERIE_DATA names no folder with {folder}")
    result = split_rows(SOURCES[name], read_source(SOURCES[name], place))
    write(name, result, tmp_path / "out")
    assert (len(result.splits["train"]), len(result.splits["test"]), len(result.rejected)) == (*sizes, rejected)
    for split, size in zip(("train", "test"), sizes, strict=True):
        file = tmp_path / "out" / f"{split}.parquet"
        assert file.is_file() == bool(size)
        if size:
            tasks = env(train=file, test=file).tasks(split)
            assert len({task.id for task in tasks}) == len(tasks) == size
            assert all(task.prompt.strip() and task.answer.strip() for task in tasks)
            assert sum(1 for _ in read(file)) == size


def test_a_reward_of_the_source_fits_its_environment() -> None:
    for env, source in (
        (Gsm8k(), "gsm8k"),
        (Math(), "math500"),
        (Anli(), "anli"),
        (HotpotQa(), "hotpotqa"),
        (Mbpp(), "mbpp"),
    ):
        assert isinstance(attach_reward(env, SOURCES[source].reward, {}, 1.0), TaskEnv)


@pytest.mark.parametrize(
    ("env", "source", "raw"),
    [(Mbpp, "gsm8k", GOOD[0][1]), (Gsm8k, "mbpp", MBPP), (HotpotQa, "anli", GOOD[4][1]), (Math, "hotpotqa", HOTPOT)],
)
def test_a_prepared_file_of_another_data_set_is_refused_by_name(
    env: type[DatasetEnv], source: str, raw: Raw, tmp_path: Path
) -> None:
    row = SOURCES[source].parse(raw, "the/id")
    assert isinstance(row, Row)
    (tmp_path / "train.parquet").write_bytes(as_parquet(source, [row]))
    with pytest.raises(ValueError, match=rf"train.parquet holds {source}, and {env.__name__} reads .*; rows reads any"):
        env(train=tmp_path / "train.parquet").tasks("train")
    assert len(Rows(tmp_path / "train.parquet").tasks("train")) == 1


@pytest.mark.parametrize(("env", "source", "raw"), [(HumanEval, "mbpp", MBPP), (Aime, "math500", GOOD[3][1])])
def test_a_prepared_file_of_a_like_data_set_is_read(
    env: type[DatasetEnv], source: str, raw: Raw, tmp_path: Path
) -> None:
    row = SOURCES[source].parse(raw, "the/id")
    assert isinstance(row, Row)
    (tmp_path / "test.parquet").write_bytes(as_parquet(source, [row]))
    assert [task.id for task in env(test=tmp_path / "test.parquet").tasks("test")] == [row.id]
