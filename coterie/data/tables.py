"""Rows from tables of other libraries, which need not be installed: pandas, `datasets`, pyarrow, rLLM's Dataset."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any

from coterie.data.row import Raw
from coterie.prompts import lone_surrogate

PANDAS_MISSING = ("NaTType", "NAType")  # types of pandas' missing values beside NaN


def rows_of(table: Any, owner: str) -> list[Raw]:
    """The rows of a table, or of a list of mappings, as JSON can hold them; `owner` names the table in errors.

    pandas.DataFrame       to_dict("records"); missing values (NaN) become null
    pyarrow.Table          to_pylist()
    datasets.Dataset       iterates over its rows
    rLLM's Dataset         get_data()
    """
    if isinstance(table, Mapping):  # also a datasets.DatasetDict
        raise ValueError(f"{owner}: a mapping with {', '.join(map(str, table))}; pass one split, or a list of rows")
    for method, arguments in (("to_pylist", ()), ("to_dict", ("records",)), ("get_data", ())):
        if callable(convert := getattr(table, method, None)) and not _iterates_rows(table):
            return _checked(convert(*arguments), owner)
    if not isinstance(table, Iterable):
        raise ValueError(f"{owner}: got {table!r:.80}, expected a file, a list of rows, or a table")
    return _checked(table, owner)


def _iterates_rows(table: Any) -> bool:
    """True for `datasets.Dataset`, whose `to_dict` gives columns, but which iterates over rows."""
    return hasattr(table, "column_names") and hasattr(table, "features")


def _checked(rows: Iterable[Any], owner: str) -> list[Raw]:
    found: list[Raw] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"{owner}, row {number}: a row is a mapping of fields, not a {type(row).__name__}")
        found.append({str(name): _plain(value, f"{owner}, row {number}: {name}") for name, value in row.items()})
    return found


def _plain(value: Any, place: str) -> Any:
    """A value as JSON holds it. Numbers and arrays of numpy have `tolist`; dates have `isoformat`."""
    if (isinstance(value, float) and isnan(value)) or type(value).__name__ in PANDAS_MISSING:
        return None
    if isinstance(value, str) and (problem := lone_surrogate(value)):
        raise ValueError(f"{place} {problem}")
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, f"{place}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, place) for inner in value]
    for method in ("tolist", "isoformat"):
        if callable(convert := getattr(value, method, None)):
            return _plain(convert(), place)
    try:
        json.dumps(value)
    except TypeError:
        raise ValueError(f"{place}: a {type(value).__name__} cannot be stored; text, numbers and lists can") from None
    return value
