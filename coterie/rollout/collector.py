"""Plays many episodes at once and records every turn as it was sampled. A failure becomes data."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any

from coterie.errors import UserError
from coterie.learners.distributed import ALONE, Processes
from coterie.models.chat import Chat
from coterie.rewards import TIMEOUTS
from coterie.rl.validate import must_be_numbers
from coterie.rollout.scoring import copy_to_score, with_retries, within_deadline, write_score
from coterie.sandbox import SandboxMissing
from coterie.seeds import stable_hash
from coterie.types import Engine, Env, Episode, Fork, Grade, Message, Metrics, Outcome, Sampling, Task, Turn, Workflow
from coterie.watchdog import run_with_watchdog

Given = Mapping[tuple[str, int], Turn | str]
Judge = Callable[[Grade], Awaitable[Mapping[str, float]]]
HELD_UP = 1 / 8  # of the deadline, but a second at least: for so long one episode may hold up all others
CLOSING = 10.0  # seconds that a world may take to close
SAMPLED = [f.name for f in fields(Turn) if f.default is MISSING]  # what a turn is, before anyone judges it


class TooManyFailures(UserError, RuntimeError):
    """So many episodes of a step failed that going on would waste the rest."""


@dataclass(frozen=True)
class Player:
    """Who plays a role, and how its turns are drawn."""

    policy: str
    sampling: Sampling
    later: tuple[str, ...] = ()  # who plays its second turn, its third …; the last one named plays all that follow

    def policy_at(self, nth: int) -> str:
        """The policy that says the role's nth turn."""
        return (self.policy, *self.later)[min(nth, len(self.later))]


def _part(sampling: Sampling) -> bool:
    """Whether some of what could be said never is."""
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.temperature == 0


class RecordingAgent:
    """One role at work on one episode; it remembers what it read and said."""

    def __init__(
        self,
        role: str,
        player: Player,
        chats: Mapping[str, Chat],
        engine: Engine,
        seed: int,
        turns: list[Turn | None],
        given: Given,
    ) -> None:
        self.role, self.player, self.chats, self.engine, self.seed = role, player, chats, engine, seed
        self.turns = turns  # the whole episode's, in the order in which they were asked for
        self.given = given
        self.spoken: list[tuple[list[Message], Turn]] = []
        self.asked = 0

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
        """Let the role answer. A conversation that goes on from an earlier turn keeps that turn's ids.

        `sampling` changes how this one turn is drawn: max_tokens, temperature, top_p, top_k, stop. From a turn that is
        drawn out of a part of what the role could say, as with top_p or temperature 0, nobody learns: the learner
        scores the whole.
        """
        read: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        turn = await self._answer(self._prompt(read, self.chat), sampling)
        if turn.response_ids:
            self.spoken.append((read, turn))
        return turn

    async def say_ids(self, ids: Sequence[int], **sampling: Any) -> Turn:
        """Let the role go on from exactly these ids; no template is laid over them."""
        return await self._answer(tuple(ids), sampling)

    @property
    def chat(self) -> Chat:
        """How the model that says the role's next turn writes conversations."""
        return self.chats[self.player.policy_at(self.asked)]

    async def _answer(self, prompt: tuple[int, ...], sampling: Mapping[str, Any]) -> Turn:
        place, nth = len(self.turns), self.asked
        seen = tuple(i for i, turn in enumerate(self.turns) if turn is not None)
        self.turns.append(None)
        self.asked += 1
        given = self.given.get((self.role, nth))
        if given is None:
            turn = await self._sampled(prompt, nth, replace(self.player.sampling, **sampling))
        else:
            await asyncio.sleep(0)  # as a turn that is sampled, so that roles side by side stay in order
            turn = self._repeated(prompt, nth, given)
        turn.seen = seen
        self.turns[place] = turn
        return turn

    async def _sampled(self, prompt: tuple[int, ...], nth: int, drawn: Sampling) -> Turn:
        policy = self.player.policy_at(nth)
        sample = await self.engine.sample(policy, prompt, stable_hash(self.seed, self.role, nth), drawn)
        return Turn(
            role=self.role,
            policy=policy,
            version=sample.version,
            round=nth,
            prompt_ids=prompt,
            response_ids=sample.ids,
            logprobs=sample.logprobs,
            temperature=drawn.temperature,
            text=self.chats[policy].text(sample.ids, drawn.stop),
            stop=sample.stop,
            given=_part(drawn) and not _part(self.player.sampling),
        )

    def _repeated(self, prompt: tuple[int, ...], nth: int, given: Turn | str) -> Turn:
        if isinstance(given, str):
            return Turn(self.role, self.player.policy_at(nth), 0, nth, prompt, (), (), 1.0, given, "end", given=True)
        if given.prompt_ids != prompt:
            raise ValueError(
                f"{self.role}'s turn {nth} read something else when its episode was played again: a workflow may only "
                "depend on its task and on what was said"
            )
        # Without what its own episode made of it: in this one it may be worth something else.
        return Turn(**{name: getattr(given, name) for name in SAMPLED}, given=True, repeated=True)

    def _prompt(self, messages: list[Message], chat: Chat) -> tuple[int, ...]:
        for read, turn in reversed(self.spoken):
            # Ids of another tokenizer would mean other things.
            if len(messages) > len(read) + 1 and self.chats[turn.policy] is chat:
                longer = chat.extend(read, turn.prompt_ids, turn.response_ids, turn.text, messages)
                if longer is not None:
                    return longer
        return chat.prompt(messages)


