"""A training loop as small as it gets: one policy, random prompts, GRPO. What it learns does not matter here."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from coterie.algorithms.grpo import Grpo
from coterie.bench.options import half
from coterie.bench.shapes import adapters_on, base_of
from coterie.config.settings import Learning
from coterie.credit.team import Team
from coterie.engines.native.engine import NativeEngine
from coterie.games.model import SIGNS
from coterie.learners.batch import make_batches
from coterie.learners.learner import TorchLearner
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import drop_failed
from coterie.types import Episode, Sampling, Split, Task
from coterie.workflows.single import Single

SAMPLES = 8  # of each prompt


def texts(count: int, length: int, seed: int = 0) -> list[str]:
    """Prompts of so many letters, each of which is a token."""
    draw = random.Random(seed)
    return ["".join(draw.choices(SIGNS[2:], k=length)) for _ in range(count)]


def evenness(ids: Sequence[int]) -> float:
    """A reward that is there at once: the share of tokens with an even number."""
    return sum(token % 2 == 0 for token in ids) / max(len(ids), 1)


class Even:
    """Scores by evenness; the loop has its own tasks."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return ()

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        episode.reward = evenness(episode.turns[-1].response_ids)


class Loop:
    """Plays, judges and learns, over and over."""

    def __init__(
        self, shape: str, device: torch.device, asked: int, prompt: int, most: int, learning: Learning | None = None
    ) -> None:
        self.base = base_of(shape, device, half(device))
        adapter = adapters_on(self.base, 1)[0]
        self.learner = TorchLearner("policy", self.base, adapter, 1e-5, learning or Learning(), steps=1000)
        self.engine = NativeEngine(self.base, {"policy": adapter.name}, rows=asked * SAMPLES)
        self.algorithm, self.credit, self.rng, self.done = Grpo(), Team(), random.Random(0), 0
        chats = {"policy": self.base.chat}
        self.asked = asked
        self.ask(prompt, most)
        self.collector = Collector(Single(), Even(), self.engine, chats, asked * SAMPLES, 600.0, None)

    def ask(self, prompt: int, most: int, seed: int = 0) -> None:
        """Let the next steps be of prompts and answers of such lengths."""
        self.tasks = [Task(str(i), text, None) for i, text in enumerate(texts(self.asked, prompt, seed))]
        self.players = {"solver": Player("policy", Sampling(max_tokens=most))}

    def step(self) -> int:
        """What `coterie train` does in a step, less the files it writes; says how many tokens were sampled."""
        played = drop_failed(self.collector.collect(self.tasks, SAMPLES, self.players, self.done), 0.0)
        self.engine.clear()
        self.credit.assign(played, {}, team_chain=False)
        self.algorithm.compute_advantages(played, {})
        self.learner.schedule_lr(self.done)
        self.algorithm.update({"policy": self.learner}, make_batches(played), self.rng, self.done)
        self.engine.weights_changed("policy", self.learner.version)
        self.done += 1
        return sum(len(turn.response_ids) for episode in played for turn in episode.turns)
