"""Episodes as rows of an episode file, and back."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.episode_files import PER_TOKEN, BadEpisodes, EpisodeFile, Row
from coterie.types import Episode, GroupStats, Task, Turn


def episode_row(episode: Episode) -> Row:
    """An episode with its task and turns as a row of an episode file.

    Numbers per token are exact in 32 bits. In answers and meta, keys become strings, tuples become lists, and values
    that JSON does not have become strings.
    """
    task = vars(episode.task) | {"answer": jsonable(episode.task.answer), "meta": jsonable(episode.task.meta)}
    turns = [_turn_row(turn) for turn in episode.turns]
    return vars(episode) | {"task": task, "turns": turns, "answer": jsonable(episode.answer)}


def _turn_row(turn: Turn) -> Row:
    tensors = {name: column(value) for name in PER_TOKEN if isinstance(value := getattr(turn, name), Tensor)}
    group = None if turn.group is None else vars(turn.group)
    return vars(turn) | tensors | {"group": group, "messages": jsonable(turn.messages)}


def read_episodes(path: Path) -> list[Episode]:
    """The stored episodes of one step, as they were played; also of runs of earlier versions."""
    file = EpisodeFile(path)
    return [_read(file.row(line), f"{path}, line {line + 1}") for line in range(len(file))]


def _read(row: Row, where: str) -> Episode:
    try:
        return _episode(row)
    except (TypeError, KeyError) as error:
        raise BadEpisodes(f"{where}: not a stored episode, or damaged ({error})") from error


def jsonable(value: Any) -> Any:
    """Convert any value to what JSON can represent."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [jsonable(inner) for inner in value]
    return str(value)


def column(tensor: Tensor) -> array[float] | float:
    """A number per token; one number if all are the same, as GRPO's advantages are."""
    if len(tensor) > 1 and bool((tensor == tensor[0]).all()):
        return float(tensor[0])
    return array("f", tensor.float().numpy(force=True).tobytes())


def _episode(row: dict[str, Any]) -> Episode:
    turns = [_turn(turn) for turn in row["turns"]]
    return Episode(**row | {"task": Task(**row["task"]), "turns": turns})


def _turn(row: dict[str, Any]) -> Turn:
    known = {name: value for name, value in row.items() if name in Turn.__dataclass_fields__}
    exact = {name: tuple(row[name]) for name in ("prompt_ids", "response_ids", "logprobs", "seen")}
    if row.get("api_tokens") is not None:  # absent in runs of earlier versions
        exact["api_tokens"] = tuple(row["api_tokens"])
    tensors = {name: torch.tensor(row[name]) for name in PER_TOKEN if row.get(name) is not None}
    group = {"group": GroupStats(**row["group"])} if row.get("group") else {}
    return Turn(**known | exact | tensors | group)
