"""The reward `verifier`: the probability that an answer is right, from a model that reads question and answer.

Grading workers do not load the model: one thread of this process owns it, or a server does. The functions that call it
are imported by name at run time, because `rewards` must not import `verifier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.limits import Share
from coterie.rewards.batching import Arguments, Batcher
from coterie.rewards.grader import Grader
from coterie.rewards.grader_pool import GraderFailed
from coterie.rewards.reward_function import load
from coterie.types import Part, Task

NAME = "verifier"
OPEN = "coterie.verifier.reward:open_verifier"
SCORE = "coterie.verifier.reward:score_answers"
KEY_VARIABLE = "COTERIE_VERIFIER_KEY"  # environment variable with the key of the server
# Scores are rounded: their last bits depend on the batch, and GRPO would divide these differences between equal replies
# by their tiny standard deviation.
DECIMALS = 4
MOST_KNOWN = 20_000  # cached scores; then the cache is emptied


class TooLong(GraderFailed):
    """A question and an answer that are together longer than the verifier's context."""


@dataclass(frozen=True)
class VerifierSource:
    """Where a verifier is: in the folder of its run, or behind a URL."""

    run: Path | None = None  # the folder of a run of `coterie verifier train`; loaded once, into this process
    url: str | None = None  # the address of `coterie verifier serve`; its key is in COTERIE_VERIFIER_KEY

    def __post_init__(self) -> None:
        if (self.run is None) == (self.url is None):
            raise ValueError("verifier: give either run, a folder, or url, a server")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not an address such as http://127.0.0.1:8000")

    def __str__(self) -> str:
        return str(self.run or self.url)


@dataclass
class VerifierScores:
    """The scores of one verifier, cached by question and answer; answers that arrive together are one call."""

    source: VerifierSource
    deadline: float = 30.0  # seconds for one call, retries included
    known: dict[tuple[str, str], float] = field(default_factory=dict)
    batcher: Batcher = field(default_factory=Batcher)

    async def score(self, question: str, answer: str) -> float:
        pair = (question, answer)
        if pair not in self.known:
            score = await self.batcher.score(pair, self._batch)
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            self.known.setdefault(pair, score)
        return self.known[pair]

    async def _batch(self, pairs: Sequence[Arguments]) -> Sequence[float]:
        unique = list(dict.fromkeys(pairs))
        scores = await load(SCORE)(self.source, unique, self.deadline)
        by_pair = {pair: round(score, DECIMALS) for pair, score in zip(unique, scores, strict=True)}
        return [by_pair[pair] for pair in pairs]


_scores: dict[VerifierSource, VerifierScores] = {}


def scores_of(source: VerifierSource) -> VerifierScores:
    """The scores of a verifier, the same object for the reward and the workflow of a run."""
    return _scores.setdefault(source, VerifierScores(source))


def open_source(source: VerifierSource, device: str, deadline: float) -> str:
    """Load a verifier, or connect to it; returns its hash. Drops scores that an earlier run in this process cached."""
    model_hash: str = load(OPEN)(source, device, deadline)
    _scores[source] = VerifierScores(source, deadline)
    return model_hash


@dataclass(frozen=True)
class VerifierGrader(Grader):
    """Grades an answer by a verifier's score."""

    @property
    def source(self) -> VerifierSource:
        return VerifierSource(self.options["run"], self.options["url"])

    @property
    def compares(self) -> bool:
        return False

    @property
    def verifier(self) -> VerifierGrader:
        return self

    @property
    def labels(self) -> str | None:
        """The reward that labels answers beside the score."""
        labels: str | None = self.options["labels"]
        return labels

    async def score(self, answer: Any, task: Task) -> float:
        """The probability that the answer is right, whatever the mode."""
        return await scores_of(self.source).score(task.prompt, str(answer))

    def accepts(self, score: float) -> bool:
        threshold: float = self.options["threshold"]
        return score >= threshold

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        if task is None:
            raise ValueError("reward verifier reads the question: call the grader with (answer, truth, task)")
        score = await self.score(answer, task)
        return score if self.options["mode"] == "score" else float(self.accepts(score))


def verifier(
    deadline: float,
    *,
    run: Path | None = None,  # the folder of a run of `coterie verifier train`, loaded into this process; or `url`
    url: str | None = None,  # the address of `coterie verifier serve`; its key is in COTERIE_VERIFIER_KEY
    mode: Literal["score", "threshold"] = "score",  # the probability itself, or 1 if it reaches `threshold`
    threshold: Share = 0.5,  # the lowest score of an accepted answer
    labels: str | None = None,  # a reward, such as number or native, logged beside the score where tasks have answers
) -> VerifierGrader:
    """The probability that an answer is right, given by a trained verifier; tasks need no reference answers.

    reward: {name: verifier, run: runs/v, labels: number}
    """
    options = {"run": run, "url": url, "mode": mode, "threshold": threshold, "labels": labels}
    VerifierSource(run, url)
    return VerifierGrader(NAME, options, deadline)


def uses_verifier(reward: Part) -> bool:
    """True if a reward is a verifier's score, or composed of one."""
    return verifier_part(reward) is not None


def verifier_part(reward: Part) -> Part | None:
    """The verifier in a reward: the reward itself, or a part of `compose`."""
    if reward.name == NAME:
        return reward
    parts = (part for part in reward.options.get("parts", ()) if isinstance(part, Part))
    return next((found for part in parts if (found := verifier_part(part)) is not None), None)
