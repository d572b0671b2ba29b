"""Critics with a model of their own: each says, for some roles, what is to be expected before every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from torch import Tensor

from coterie.errors import ModelError
from coterie.learners.batch import hand_back, make_batches
from coterie.learners.learner import TorchLearner
from coterie.models.store import read_tensors, write_tensors
from coterie.types import Batch, Episode, Loss, Metrics, Turn


def joint_context(episode: Episode, turn: Turn) -> str:
    """The task, every message that had been said, and who is to speak."""
    said = [f"{episode.turns[i].role}: {episode.turns[i].text}" for i in turn.seen]
    return "\n\n".join([episode.task.prompt, *said, f"{turn.role}:"])


@dataclass
class Critic:
    """One critic: its model, the roles whose turns it values, and what it reads."""

    learner: TorchLearner
    roles: frozenset[str]
    learning: frozenset[str]  # the policies that learn; turns of others are environment
    sees: Literal["own", "joint"]
    cut: int = 0  # contexts that were too long for its model

    def judged(self, episode: Episode) -> list[Turn]:
        """The turns whose worth this critic says."""
        return [turn for turn in episode.turns if turn.role in self.roles and self._counts(turn)]

    def _counts(self, turn: Turn) -> bool:
        return bool(turn.response_ids) and not turn.given and turn.policy in self.learning

    def critic_view(self, episode: Episode) -> Episode:
        """The episode as this critic reads it: the turns of its roles, after the context that it sees."""
        turns = [
            replace(turn, policy=self.learner.policy, prompt_ids=self.context(episode, turn))
            for turn in self.judged(episode)
        ]
        return replace(episode, turns=turns)

    def context(self, episode: Episode, turn: Turn) -> tuple[int, ...]:
        """What it reads before a turn; of a context that is too long for its model, the end."""
        ids = turn.prompt_ids
        if self.sees == "joint":
            ids = self.learner.base.chat.prompt([{"role": "user", "content": joint_context(episode, turn)}])
        context, answer = self.learner.base.context, len(turn.response_ids)
        room = context - answer
        if room < 1:
            raise ModelError(
                f"{self.learner.policy}: its model reads {context} tokens, and {turn.role} said {answer}: give "
                "the critic a model with a longer context, or the role fewer max_tokens"
            )
        self.cut += len(ids) > room
        return ids[max(0, len(ids) - room) :]

    def batch(self, views: Sequence[Episode]) -> Batch | None:
        return make_batches(views, judged=False).get(self.learner.policy)


class Critics:
    """All critics of a run. A role is judged by one of them."""

    def __init__(
        self, critics: Mapping[str, Critic], loss: Loss, weights: Callable[[Batch], Tensor], fits: int
    ) -> None:
        """`weights` says what each token counts, as for the policies."""
        self.critics, self.loss, self.weights, self.fits = critics, loss, weights, fits

    def read(self, episodes: Sequence[Episode]) -> None:
        for critic in self.critics.values():
            views = [critic.critic_view(episode) for episode in episodes]
            batch = critic.batch(views)
            if batch is None:
                continue
            values = critic.learner.scores(batch).values
            assert values is not None
            hand_back(views, batch, values, "values")
            for episode, view in zip(episodes, views, strict=True):
                for turn, seen in zip(critic.judged(episode), view.turns, strict=True):
                    turn.values = seen.values

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        metrics: Metrics = {}
        for name, critic in self.critics.items():
            critic.cut = 0
            batch = critic.batch([critic.critic_view(episode) for episode in episodes])
            if batch is None:
                continue
            critic.learner.schedule_lr(step)
            weights = self.weights(batch)
            fits = [critic.learner.fit(batch, weights, self.loss) for _ in range(self.fits)]
            metrics |= {f"critic/{name}/{key}": value for key, value in (fits[-1] | {"cut": critic.cut}).items()}
        return metrics

    def save(self, folder: Path) -> None:
        for name, critic in self.critics.items():
            critic.learner.save(folder / quote(name, safe=" "))
        write_tensors({name: critic.learner.state() for name, critic in self.critics.items()}, folder / "critics.pt")

    def load(self, folder: Path) -> None:
        states = read_tensors(folder / "critics.pt")
        for name, critic in self.critics.items():
            critic.learner.load(folder / quote(name, safe=" "))
            critic.learner.restore(states[name])