class AgentTeam:
    """The team of one episode: `team.solver` or `team["solver"]`."""

    def __init__(self, speakers: Iterable[RecordingAgent]) -> None:
        self._speakers = {speaker.role: speaker for speaker in speakers}

    def __getitem__(self, role: str) -> RecordingAgent:
        if role not in self._speakers:
            raise KeyError(f"no role is called {role!r}; this team has {', '.join(self._speakers)}")
        return self._speakers[role]

    def __getattr__(self, role: str) -> RecordingAgent:
        if role.startswith("_"):
            raise AttributeError(role)
        return self[role]


@dataclass(frozen=True)
class Collector:
    """Plays tasks with a team; of several processes each plays a share, and all get all that was played."""

    workflow: Workflow
    env: Env
    engine: Engine
    chats: Mapping[str, Chat]  # by policy
    concurrency: int  # episodes at once
    deadline: float  # seconds an episode may take
    score_deadline: float | None  # and its scoring; None where the environment keeps one itself
    processes: Processes = ALONE

    def collect(self, tasks: Sequence[Task], repeats: int, players: Mapping[str, Player], seed: int) -> list[Episode]:
        """Play every task `repeats` times. What is sampled depends on the seed, the task and the repeat alone."""
        episodes: list[Episode] = []
        played: Counter[str] = Counter()
        for task in (task for task in tasks for _ in range(repeats)):
            # Counted on, so that a task which comes twice in a step is not played with the same noise again.
            episodes.append(Episode(f"{task.id}/{played[task.id]}", task, played[task.id]))
            played[task.id] += 1
        for episode in episodes:
            episode.seed = stable_hash(seed, episode.task.id, episode.repeat)
        return self._played([(episode, {}) for episode in episodes], players)

    def fork(self, forks: Sequence[Fork], players: Mapping[str, Player]) -> list[Episode]:
        """Play episodes again in part. With draw 0 what is not given meets the noise that its origin met."""
        begun: list[tuple[Episode, Given]] = []
        for fork in forks:
            origin = fork.origin
            seed = stable_hash(origin.seed, fork.id) if fork.resample else origin.seed
            episode = Episode(fork.id, origin.task, origin.repeat, seed=seed, origin=origin.id, fork=fork.purpose)
            begun.append((episode, fork.fixed_turns))
        return self._played(begun, players) if begun else []

    def _played(self, begun: Sequence[tuple[Episode, Given]], players: Mapping[str, Player]) -> list[Episode]:
        """The episodes, played to the end: this process's share here, the others' elsewhere."""
        own = begun[self.processes.share(len(begun))]
        held_up = min(self.deadline, max(1.0, self.deadline * HELD_UP))
        asyncio.run(run_with_watchdog(self._play_all(own, players), held_up))
        told = self.processes.gather([_without_task(episode) for episode, _ in own])
        for (episode, _), fields_of_it in zip(begun, told, strict=True):
            vars(episode).update(fields_of_it)
        return [episode for episode, _ in begun]

    async def _play_all(self, begun: Sequence[tuple[Episode, Given]], players: Mapping[str, Player]) -> None:
        gate = asyncio.Semaphore(self.concurrency)
        await asyncio.gather(*(self._episode(episode, players, gate, given) for episode, given in begun))

    async def _episode(
        self, episode: Episode, players: Mapping[str, Player], gate: asyncio.Semaphore, given: Given
    ) -> None:
        try:
            async with gate, within_deadline("the episode", self.deadline, "rollout.deadline"):
                outcome = await self._play(episode, players, given)
            # Not under the gate: how long a grader takes must not decide which episodes are sampled together.
            await self.score(episode, outcome)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            # The one place: whatever a workflow or a grader does wrong is the episode's.
            if isinstance(error, SandboxMissing):
                raise  # no episode of this run can be played; its text says what the user can do
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise  # somebody ends the run
            episode.error, episode.error_kind = traceback.format_exc(), type(error).__name__

    async def _play(self, episode: Episode, players: Mapping[str, Player], given: Given) -> Outcome:
        turns: list[Turn | None] = []
        speakers = [
            RecordingAgent(role, player, self.chats, self.engine, episode.seed, turns, given)
            for role, player in players.items()
        ]
        world = self.env.open(episode.task)
        try:
            said = await self.workflow.run(episode.task, AgentTeam(speakers), world)
        finally:
            episode.turns = _complete(turns)
            await _close(world)
        if isinstance(said, Turn) or inspect.isawaitable(said):
            what = "a Turn: return its .text" if isinstance(said, Turn) else "something to wait for: it lacks an await"
            raise TypeError(f"{type(self.workflow).__name__}.run returned {what}")
        return said if isinstance(said, Outcome) else Outcome(said)

    async def score(self, episode: Episode, outcome: Outcome) -> None:
        """Write down what came of an episode, and what it was worth."""
        episode.answer = outcome.answer
        episode.reward = outcome.reward or 0.0
        await self._scored(episode, owner=episode)
        episode.metrics |= outcome.metrics
        if outcome.judge is not None:
            episode.metrics |= await self._judged(episode, outcome.judge)
        must_be_numbers(episode)

    async def _scored(self, episode: Episode, owner: Episode) -> None:
        """Let the environment score, each time from the same start."""

        async def attempt() -> None:
            scored = copy_to_score(episode)
            await self.env.score(scored)
            write_score(scored, episode)

        await with_retries(attempt, owner, self.score_deadline)

    async def _judged(self, episode: Episode, judge: Judge) -> Metrics:
        """Let the workflow judge its turns, each time from the same start: it may run tests of its own."""
        before = [turn.reward for turn in episode.turns]

        async def attempt() -> Metrics:
            for turn, reward in zip(episode.turns, before, strict=True):
                turn.reward = reward
            return dict(await judge(partial(self._grade, episode)))

        return await with_retries(attempt, episode, self.score_deadline)

    async def _grade(self, episode: Episode, answer: Any) -> float:
        """What the environment would give for another answer."""
        if answer == episode.answer:
            return episode.reward
        trial = replace(copy_to_score(episode), answer=answer, metrics={})
        await self._scored(trial, owner=episode)
        return trial.reward


