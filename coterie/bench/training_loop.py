"""A minimal training loop: one policy, random prompts, GRPO, and a reward that is cheap to compute."""

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
    """Random prompts; every letter is one token."""
    rng = random.Random(seed)
    return ["".join(rng.choices(SIGNS[2:], k=length)) for _ in range(count)]


def evenness(ids: Sequence[int]) -> float:
    """A cheap reward: the share of even token ids."""
    return sum(token % 2 == 0 for token in ids) / max(len(ids), 1)


class Even:
    """An environment whose reward is `evenness`; the loop supplies the tasks."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return ()

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        episode.reward = evenness(episode.turns[-1].response_ids)


class Loop:
    """Rollout, credit and update, step by step."""

    def __init__(
        self,
        shape: str,
        device: torch.device,
        prompts: int,
        prompt: int,
        max_tokens: int,
        learning: Learning | None = None,
    ) -> None:
        self.base = base_of(shape, device, half(device))
        adapter = adapters_on(self.base, 1)[0]
        self.learner = TorchLearner("policy", self.base, adapter, 1e-5, learning or Learning(), steps=1000)
        self.engine = NativeEngine(self.base, {"policy": adapter.name}, rows=prompts * SAMPLES)
        self.algorithm, self.credit, self.rng, self.done = Grpo(), Team(), random.Random(0), 0
        chats = {"policy": self.base.chat}
        self.prompts = prompts
        self.set_lengths(prompt, max_tokens)
        self.collector = Collector(Single(), Even(), self.engine, chats, prompts * SAMPLES, 600.0, None)

    def set_lengths(self, prompt: int, max_tokens: int, seed: int = 0) -> None:
        """Set the lengths of prompts and answers for the next steps."""
        self.tasks = [Task(str(i), text, None) for i, text in enumerate(texts(self.prompts, prompt, seed))]
        self.players = {"solver": Player("policy", Sampling(max_tokens=max_tokens))}

    def step(self) -> int:
        """One training step without logging; returns the number of sampled tokens."""
        played = drop_failed(self.collector.collect(self.tasks, SAMPLES, self.players, self.done), 0.0)
        self.engine.clear()
        self.credit.assign(played, {}, team_chain=False)
        self.algorithm.compute_advantages(played, {})
        self.learner.begin(self.done)
        self.algorithm.update({"policy": self.learner}, make_batches(played), self.rng, self.done)
        self.engine.weights_changed("policy", self.learner.version)
        self.done += 1
        return sum(len(turn.response_ids) for episode in played for turn in episode.turns)
