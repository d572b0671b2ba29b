"""The rollout: plays many episodes concurrently on one event loop. A failed episode is recorded, not raised."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.engines.text_player import TextPlayer
from coterie.errors import BadAnswer, StopsRun, failure_text
from coterie.learners.distributed import SINGLE_PROCESS, Processes
from coterie.models.chat import Chat
from coterie.rollout.agent import AgentTeam, FixedTurns, Players, RecordingAgent
from coterie.rollout.scoring import Scorer, within_deadline
from coterie.seeds import stable_hash
from coterie.types import Engine, Env, Episode, Fork, Learner, Metrics, Outcome, Task, Turn, Workflow
from coterie.watchdog import run_with_watchdog

CLOSE_TIMEOUT = 10.0  # seconds that a world may take to close
BLOCKING_LIMIT = 1 / 8  # of the deadline, at least a second: how long one episode may block the event loop


@dataclass(frozen=True)
class Collector:
    """Plays tasks with a team. Each of several processes plays a share of the episodes and gets all of them."""

    workflow: Workflow
    env: Env
    engine: Engine
    chats: Mapping[str, Chat]  # by policy
    concurrency: int  # episodes at once
    deadline: float  # seconds per episode
    score_deadline: float | None  # seconds per score; None where the environment has its own
    processes: Processes = SINGLE_PROCESS
    text_players: Mapping[str, TextPlayer] = field(default_factory=dict)  # by policy: those without token ids

    def collect(self, tasks: Sequence[Task], repeats: int, players: Players, seed: int) -> list[Episode]:
        """Play every task `repeats` times. The samples depend only on the seed, the task and the repeat."""
        return self.play_shares([(episode, {}) for episode in new_episodes(tasks, repeats, seed)], players)

    def versions(self, learners: Mapping[str, Learner]) -> dict[str, int]:
        """The versions of the weights that the episodes of this step are sampled with."""
        return {policy: learner.version for policy, learner in learners.items()}

    def metrics(self) -> Metrics:
        """Metrics of the step's rollout beside those of its episodes; a cluster's collector has some."""
        return {}

    def fork(self, forks: Sequence[Fork], players: Players) -> list[Episode]:
        """Play counterfactual or sibling episodes: replays with some turns fixed.

        With `resample` 0 the other turns use the seed of the origin.
        """
        episodes: list[tuple[Episode, FixedTurns]] = []
        for fork in forks:
            origin = fork.origin
            seed = stable_hash(origin.seed, fork.id) if fork.resample else origin.seed
            episode = Episode(fork.id, origin.task, origin.repeat, seed=seed, origin=origin.id, fork=fork.purpose)
            episodes.append((episode, fork.fixed_turns))
        return self.play_shares(episodes, players) if episodes else []

    def decode_prompts(self, episodes: Sequence[Episode]) -> None:
        """Write `turn.prompt`. Not while sampling: only stored episodes need it, and decoding takes time."""
        texts: dict[tuple[str, tuple[int, ...]], str] = {}  # a prompt that several turns share is decoded once
        for turn in (turn for episode in episodes for turn in episode.turns if turn.prompt_ids):
            key = turn.policy, turn.prompt_ids
            if key not in texts:
                texts[key] = self.chats[turn.policy].prompt_text(turn.prompt_ids)
            turn.prompt = texts[key]

    async def score(self, episode: Episode, outcome: Outcome) -> None:
        """Write the answer, the rewards and the metrics of an episode."""
        await Scorer(self.env, self.score_deadline).score(episode, outcome)

    def play_shares(self, episodes: Sequence[tuple[Episode, FixedTurns]], players: Players) -> list[Episode]:
        """Play this process's share, then gather the results of all processes."""
        own = episodes[self.processes.shard(len(episodes))]
        blocking_limit = min(self.deadline, max(1.0, self.deadline * BLOCKING_LIMIT))
        asyncio.run(run_with_watchdog(self.play_all(own, players), blocking_limit))
        results = self.processes.all_gather([without_task(episode) for episode, _ in own])
        for (episode, _), result in zip(episodes, results, strict=True):
            vars(episode).update(result)
        return [episode for episode, _ in episodes]

    async def play_all(self, episodes: Sequence[tuple[Episode, FixedTurns]], players: Players) -> None:
        """Play episodes in this process, on the running event loop."""
        limit = asyncio.Semaphore(self.concurrency)
        await asyncio.gather(*(self._play(episode, players, limit, fixed) for episode, fixed in episodes))

    async def _play(
        self, episode: Episode, players: Players, limit: asyncio.Semaphore, fixed_turns: FixedTurns
    ) -> None:
        def team(turns: list[Turn | None]) -> AgentTeam:
            return AgentTeam(
                RecordingAgent(
                    role, player, self.chats, self.engine, episode.seed, turns, fixed_turns, None, self.text_players
                )
                for role, player in players.items()
            )

        try:
            async with limit, within_deadline("the episode", self.deadline, "rollout.deadline"):
                outcome = await play_episode(episode, self.workflow, self.env.open(episode.task), team)
            # Outside the semaphore: a grader's speed must not decide which episodes are sampled together.
            await self.score(episode, outcome)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            # The one place that turns an error of a workflow or a grader into a failed episode.
            if isinstance(error, StopsRun):
                raise  # no episode of this run can be played; its text says what the user can do
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise  # the run itself is being cancelled
            episode.error = failure_text(error)
            episode.error_kind = type(error).__name__


def new_episodes(tasks: Sequence[Task], repeats: int, seed: int) -> list[Episode]:
    """An unplayed episode for every task and repeat, each with its seed."""
    episodes: list[Episode] = []
    repeat: Counter[str] = Counter()
    for task in (task for task in tasks for _ in range(repeats)):
        # Repeats are counted over the step: a task that occurs twice in it gets different seeds.
        episode = Episode(f"{task.id}/{repeat[task.id]}", task, repeat[task.id])
        episode.seed = stable_hash(seed, task.id, episode.repeat)
        episodes.append(episode)
        repeat[task.id] += 1
    return episodes


def without_task(episode: Episode) -> dict[str, Any]:
    """An episode's fields without its task, which the receiver has, and which may not be picklable."""
    return {name: value for name, value in vars(episode).items() if name != "task"}


async def play_episode(
    episode: Episode, workflow: Workflow, world: Any, team: Callable[[list[Turn | None]], AgentTeam]
) -> Outcome:
    """Run the workflow and store its finished turns in the episode. `team` makes agents that append to a list."""
    turns: list[Turn | None] = []
    try:
        answer = await workflow.run(episode.task, team(turns), world)
    finally:
        episode.turns = finished_turns(turns)
        await close_world(world)
    if isinstance(answer, Turn) or inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # otherwise Python warns of it, too
        what = "a Turn: return its .text" if isinstance(answer, Turn) else "an awaitable: an await is missing"
        raise BadAnswer(f"{type(workflow).__name__}.run returned {what}")
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
