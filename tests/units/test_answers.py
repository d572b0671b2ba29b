"""Labelled answers as Parquet: what is written is what is read, and a bad file is refused by row and column."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from coterie.verifier.answers import COLUMNS, Answer, BadAnswers, read_answers, write_answers

RIGHT = Answer("sums/1", "1 + 2 =", "It is 3.", (7, 0, 2), "solver", 0.7, 1.0, -0.25)
WRONG = replace(RIGHT, text="It is 4.", label=0.0, logprob=nan, perturbed=True)


def test_the_columns_are_the_fields_of_an_answer() -> None:
    assert COLUMNS.names == [field.name for field in fields(Answer)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    odd = replace(RIGHT, task="é/2", question="Größe?\n\0", text="", ids=())
    write_answers(tmp_path / "a.parquet", [RIGHT, WRONG, odd])
    first, second, third = read_answers(tmp_path / "a.parquet")
    assert (first, third) == (RIGHT, odd) and first.right and not second.right
    assert isnan(second.logprob) and replace(second, logprob=0.0) == replace(WRONG, logprob=0.0)


def test_the_same_answers_give_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write_answers(tmp_path / name, [RIGHT, WRONG])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_no_answers_are_a_file_too(tmp_path: Path) -> None:
    write_answers(tmp_path / "a.parquet", [])
    assert read_answers(tmp_path / "a.parquet") == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"label": 0.5}, "row 2, column label: 0.5"),
        ({"label": nan}, "row 2, column label: nan"),
        ({"temperature": -1.0}, "row 2, column temperature: -1.0"),
        ({"logprob": -inf}, "row 2, column logprob: -inf"),
        ({"task": " "}, "row 2, column task: is blank"),
        ({"text": "\ud800"}, "cannot be stored"),
    ],
)
def test_a_bad_answer_is_not_written(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(BadAnswers, match=text):
        write_answers(tmp_path / "a.parquet", [RIGHT, replace(RIGHT, **change)])
    assert list(tmp_path.iterdir()) == []


def parquet(path: Path, **columns: list[Any]) -> Path:
    """A file of one row, with these columns instead."""
    row = {field.name: [getattr(RIGHT, field.name)] for field in fields(Answer)} | columns
    kept = {name: values for name, values in row.items() if len(values)}
    pyarrow.parquet.write_table(pyarrow.table(kept), path)
    return path


def test_a_file_of_another_writer_with_other_widths_is_read(tmp_path: Path) -> None:
    narrow = {"ids": pyarrow.array([[7, 0, 2]], pyarrow.list_(pyarrow.int32()))}
    file = parquet(tmp_path / "a.parquet", **narrow, text=pyarrow.array([RIGHT.text], pyarrow.large_string()))
    assert read_answers(file) == [RIGHT]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"label": []}, "no column label; it has task, question"),
        ({"ids": ["7 0 2"]}, "column ids: must be list<.*>, not string"),
        ({"label": ["right"]}, "column label: must be double, not string"),
        ({"label": [2.0]}, "row 1, column label: 2.0"),
        ({"ids": [[1, None]]}, "row 1, column ids: is empty"),
    ],
)
def test_a_bad_file_is_refused_by_name_row_and_column(columns: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(BadAnswers, match=rf"a\.parquet.*{text}"):
        read_answers(parquet(tmp_path / "a.parquet", **columns))


def test_a_missing_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadAnswers, match="row 1, column policy: is empty"):
        read_answers(parquet(tmp_path / "a.parquet", policy=pyarrow.array([None], pyarrow.string())))


def test_a_file_that_is_no_parquet_or_none_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no")
    with pytest.raises(BadAnswers, match="text: not Parquet"):
        read_answers(tmp_path / "text")
    with pytest.raises(BadAnswers, match="none: no such file; `coterie verifier generate`"):
        read_answers(tmp_path / "none")
