"""Episode files: the episodes of one step as gzipped JSON lines, with an index for random access. No torch.

    line 0   {"format": 2, "index": [{"at": …, "size": …, "id": …, "reward": …, "turns": […]}, …], "groups": […]}
    line n   one episode

Every line is a gzip member of its own, so one episode is read without the others: `at` and `size` say where its member
lies after the first one. `zcat 000012.jsonl.gz | tail -n +2` prints the episodes. A prompt that several turns share is
stored with the first of them; the others have `prompt_from: [line, turn, count]`. A prompt that continues a
conversation stores only its new tokens.

Numbers per token are packed: `"response_ids": "i4:…"` is base64 of little-endian 32-bit integers, `f4` and `f8` of
floats. As JSON numbers they would take ten times as long to write and twice the space. Where all tokens of a turn have
the same number, such as an advantage, it is stored once. Runs of earlier versions have lists there, or plain `.jsonl`
files; they are read the same way.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from coterie.errors import UserError
from coterie.files import numbered_paths, write_atomic

SUFFIX = ".jsonl.gz"
PLAIN = ".jsonl"  # of earlier versions
FORMAT = 3
LEVEL = 1  # of compression: level 6 takes almost three times as long, for 5 % less
CHUNK = 1 << 16  # bytes that are read first; most headers fit
KEPT = 32  # parsed episodes of a file in the cache: other episodes refer to their prompts
GZIP = 31  # wbits of zlib for the gzip format
# Numbers per token of a turn's response.
PER_TOKEN = ("old_logprobs", "ref_logprobs", "entropy", "values", "advantages", "returns", "movement")
IDS = ("prompt_ids", "response_ids")
PACKED = (*IDS, "logprobs", *PER_TOKEN)  # columns of a turn that are stored as base64
TYPES = {"i4": "i", "f4": "f", "f8": "d"}  # the letters of Python's arrays
SHARED = ("prompt", "messages")  # of a turn; stored with the first turn that has its prompt
# The columns of a turn in the index. `advantage` is the mean over its tokens, `group` an index into `groups`.
TURN_COLUMNS = ("role", "round", "tokens", "stop", "reward", "credit", "advantage", "group", "left_out")

Row = dict[str, Any]


class BadEpisodes(UserError, ValueError):
    """An episode file that is damaged."""


def episode_paths(folder: Path) -> list[Path]:
    """The episode files in a folder, by step."""
    found = [*numbered_paths(folder, SUFFIX), *numbered_paths(folder, PLAIN)]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.partition(".")[0])


def write_episode_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write one step's episodes atomically."""
    members = [_compressed(_encoded(row)) for row in _share_prompts(rows)]
    groups: dict[str, int] = {}
    index, at = [], 0
    for row, member in zip(rows, members, strict=True):
        index.append({"at": at, "size": len(member)} | summary(row, groups))
        at += len(member)
    header = {"format": FORMAT, "index": index, "groups": [json.loads(group) for group in groups]}
    write_atomic(path, b"".join([_compressed(_encoded(header)), *members]))


def summary(row: Row, groups: dict[str, int]) -> Row:
    """An episode's line in the index; `groups` numbers the groups of the file and is added to."""
    head = {name: row.get(name) for name in ("id", "repeat", "reward", "correct", "error_kind", "fork", "origin")}
    return head | {"task": row["task"]["id"], "turns": [_turn_summary(turn, groups) for turn in row["turns"]]}


def _turn_summary(turn: Row, groups: dict[str, int]) -> list[Any]:
    advantages = turn.get("advantages")
    if isinstance(advantages, list | array):
        advantages = sum(advantages) / len(advantages) if advantages else None
    mean = None if advantages is None or not turn["response_ids"] else round(advantages, 6)
    group = turn.get("group")
    if group is not None:
        shared = json.dumps({name: group[name] for name in ("key", "mean", "spread", "size")})
        group = groups.setdefault(shared, len(groups))
    own = [turn["role"], turn["round"], len(turn["response_ids"]), turn["stop"], turn.get("reward"), turn.get("credit")]
    return [*own, mean, group, turn.get("left_out")]


def _per_token(turn: Row, name: str) -> list[float] | None:
    """One number per token of the response; a single stored number applies to every token."""
    value: list[float] | float | None = turn.get(name)
    return [value] * len(turn["response_ids"]) if isinstance(value, float | int) else value


