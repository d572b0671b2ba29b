"""Plays a team that says scripted lines, judged as a run judges it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.rollout.collector import Collector
from coterie.types import Env, Episode, Outcome, Task, Workflow
from tests.scripted import Scripted

Lines = dict[str, list[str]]


def play(workflow: Workflow, env: Env, lines: Lines, task: Task | None = None) -> tuple[Episode, Scripted]:
    """One episode with a team that says its lines, judged as a run judges it."""
    team, task = Scripted(lines), task or env.tasks("train")[0]
    collector = Collector(workflow, env, None, {}, 1, 60.0, None)  # type: ignore[arg-type]

    async def go() -> Episode:
        outcome = await workflow.run(task, team, env.open(task))
        episode = Episode("e", task, 0, turns=team.said())
        await collector.score(episode, outcome if isinstance(outcome, Outcome) else Outcome(outcome))
        return episode

    episode = asyncio.run(go())
    assert all(not agent.replies for agent in team._agents.values()), "a role was not asked for all that it had to say"
    return episode, team


def rewards(episode: Episode) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for turn in episode.turns:
        found.setdefault(turn.role, []).append(None if turn.reward is None else round(turn.reward, 6))
    return found


def rows(path: Path, *listed: Mapping[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    return path


def script(text: str) -> str:
    return f"```python\n{text}\n```"
