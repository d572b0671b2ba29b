"""Critics with a model of their own: each says, for some roles, what is to be expected before every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from coterie.batch import hand_back, make_batches
from coterie.learners.torch import TorchLearner
from coterie.rl.losses import token_weights
from coterie.types import Batch, Episode, Loss, Metrics, Turn


@dataclass
class Judge:
    """One critic: its weights, the roles it judges, and what it reads to judge them."""

    learner: TorchLearner
    roles: frozenset[str]
    sees: Literal["own", "joint"]

    def shadow(self, episode: Episode) -> Episode:
        """The episode as this critic reads it: the turns of its roles, after the context that it sees."""
        turns = []
        for turn in episode.turns:
            if turn.role in self.roles and turn.response_ids and not turn.given:
                prompt = self.joint(episode, turn) if self.sees == "joint" else turn.prompt_ids
                turns.append(replace(turn, policy=self.learner.policy, prompt_ids=prompt))
        return replace(episode, turns=turns)

    def joint(self, episode: Episode, turn: Turn) -> tuple[int, ...]:
        """The task, every message that had been said, and who is to speak."""
        said = [f"{episode.turns[i].role}: {episode.turns[i].text}" for i in turn.seen]
        text = "\n\n".join([episode.task.prompt, *said, f"{turn.role}:"])
        return self.learner.base.chat.prompt([{"role": "user", "content": text}])

    def batch(self, shadows: Sequence[Episode]) -> Batch | None:
        return make_batches(shadows, judged=False).get(self.learner.policy)


class Critics:
    """All critics of a run. A role is judged by one of them."""

    def __init__(self, judges: Mapping[str, Judge], loss: Loss, fits: int) -> None:
        self.judges, self.loss, self.fits = judges, loss, fits

    def read(self, episodes: Sequence[Episode]) -> None:
        for judge in self.judges.values():
            shadows = [judge.shadow(episode) for episode in episodes]
            batch = judge.batch(shadows)
            if batch is None:
                continue
            values = judge.learner.scores(batch).values
            assert values is not None
            hand_back(shadows, batch, values, "values")
            for episode, shadow in zip(episodes, shadows, strict=True):
                judged = iter(shadow.turns)
                for turn in episode.turns:
                    if turn.role in judge.roles and turn.response_ids and not turn.given:
                        turn.values = next(judged).values

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        metrics: Metrics = {}
        for name, judge in self.judges.items():
            batch = judge.batch([judge.shadow(episode) for episode in episodes])
            if batch is None:
                continue
            judge.learner.begin(step)
            weights = torch.zeros(len(batch))
            said = batch.mask
            weights[said] = token_weights(batch.turn[said], batch.episode[said], "token")
            fits = [judge.learner.fit(batch, weights, self.loss) for _ in range(self.fits)]
            metrics |= {f"critic/{name}/{key}": value for key, value in fits[-1].items()}
        return metrics

    def save(self, folder: Path) -> None:
        for name, judge in self.judges.items():
            judge.learner.save(folder / name)
        torch.save({name: judge.learner.state() for name, judge in self.judges.items()}, folder / "critics.pt")

    def load(self, folder: Path) -> None:
        states = torch.load(folder / "critics.pt", weights_only=True)
        for name, judge in self.judges.items():
            judge.learner.load(folder / name)
            judge.learner.restore(states[name])
