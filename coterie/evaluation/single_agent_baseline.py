"""One agent in the place of a team: asked alone, and asked as often as the team's tokens pay for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.models.chat import Chat
from coterie.prompts import chat_messages
from coterie.rollout.agent import Player
from coterie.types import Episode, Task, Team
from coterie.workflows.majority import majority

SOLVER = "solver"
FEWEST = 3  # a majority of two is the first one's word


@dataclass(frozen=True)
class SingleAgentWorkflow:
    """One prompt to one agent, `voters` times; the answer that most of them agree on."""

    prompts: Mapping[str, Sequence[int]] = field(default_factory=dict)  # ids by task; without, the bare question
    voters: int = 1
    roles: tuple[str, ...] = (SOLVER,)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        agent = team[SOLVER]
        ids = self.prompts[task.id] if task.id in self.prompts else agent.chat.prompt(chat_messages(task.prompt))
        turns = await asyncio.gather(*(agent.say_ids(ids) for _ in range(self.voters)))
        return majority([turn.text for turn in turns])


def first_speaker(episodes: Sequence[Episode]) -> str | None:
    """The role that mostly begins; None where nobody spoke."""
    begins = Counter(episode.turns[0].role for episode in episodes if episode.turns)
    return begins.most_common(1)[0][0] if begins else None


def first_prompts(episodes: Sequence[Episode], role: str, chat: Chat) -> dict[str, tuple[int, ...]]:
    """What a role that begins was asked, by task; nothing where that is the bare question throughout."""
    begun = [e for e in episodes if e.turns and e.turns[0].role == role]
    prompts = {episode.task.id: episode.turns[0].prompt_ids for episode in begun}
    bare = all(prompts[e.task.id] == tuple(chat.prompt(chat_messages(e.task.prompt))) for e in begun)
    return {} if bare else prompts


def max_team_tokens(episodes: Sequence[Episode], players: Mapping[str, Player]) -> int:
    """The most tokens that a team could say in any of its episodes, all its rounds counted."""
    return max(sum(players[turn.role].sampling.max_tokens for turn in e.turns) for e in episodes) or 1


def with_temperature(player: Player, temperature: float) -> Player:
    """Who votes must not always say the same: where evaluation draws nothing, it does so at this temperature."""
    return replace(
        player, sampling=replace(player.sampling, temperature=player.sampling.temperature or temperature or 1.0)
    )


def fit_token_budget(player: Player, team_tokens: float, answer_tokens: float) -> tuple[Player, int]:
    """How many voters the team's tokens pay for, by the length of an answer; if fewer than three, three in brief."""
    voters = round(team_tokens / max(answer_tokens, 1.0))
    if voters >= FEWEST:
        return player, voters
    brief = replace(player.sampling, max_tokens=max(1, int(team_tokens / FEWEST)))
    return replace(player, sampling=brief), FEWEST