class EpisodeFile:
    """One step's episodes: the index at once, episodes one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored = lru_cache(maxsize=KEPT)(self._parse_line)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def index(self) -> list[Row]:
        """A summary of every episode, in the order of the file."""
        index: list[Row] = self.header["index"]
        return index

    @property
    def groups(self) -> list[Row]:
        """The groups of turns that were compared: key, mean, spread, size."""
        groups: list[Row] = self.header["groups"]
        return groups

    @cached_property
    def header(self) -> Row:
        if self.path.name.endswith(PLAIN):
            return self._plain_header()
        header, _ = self._head
        return header

    def row(self, line: int) -> Row:
        """One episode, with its prompts."""
        row = dict(self._stored(line))
        row["turns"] = [self._with_prompt(line, i) for i in range(len(row["turns"]))]
        return row

    def rows(self) -> list[Row]:
        return [self.row(line) for line in range(len(self))]

    def _with_prompt(self, line: int, index: int) -> Row:
        turn = self._stored(line)["turns"][index]
        turn = turn | {name: _per_token(turn, name) for name in PER_TOKEN if isinstance(turn.get(name), float | int)}
        if (origin := turn.get("prompt_from")) is None:
            return turn
        at, other, count = origin
        first = self._with_prompt(at, other)
        ids = [*first["prompt_ids"], *first["response_ids"]][:count]
        same = {name: first[name] for name in SHARED if name in first} if not turn["prompt_ids"] else {}
        whole = same | turn | {"prompt_ids": [*ids, *turn["prompt_ids"]]}
        del whole["prompt_from"]
        return whole

    def _parse_line(self, line: int) -> Row:
        return self._parsed(self.line(line), line)

    def _parsed(self, data: bytes, line: int) -> Row:
        try:
            row = json.loads(data)
        except ValueError as error:
            raise BadEpisodes(f"{self.path}, line {line + 1}: not a stored episode, or damaged ({error})") from error
        if not isinstance(row, dict) or not {"id", "task", "turns"} <= row.keys():
            raise BadEpisodes(f"{self.path}, line {line + 1}: not a stored episode, or damaged")
        row["turns"] = [{name: _unpacked(name, value) for name, value in turn.items()} for turn in row["turns"]]
        return row

    def line(self, line: int) -> bytes:
        """The stored text of one episode, for searching: parsing it takes longer."""
        if self.path.name.endswith(PLAIN):
            return self._plain_lines[line]
        entry, (_, start) = self.index[line], self._head
        with self.path.open("rb") as file:
            file.seek(start + entry["at"])
            return self._inflated(file.read(entry["size"]))[0]

    @cached_property
    def _head(self) -> tuple[Row, int]:
        """The header, and where the first episode begins."""
        with self.path.open("rb") as file:
            data = file.read(CHUNK)
            while not _is_complete(data) and (more := file.read(len(data))):
                data += more
        text, size = self._inflated(data)
        try:
            header = json.loads(text)
            return {"index": header["index"], "groups": header["groups"]}, size
        except (ValueError, KeyError, TypeError) as error:
            raise BadEpisodes(f"{self.path}: its index is damaged ({error})") from error

    def _inflated(self, data: bytes) -> tuple[bytes, int]:
        """The first gzip member of `data`, and its size."""
        inflate = zlib.decompressobj(GZIP)
        try:
            text = inflate.decompress(data) + inflate.flush()
        except zlib.error as error:
            raise BadEpisodes(f"{self.path}: damaged ({error})") from error
        if not inflate.eof:
            raise BadEpisodes(f"{self.path}: damaged, it ends too early")
        return text, len(data) - len(inflate.unused_data)

    @cached_property
    def _plain_lines(self) -> list[bytes]:
        return [line for line in self.path.read_bytes().split(b"\n") if line]

    def _plain_header(self) -> Row:
        groups: dict[str, int] = {}
        rows = [self._parsed(data, line) for line, data in enumerate(self._plain_lines)]
        return {"index": [summary(row, groups) for row in rows], "groups": [json.loads(group) for group in groups]}


def _is_complete(data: bytes) -> bool:
    """True if the first gzip member of `data` is whole."""
    inflate = zlib.decompressobj(GZIP)
    try:
        inflate.decompress(data)
    except zlib.error:
        return True  # read again, with a message
    return inflate.eof


def packed(name: str, numbers: Sequence[float] | array[float]) -> str:
    """A column of a turn as text: `i4:` of ids, `f4:` of floats, `f8:` where 32 bits would change a number."""
    kind = "i4" if name in IDS else "f4"
    column = numbers if isinstance(numbers, array) else array(TYPES[kind], numbers)
    if kind == "f4" and column is not numbers and column.tolist() != list(numbers):
        kind, column = "f8", array("d", numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return f"{kind}:{b64encode(column).decode()}"


def _unpacked(name: str, value: Any) -> Any:
    """A column as numbers; in runs of earlier versions it is a list."""
    if name not in PACKED or not isinstance(value, str):
        return value
    kind, _, text = value.partition(":")
    column = array(TYPES[kind], b64decode(text))
    if sys.byteorder == "big":
        column.byteswap()
    return column.tolist()


def _encoded(row: Row) -> bytes:
    """A line of JSON; `default`: rewards may be numpy numbers."""
    return json.dumps(row, separators=(",", ":"), default=float).encode() + b"\n"


def _compressed(line: bytes) -> bytes:
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    return deflate.compress(line) + deflate.flush()


def _share_prompts(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows, each prompt stored once."""
    first: dict[tuple[int, ...], tuple[int, int]] = {}  # where a prompt is stored: line and turn
    for line, row in enumerate(rows):
        latest: dict[tuple[str, str], int] = {}  # each role's latest turn, which its next one may continue
        turns = []
        for i, turn in enumerate(row["turns"]):
            prompt, speaker = tuple(turn["prompt_ids"]), (turn["role"], turn["policy"])
            if prompt in first:
                shared = {name: value for name, value in turn.items() if name not in SHARED}
                turns.append(shared | {"prompt_ids": [], "prompt_from": [*first[prompt], len(prompt)]})
            else:
                first[prompt] = (line, i)
                turns.append(turn | _continued(row["turns"], line, latest.get(speaker), prompt))
            latest[speaker] = i
        yield row | {"turns": [_packed_columns(turn) for turn in turns]}


def _packed_columns(turn: Row) -> Row:
    columns = {name: turn[name] for name in PACKED if isinstance(turn.get(name), list | tuple | array)}
    return turn | {name: packed(name, numbers) for name, numbers in columns.items()}


def _continued(turns: Sequence[Row], line: int, earlier: int | None, prompt: tuple[int, ...]) -> Row:
    """The stored prompt of a turn that extends an earlier turn of its role: only the new ids. Empty if it does not."""
    if earlier is None:
        return {}
    before = (*turns[earlier]["prompt_ids"], *turns[earlier]["response_ids"])
    if len(prompt) <= len(before) or prompt[: len(before)] != before:
        return {}
    return {"prompt_ids": prompt[len(before) :], "prompt_from": [line, earlier, len(before)]}
