"""Labelled answers, the data of a verifier, as Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite, isinf
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from coterie.errors import UserError
from coterie.files import write_atomic


class BadAnswers(UserError, ValueError):
    """A file that does not hold answers; the text names the file, the row and the column."""


class AnswersExist(UserError):
    """The output file is already there."""


@dataclass(frozen=True)
class Answer:
    """One answer to one question, labelled by a grader."""

    task: str  # the id of the task
    question: str
    text: str
    ids: tuple[int, ...]  # its tokens in the tokenizer of `policy`, with the end-of-turn token if it was sampled
    policy: str  # the policy that wrote it
    temperature: float
    label: float  # 1: right, 0: wrong
    logprob: float  # mean log-prob of its tokens under the policy; NaN if the answer was not sampled (perturbed)
    perturbed: bool = False  # made from a right answer by changing its last numbers

    @property
    def right(self) -> bool:
        return self.label == 1.0


COLUMNS = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("task", "question", "text")),
        ("ids", pyarrow.list_(pyarrow.int64())),
        ("policy", pyarrow.string()),
        *((name, pyarrow.float64()) for name in ("temperature", "label", "logprob")),
        ("perturbed", pyarrow.bool_()),
    ]
)


def write_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Write answers to a Parquet file by an atomic rename. The same answers give the same bytes."""
    write_atomic(path, as_parquet(path, list(answers)))


def read_answers(path: Path) -> list[Answer]:
    """The answers of a Parquet file, checked."""
    table = _table(path)
    columns = [table.column(name).to_pylist() for name in COLUMNS.names]
    answers = [_answer(path, number, values) for number, values in enumerate(zip(*columns, strict=True), 1)]
    _check(path, answers)
    return answers


def as_parquet(path: Path, answers: list[Answer]) -> bytes:
    """The content of a Parquet file; `path` is for error messages."""
    _check(path, answers)
    try:
        table = pyarrow.Table.from_pylist([asdict(answer) for answer in answers], schema=COLUMNS)
    except (pyarrow.ArrowException, TypeError, UnicodeError, OverflowError) as error:
        raise BadAnswers(f"{path}: an answer cannot be stored: {error}") from None
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _table(path: Path) -> Any:
    """The table of a file that has all columns, with their types."""
    if not path.is_file():
        raise BadAnswers(f"{path}: no such file; `coterie verifier generate` writes one")
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadAnswers(f"{path}: not Parquet: {error}") from None
    for column in COLUMNS:
        if column.name not in table.column_names:
            raise BadAnswers(f"{path}: no column {column.name}; it has {', '.join(table.column_names)}")
        found = table.schema.field(column.name).type
        # Other writers may choose another width, such as large_string or int32.
        if _kind(found) != _kind(column.type):
            raise BadAnswers(f"{path}, column {column.name}: must be {column.type}, not {found}")
    return table


def _kind(kind: Any) -> str:
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return f"list of {_kind(kind.value_type)}"
    names = {"text": ("string", "large_string", "string_view"), "float": ("float", "double", "halffloat")}
    found = next((name for name, spellings in names.items() if str(kind) in spellings), str(kind))
    return "int" if pyarrow.types.is_integer(kind) else found


def _answer(path: Path, number: int, values: tuple[Any, ...]) -> Answer:
    row = dict(zip(COLUMNS.names, values, strict=True))
    empty = next((name for name, value in row.items() if value is None), None)
    if empty is not None or None in row["ids"]:
        raise BadAnswers(f"{path}, row {number}, column {empty or 'ids'}: is empty")
    return Answer(**{**row, "ids": tuple(row["ids"])})


def _check(path: Path, answers: Iterable[Answer]) -> None:
    for number, answer in enumerate(answers, 1):
        wrong = problem(answer)
        if wrong:
            raise BadAnswers(f"{path}, row {number}, column {wrong}")


def problem(answer: Answer) -> str | None:
    """What is wrong with an answer, after the name of its column; or None."""
    if answer.label not in (0.0, 1.0):
        return f"label: {answer.label} is neither 1 (right) nor 0 (wrong)"
    if not (isfinite(answer.temperature) and answer.temperature >= 0):
        return f"temperature: {answer.temperature} must be a number ≥ 0"
    if isinf(answer.logprob):
        return f"logprob: {answer.logprob} is not finite"
    for name in ("task", "question", "policy"):
        if not getattr(answer, name).strip():
            return f"{name}: is blank"
    return None


def parts_folder(out: Path) -> Path:
    """Where parts are kept until the output is complete."""
    return out.with_name(f"{out.name}.parts")


def refuse_existing(out: Path) -> None:
    """Reject an output file that exists, unless its parts do too: then a killed process wrote it and may be resumed."""
    if out.exists() and not parts_folder(out).is_dir():
        raise AnswersExist(f"{out} already exists; name another file, or delete it")
