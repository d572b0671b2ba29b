"""Runs the workflow of one episode on its world, and closes the world."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from coterie.rollout.agent import AgentTeam
from coterie.types import Env, Episode, Outcome, Turn, Workflow

CLOSE_TIMEOUT = 10.0  # seconds that a world may take to close


async def play_episode(
    episode: Episode, workflow: Workflow, env: Env, team: Callable[[list[Turn | None]], AgentTeam]
) -> Outcome:
    """Run the workflow and store its finished turns in the episode. `team` makes agents that append to a list."""
    turns: list[Turn | None] = []
    world = env.open(episode.task)
    try:
        answer = await workflow.run(episode.task, team(turns), world)
    finally:
        episode.turns = finished_turns(turns)
        await close_world(world)
    if isinstance(answer, Turn) or inspect.isawaitable(answer):
        what = "a Turn: return its .text" if isinstance(answer, Turn) else "an awaitable: an await is missing"
        raise TypeError(f"{type(workflow).__name__}.run returned {what}")
    return answer if isinstance(answer, Outcome) else Outcome(answer)


async def close_world(world: Any) -> None:
    """Close a world that has a `close`, however the episode ended; an async close has a timeout."""
    close = getattr(world, "close", None)  # a user's own object, which need not have one
    closing = close() if close else None
    if inspect.isawaitable(closing):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await closing


def finished_turns(turns: Sequence[Turn | None]) -> list[Turn]:
    """Drop the turns that were cancelled while sampling, and renumber `seen` to the remaining ones."""
    index = {old: new for new, old in enumerate(i for i, turn in enumerate(turns) if turn is not None)}
    for turn in turns:
        if turn is not None:
            turn.seen = tuple(index[i] for i in turn.seen)
    return [turn for turn in turns if turn is not None]