def _without_task(episode: Episode) -> dict[str, Any]:
    """What playing it has made of an episode. Every process has the task, which may hold what cannot be sent."""
    return {name: value for name, value in vars(episode).items() if name != "task"}


async def _close(world: Any) -> None:
    """However the episode ended; a world that does not close in time is left alone."""
    close = getattr(world, "close", None)  # a user's own object, which need not have one
    closing = close() if close else None
    if inspect.isawaitable(closing):
        async with asyncio.timeout(CLOSING):
            await closing


def _complete(turns: Sequence[Turn | None]) -> list[Turn]:
    """Without the turns that were never finished; those that were seen are numbered anew."""
    place = {old: new for new, old in enumerate(i for i, turn in enumerate(turns) if turn is not None)}
    for turn in turns:
        if turn is not None:
            turn.seen = tuple(place[i] for i in turn.seen)
    return [turn for turn in turns if turn is not None]


def enough(episodes: list[Episode], max_failed: float) -> list[Episode]:
    """The episodes that were played to the end, unless too many were not."""
    failed = [episode for episode in episodes if episode.error is not None]
    if failed and len(failed) > max_failed * len(episodes):
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(e.error_kind for e in failed).most_common())
        raise TooManyFailures(
            f"{len(failed)} of {len(episodes)} episodes failed ({kinds}); rollout.max_failed allows "
            f"{max_failed:.0%}. The first was {failed[0].id}:\n{failed[0].error}"
        )
    return [episode for episode in episodes if episode.error is None]


def rollout_metrics(episodes: Sequence[Episode]) -> Metrics:
    """Rewards, lengths and failures of a step, in all and per role."""
    played = [episode for episode in episodes if episode.error is None]
    metrics: Metrics = {"failed": float(len(episodes) - len(played))}
    for kind, count in Counter(e.error_kind for e in episodes if e.error is not None).items():
        metrics[f"failed/{kind}"] = float(count)
    killed = [episode.metrics[TIMEOUTS] for episode in episodes if TIMEOUTS in episode.metrics]
    if killed:
        metrics[TIMEOUTS] = mean(killed)  # of all episodes: most of those whose grader was killed have failed
    if not played:
        return metrics
    metrics["reward"] = mean([episode.reward for episode in played])
    for name in sorted({name for episode in played for name in episode.metrics} - {TIMEOUTS}):
        metrics[name] = mean([episode.metrics[name] for episode in played if name in episode.metrics])
    for role in dict.fromkeys(turn.role for episode in played for turn in episode.turns):
        pairs = [(episode, turn) for episode in played for turn in episode.turns if turn.role == role]
        # What a turn was given itself, or what the team was. What the credit makes of both is `earned/…`.
        metrics[f"reward/{role}"] = mean([e.reward if turn.reward is None else turn.reward for e, turn in pairs])
        metrics[f"tokens/{role}"] = mean([len(turn.response_ids) for _, turn in pairs])
        metrics[f"cut/{role}"] = mean([turn.stop == "length" for _, turn in pairs])
    return metrics


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
