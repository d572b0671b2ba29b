"""The viewer's data of episodes: filtered lists, one episode with its tokens, a group side by side, two evaluations
task by task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from coterie.episode_files import IDS, PER_TOKEN, TURN_COLUMNS, EpisodeFile, Row
from coterie.statistics import mean, paired
from coterie.view.run_folder import RunFolder

PAGE = 100  # episodes in one answer
MOST_MEMBERS = 64  # of a group that are shown
COLUMNS = ("logprobs", *PER_TOKEN)
DIGITS = 6  # after the point, of numbers per token: in full they would be most of an answer


@dataclass(frozen=True)
class Filter:
    """Which episodes to list; None: all."""

    step: int | None = None
    role: str | None = None
    low: float | None = None  # of the reward
    high: float | None = None
    ended: str | None = None  # failed, truncated, right, wrong, or why a turn was left out
    task: str | None = None
    text: str | None = None  # in a reply, the answer or the task; any case

    def accepts(self, entry: Row) -> bool:
        """Apply all filters that the index can decide, which is all but `text`."""
        turns = [dict(zip(TURN_COLUMNS, turn, strict=True)) for turn in entry["turns"]]
        reward = entry["reward"] or 0.0
        return (
            (self.role is None or any(turn["role"] == self.role for turn in turns))
            and (self.low is None or reward >= self.low)
            and (self.high is None or reward <= self.high)
            and (self.task is None or self.task == entry["task"])
            and (self.ended is None or _ended(self.ended, entry, turns))
        )


def _ended(how: str, entry: Row, turns: list[Row]) -> bool:
    failed = entry["error_kind"] is not None
    right = entry["correct"] if entry["correct"] is not None else (entry["reward"] or 0.0) >= 1 - 1e-6
    known = {"failed": failed, "right": right and not failed, "wrong": not right and not failed}
    known["truncated"] = any(turn["stop"] == "length" for turn in turns)
    return known[how] if how in known else any(turn["left_out"] == how for turn in turns)


def listed(run: RunFolder, kind: str, chosen: Filter, after: tuple[int, int] | None) -> Row:
    """A page of the episodes that a filter accepts, the latest step first; `more`: where the next page begins."""
    found: list[Row] = []
    for step, line, entry, file in _entries(run, kind, chosen, after):
        if chosen.text and not _contains(file, line, chosen.text):
            continue
        if len(found) == PAGE:
            return {"episodes": found, "more": f"{step}:{line}"}
        found.append({"step": step, "line": line} | {name: entry[name] for name in entry if name not in ("at", "size")})
    return {"episodes": found, "more": None}


def _entries(
    run: RunFolder, kind: str, chosen: Filter, after: tuple[int, int] | None
) -> Iterator[tuple[int, int, Row, EpisodeFile]]:
    for step, path in reversed(run.paths(kind).items()):
        if (after is not None and step > after[0]) or chosen.step not in (None, step):
            continue
        file = run.open(path)
        for line, entry in enumerate(file.index):
            passed = after is not None and step == after[0] and line < after[1]  # on an earlier page
            if not passed and chosen.accepts(entry):
                yield step, line, entry, file


def _contains(file: EpisodeFile, line: int, text: str) -> bool:
    """Search the stored bytes first, which rules out most episodes without parsing them."""
    needle = json.dumps(text)[1:-1].lower().encode()
    if needle not in file.line(line).lower():
        return False
    row, sought = file.row(line), text.lower()
    places = [row["task"].get("prompt"), row.get("answer"), row.get("error"), *(turn["text"] for turn in row["turns"])]
    return any(sought in str(place).lower() for place in places)


def one_episode(run: RunFolder, kind: str, step: int, line: int) -> Row:
    """An episode with the texts of its tokens, and its counterfactuals."""
    file = run.file(kind, step)
    if not 0 <= line < len(file):
        raise KeyError(f"line {line}")
    row, entry = file.row(line), file.index[line]
    numbers = [turn[TURN_COLUMNS.index("group")] for turn in entry["turns"]]
    turns = [_shown(run, turn, number) for turn, number in zip(row["turns"], numbers, strict=True)]
    others = _forks(run, step, row) if kind == "episodes" else []
    place = {"kind": kind, "step": step, "line": line, "count": len(file)}
    return row | {"turns": turns, "counterfactuals": others} | place


def _shown(run: RunFolder, turn: Row, group: int | None) -> Row:
    numbers = {name: [round(n, DIGITS) for n in turn[name]] for name in COLUMNS if turn.get(name)}
    shown = {name: value for name, value in turn.items() if name not in IDS} | numbers
    tokens = run.token_texts(turn["policy"], turn["response_ids"])
    lengths = {"prompt_tokens": len(turn["prompt_ids"]), "response_tokens": len(turn["response_ids"])}
    return shown | lengths | {"tokens": tokens, "group_number": group}


def _forks(run: RunFolder, step: int, origin: Row) -> list[Row]:
    """The forks of an episode: counterfactuals, with the roles that they replace, and siblings of tree sampling."""
    found, roles = [], dict.fromkeys(turn["role"] for turn in origin["turns"])
    for kind in ("counterfactuals", "episodes"):
        if step in run.steps(kind):
            for line, entry in enumerate(run.file(kind, step).index):
                if entry["origin"] == origin["id"]:
                    # `credit: difference` calls them "without 'checker', 'solver'".
                    replaced = [role for role in roles if kind == "counterfactuals" and repr(role) in entry["fork"]]
                    names = {name: entry[name] for name in ("id", "fork", "reward", "error_kind")}
                    found.append({"kind": kind, "step": step, "line": line, "roles": replaced} | names)
    return found


def group_members(run: RunFolder, kind: str, step: int, number: int) -> Row:
    """A group of turns that were compared, side by side; `prompts`: how many different ones they replied to."""
    file = run.file(kind, step)
    if not 0 <= number < len(file.groups):
        raise KeyError(f"group {number}")
    column = TURN_COLUMNS.index("group")
    places = [(n, i) for n, entry in enumerate(file.index) for i, t in enumerate(entry["turns"]) if t[column] == number]
    prompts: dict[tuple[int, ...], int] = {}
    members = []
    for line, index in places[:MOST_MEMBERS]:
        row = file.row(line)
        turn = row["turns"][index]
        prompt = prompts.setdefault(tuple(turn["prompt_ids"]), len(prompts))
        place = {"line": line, "turn": index, "episode": row["id"], "reward": row["reward"], "prompt": prompt}
        members.append(place | {"shown": _shown(run, turn, number)})
    return file.groups[number] | {"members": members, "count": len(places), "prompts": len(prompts), "step": step}


def compared(first: tuple[RunFolder, int], second: tuple[RunFolder, int]) -> Row:
    """Two evaluations, each a run and a step, on the tasks that both have; the difference is second minus first."""
    before, after = (_rewards_by_task(run, step) for run, step in (first, second))
    tasks = [task for task in before if task in after]
    rows = [
        {"task": task, "before": before[task][0], "after": after[task][0]}
        | {"before_line": before[task][1], "after_line": after[task][1]}
        for task in tasks
    ]
    result: dict[str, Any] | None = None
    if len(tasks) > 1:
        result = asdict(paired([after[task][0] for task in tasks], [before[task][0] for task in tasks]))
    return {"tasks": rows, "result": result, "only_one": len(before.keys() ^ after.keys())}


def _rewards_by_task(run: RunFolder, step: int) -> Mapping[str, tuple[float, int]]:
    """The mean reward of each task, a failed episode counting as 0, and the line of its first episode."""
    rewards: dict[str, list[float]] = {}
    lines: dict[str, int] = {}
    for line, entry in enumerate(run.file("eval", step).index):
        failed = entry["error_kind"] is not None
        rewards.setdefault(entry["task"], []).append(0.0 if failed else entry["reward"])
        lines.setdefault(entry["task"], line)
    return {task: (mean(some), lines[task]) for task, some in rewards.items()}
