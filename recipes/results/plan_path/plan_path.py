"""Plan-Path: find a way through a grid, with a function that is run on it.

A coder writes the function; a planner reads the moves that it returned and gives the final ones. The grid is passed to
the function: a small model that has to write the grid into its program gets one of its rows wrong.

Two sets of rules. `lenient`: an illegal move leaves the walker where it is, the number of moves is unlimited, and the
walk ends at the goal. `fair`: an illegal move fails the task, and so does a list of more than 40 moves.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from coterie.prompts import chat_messages
from coterie.rewards.code.grader import code_in
from coterie.sandbox import Limits, shared
from coterie.tools.python import shown
from coterie.types import Episode, Message, Outcome, Split, Task, Team, Turn

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
Cell = tuple[int, int]
MOST = 40  # moves under the fair rules

QUESTION = """In this grid S is the start, G the goal, # a wall and . free:
{grid}
Rows are numbered from the top, columns from the left, both from 0. S is at ({0}, {1}), G at ({2}, {3}).
Moves are U (row - 1), D (row + 1), L (column - 1) and R (column + 1). {rules}"""
RULES = {
    "lenient": "Give a list of moves from S to G.",
    "fair": f"Give a list of at most {MOST} moves from S to G that never leaves the grid or enters a wall.",
}
ANSWER = "End with the moves in brackets, such as [U, R, R]."
CODE = (
    "{question}\n\nWrite a Python function moves(grid, start, goal) that finds the moves for any such grid and returns "
    'them as a list, such as ["U", "R", "R"]. grid is the list of rows, which are strings; start and goal are tuples '
    "of row and column. Give only the function, without the grid, in one ```python block."
)
PLAN = (
    "{question}\n\nThis program was run:\n```python\n{program}\n```\n\nIt printed:\n{output}\n\n"
    f"Use its moves if they are right, or find your own. {ANSWER}"
)


@dataclass(frozen=True)
class PlanPath:
    """Random grids with a way from start to goal; a task's answer is a shortest list of moves."""

    rules: Literal["lenient", "fair"] = "fair"
    size: int = 10  # rows and columns
    blocked: float = 0.22  # probability that a cell is a wall
    train: int = 2000  # training tasks
    test: int = 400  # held-out tasks
    seed: int = 0

    def tasks(self, split: Split) -> list[Task]:
        draw = random.Random(f"{self.seed} {split}")
        grids = (self._grid(draw) for _ in range(self.train if split == "train" else self.test))
        return [self._task(f"{split}/{number}", grid) for number, grid in enumerate(grids)]

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        moves = moves_in(str(episode.answer))
        solved, illegal = walk(episode.task.meta["grid"], moves, self.rules)
        penalty = min(0.5, 0.01 * illegal) if self.rules == "lenient" else 0.0
        episode.reward, episode.correct = solved - penalty, solved
        episode.metrics |= {"accuracy": float(solved), "illegal": float(illegal), "moves": float(len(moves))}

    def _grid(self, draw: random.Random) -> list[str]:
        while True:
            cells = [(row, column) for row in range(self.size) for column in range(self.size)]
            walls = {cell for cell in cells if draw.random() < self.blocked}
            start, goal = draw.sample(cells, 2)
            marks = dict.fromkeys(walls, "#") | {start: "S", goal: "G"}
            rows = [[marks.get((row, column), ".") for column in range(self.size)] for row in range(self.size)]
            grid = ["".join(row) for row in rows]
            if shortest(grid) is not None:
                return grid

    def _task(self, name: str, grid: list[str]) -> Task:
        ends = (*find(grid, "S"), *find(grid, "G"))
        question = QUESTION.format(*ends, grid="\n".join(grid), rules=RULES[self.rules])
        return Task(name, question, shortest(grid), {"grid": grid})


def call(grid: Sequence[str]) -> str:
    """The line that calls the coder's function and prints its moves."""
    return f"print(moves({list(grid)}, {find(grid, 'S')}, {find(grid, 'G')}))"


def find(grid: Sequence[str], mark: str) -> Cell:
    return next((row, line.index(mark)) for row, line in enumerate(grid) if mark in line)


def is_free(grid: Sequence[str], cell: Cell) -> bool:
    row, column = cell
    return 0 <= row < len(grid) and 0 <= column < len(grid[row]) and grid[row][column] != "#"


def neighbours(grid: Sequence[str], cell: Cell) -> Iterator[tuple[str, Cell]]:
    for move, (down, right) in STEPS.items():
        if is_free(grid, after := (cell[0] + down, cell[1] + right)):
            yield move, after


def shortest(grid: Sequence[str]) -> str | None:
    """The moves of a shortest way, by breadth-first search; None if there is none."""
    start, goal = find(grid, "S"), find(grid, "G")
    paths, waiting = {start: ""}, deque([start])
    while waiting:
        cell = waiting.popleft()
        for move, after in neighbours(grid, cell):
            if after not in paths:
                paths[after] = paths[cell] + move
                waiting.append(after)
    return paths.get(goal)


def walk(grid: Sequence[str], moves: Sequence[str], rules: str) -> tuple[bool, int]:
    """Whether the moves solve the task, and how many of them are illegal."""
    cell, goal, illegal = find(grid, "S"), find(grid, "G"), 0
    for move in moves:
        if cell == goal and rules == "lenient":
            break
        after = dict(neighbours(grid, cell)).get(move)
        illegal += after is None
        cell = after or cell
    fair = illegal == 0 and len(moves) <= MOST
    return cell == goal and (rules == "lenient" or fair), illegal


def moves_in(text: str) -> list[str]:
    """The moves of the last list in brackets."""
    lists: list[str] = re.findall(r"\[([^\[\]]*)\]", text)
    words = re.split(r"[\s,'\"]+", lists[-1]) if lists else []
    return [move for word in words if word for move in ([word] if word in STEPS else list(word))]


@dataclass(frozen=True)
class CoderPlanner:
    """The coder's function runs in the sandbox; the planner reads the task, the function and its result, and answers.

    With `copy` the planner is not asked: what the function returned is the answer. With `conversation` the planner
    continues the coder's conversation, which is one agent with a Python tool if one policy plays both roles.
    """

    needs_sandbox: ClassVar[bool] = True

    copy: bool = False
    conversation: bool = False
    seconds: float = 4.0  # for one program
    roles: tuple[str, ...] = ("coder", "planner")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        request = chat_messages(CODE.replace("{question}", task.prompt))
        coded = await team.coder.say(request)
        program = code_in(coded.text)
        limits, grid = Limits(seconds=self.seconds, output=8 << 10), task.meta["grid"]
        ran = await shared().run(f"{program}\n{call(grid)}", limits=limits) if program else None
        output = shown(ran, self.seconds) if ran else "(no program was given)"
        solved, _ = walk(grid, moves_in(ran.stdout if ran else ""), "fair")
        metrics = {"program_ran": float(ran is not None and ran.ok), "program_solved": float(solved)}
        if self.copy:
            return Outcome(output, metrics)
        planned = await team.planner.say(self._request(task, request, coded, program or "", output))
        return Outcome(planned.text, metrics)

    def _request(self, task: Task, code: list[Message], coded: Turn, program: str, output: str) -> list[Message]:
        if self.conversation:
            result = chat_messages(f"The program printed:\n{output}\n\nGive the moves. {ANSWER}")
            return [*code, Message(role="assistant", content=coded.text), *result]
        values = {"{question}": task.prompt, "{program}": program, "{output}": output}
        return chat_messages(re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], PLAN))
