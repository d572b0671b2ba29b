"""Multi-agent debate: roles answer independently, read each other's answers, and revise their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.limits import PositiveShare
from coterie.prompts import Examples, chat_messages, check, fill
from coterie.rewards.verifier import VerifierSource, open_source, scores_of
from coterie.statistics import mean
from coterie.types import Grade, Message, Metrics, Outcome, Task, Team, Turn
from coterie.workflows.vote import ballot, majority

Round = Mapping[str, Turn]  # the turns of one round by role


@dataclass(frozen=True)
class Debate:
    """In each round all roles answer; the majority of the last round's answers counts.

    Each role has one growing conversation, so the KV cache of its last turn is a prefix of its next prompt.
    """

    roles: tuple[str, ...] = ("first", "second", "third")  # the debaters
    rounds: int = 2  # rounds, the independent first one included
    prompt: str = "{question}"  # prompt of the first round
    # prompt of later rounds; {others} are the others' last answers, {scores} the verifier's scores of all last answers
    revise: str = "{others}\n\nCompare this with your answer, then give your final answer to the question."
    system: str | None = None  # everyone's system message; null: none
    examples: Examples = ()  # few-shot: [user message, reply] pairs that come before the prompt
    # stop once this fraction of the roles agrees; null: play all rounds
    consensus: PositiveShare | None = None
    # {run: FOLDER} or {url: ADDRESS}, as of the reward `verifier`: scores the answers, for {scores} and `min_score`
    verifier: VerifierSource | None = None
    # with `consensus`: stop only if the mean of the round's scores reaches this, too; null: agreement is enough
    min_score: PositiveShare | None = None
    # grade the majority's answer, or every answer as its turn's own reward
    grade: Literal["majority", "each"] = "majority"

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.revise, ["question", "others", "scores"], "revise")
        if len(self.roles) < 2 or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"roles: two or more distinct names, not {list(self.roles)}")
        if self.rounds < 1:
            raise ValueError(f"rounds: at least 1, not {self.rounds}")
        self._check_verifier()

    def _check_verifier(self) -> None:
        shows = "{scores}" in self.revise
        if self.verifier is None and (shows or self.min_score is not None):
            raise ValueError(f"verifier: {'{scores} in revise' if shows else 'min_score'} needs one: run or url")
        if self.verifier is not None and not shows and self.min_score is None:
            raise ValueError("verifier: has no effect without {scores} in revise or min_score")
        if self.min_score is not None and self.consensus is None:
            raise ValueError("min_score: has no effect without consensus")

    def open_models(self, device: str, deadline: float) -> dict[str, str]:
        """Load the verifier, or connect to it."""
        return {} if self.verifier is None else {"workflow": open_source(self.verifier, device, deadline)}

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        start = chat_messages(fill(self.prompt, {"question": task.prompt}), self.system, self.examples)
        conversations = {role: list(start) for role in self.roles}
        rounds = [await self._round(task, team, conversations)]
        while len(rounds) < self.rounds and not self._agree(rounds[-1]):
            for role, conversation in conversations.items():
                conversation.append(Message(role="assistant", content=rounds[-1][role].text))
                conversation.append(Message(role="user", content=self._request(task, role, rounds[-1])))
            rounds.append(await self._round(task, team, conversations))
        if self.grade == "majority":
            return majority([turn.text for turn in rounds[-1].values()])
        answers = {role: [played[role].text for played in rounds] for role in self.roles}
        return Outcome(answers, judge=_RoundJudge(rounds))

    async def _round(self, task: Task, team: Team, conversations: Mapping[str, list[Message]]) -> dict[str, Turn]:
        """Sample all roles concurrently, and score their answers; the turns, in the order of the roles."""
        turns = await asyncio.gather(*(team[role].say(list(conversations[role])) for role in self.roles))
        if self.verifier is not None:
            scores = scores_of(self.verifier)
            found = await asyncio.gather(*(scores.score(task.prompt, turn.text) for turn in turns))
            for turn, score in zip(turns, found, strict=True):
                turn.score = score
        return dict(zip(self.roles, turns, strict=True))

    def _request(self, task: Task, role: str, latest: Round) -> str:
        """The prompt that asks a role to revise its answer."""
        fields = {"question": task.prompt, "others": _others(role, latest), "scores": _scores(role, latest)}
        return fill(self.revise, fields)

    def _agree(self, latest: Round) -> bool:
        """Consensus: the share of the largest group of equal answers, and the mean score of all of them."""
        votes = Counter(ballot(turn.text) for turn in latest.values())
        if self.consensus is None or max(votes.values()) < self.consensus * len(latest):
            return False
        return self.min_score is None or mean([turn.score or 0.0 for turn in latest.values()]) >= self.min_score


def _others(role: str, latest: Round) -> str:
    return "\n\n".join(f"{other} said:\n{turn.text}" for other, turn in latest.items() if other != role)


def _scores(role: str, latest: Round) -> str:
    """The score of each answer, the role's own first: `you: 0.31, second: 0.92`."""
    scored = {name: f"{turn.score:.2f}" for name, turn in latest.items() if turn.score is not None}
    own = [f"you: {scored[role]}"] if role in scored else []
    return ", ".join(own + [f"{name}: {score}" for name, score in scored.items() if name != role])


@dataclass(frozen=True)
class _RoundJudge:
    """Metrics of the rounds. Runs after the environment has graded every answer, so it grades nothing itself."""

    rounds: Sequence[Round]

    async def __call__(self, grade: Grade) -> Metrics:
        return round_metrics(self.rounds)


def round_metrics(rounds: Sequence[Round]) -> Metrics:
    """Accuracy of the roles and of their majority in each round, and the shares of roles that improved or declined.

    A round whose answers have no labels, only a verifier's scores, has the mean score alone.
    """
    metrics: Metrics = {}
    for nth, played in enumerate(rounds):
        scores = [turn.score for turn in played.values() if turn.score is not None]
        if scores:
            metrics[f"debate/score/{nth}"] = mean(scores)
        right = {role: turn.correct for role, turn in played.items()}
        if None in right.values():
            continue
        elected = majority([turn.text for turn in played.values()])
        metrics[f"debate/accuracy/{nth}"] = mean([bool(value) for value in right.values()])
        metrics[f"debate/majority_accuracy/{nth}"] = next(
            float(bool(turn.correct)) for turn in played.values() if turn.text == elected
        )
        if nth:
            before = {role: turn.correct for role, turn in rounds[nth - 1].items()}
            metrics[f"debate/improved/{nth}"] = mean([bool(right[r] and not before[r]) for r in right])
            metrics[f"debate/declined/{nth}"] = mean([bool(before[r] and not right[r]) for r in right])
    return metrics
