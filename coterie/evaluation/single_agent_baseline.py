"""Single-agent baselines: one agent alone, and a majority vote with the token budget of the team."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.evaluation.evaluate import Report, evaluate
from coterie.models.chat import Chat
from coterie.prompts import chat_messages
from coterie.rollout.agent import Player, Players
from coterie.rollout.collector import Collector
from coterie.types import Episode, Task, Team
from coterie.workflows.vote import elect

SOLVER = "solver"
LENGTH_TASKS = 32  # tasks on which the length of a sampled answer is estimated


@dataclass(frozen=True)
class SingleAgentWorkflow:
    """One agent answers one prompt `voters` times; the answer is their majority."""

    prompts: Mapping[str, Sequence[int]] = field(default_factory=dict)  # token ids by task; default: the bare question
    voters: int = 1
    roles: tuple[str, ...] = (SOLVER,)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        agent = team[SOLVER]
        ids = self.prompts[task.id] if task.id in self.prompts else agent.chat.prompt(chat_messages(task.prompt))
        turns = await asyncio.gather(*(agent.say_ids(ids) for _ in range(self.voters)))
        return await elect([turn.text for turn in turns], world)


@dataclass(frozen=True)
class SingleAgent:
    """A single agent and its prompt."""

    policy: str  # the policy whose model it uses
    player: Player
    workflow: SingleAgentWorkflow
    temperature: float = 1.0  # of the policy in training; votes use it if the evaluation is greedy


def baselines(
    collector: Collector,
    tasks: Sequence[Task],
    repeats: int,
    team: Report,
    agents: Mapping[str, SingleAgent],
    seed: int,
) -> dict[str, Report]:
    """Evaluate each agent alone; then a majority vote of the best one, with as many answers as the token budget of the
    team allows. There is no vote if it allows one answer only."""

    def run_alone(
        workflow: SingleAgentWorkflow, player: Player, tasks: Sequence[Task] = tasks, repeats: int = repeats
    ) -> Report:
        return evaluate(replace(collector, workflow=workflow), tasks, repeats, {SOLVER: player}, seed)

    reports = {name: run_alone(agent.workflow, agent.player) for name, agent in agents.items()}
    best = agents[max(reports, key=lambda name: reports[name].metrics["reward"])]
    # The length is estimated from samples: greedy answers are shorter.
    voter = with_temperature(best.player, best.temperature)
    sampled = run_alone(best.workflow, voter, tasks[:LENGTH_TASKS], 1)
    voters = round(team.metrics["tokens"] / max(sampled.metrics["tokens"], 1.0))
    if voters < 2:
        return reports
    return {**reports, f"majority of {voters}": run_alone(replace(best.workflow, voters=voters), voter)}


def first_speaker(episodes: Sequence[Episode]) -> str | None:
    """The role that most often speaks first; None if no episode has a turn."""
    first = Counter(episode.turns[0].role for episode in episodes if episode.turns)
    return first.most_common(1)[0][0] if first else None


def first_prompts(episodes: Sequence[Episode], role: str, chat: Chat) -> dict[str, tuple[int, ...]]:
    """The prompts of a role that speaks first, by task; empty if all of them are the bare question."""
    started = [e for e in episodes if e.turns and e.turns[0].role == role]
    prompts = {episode.task.id: episode.turns[0].prompt_ids for episode in started}
    bare = all(prompts[e.task.id] == tuple(chat.prompt(chat_messages(e.task.prompt))) for e in started)
    return {} if bare else prompts


def max_team_tokens(episodes: Sequence[Episode], players: Players) -> int:
    """The largest token budget of an episode: the sum of `max_tokens` over its turns."""
    return max(sum(players[turn.role].sampling.max_tokens for turn in e.turns) for e in episodes) or 1


def with_temperature(player: Player, temperature: float) -> Player:
    """A player that samples: if its temperature is 0, it gets this one. Greedy votes would all be equal."""
    sampling = player.sampling
    return replace(player, sampling=replace(sampling, temperature=sampling.temperature or temperature or 1.0))
