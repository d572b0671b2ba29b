"""Critics with a model of their own: each predicts token values for the turns of some roles.

A critic reads the role's own prompt, the joint context (a centralized critic, as in MAPPO), or the question alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from torch import Tensor

from coterie.errors import ModelError
from coterie.learners.batch import make_batches, scatter_to_turns
from coterie.learners.learner import TorchLearner
from coterie.models.store import read_tensors, write_tensors
from coterie.types import Batch, Episode, Loss, Metrics, Turn


def joint_context(episode: Episode, turn: Turn) -> str:
    """The task, every message so far, and the role that acts next."""
    messages = [f"{episode.turns[i].role}: {episode.turns[i].text}" for i in turn.seen]
    return "\n\n".join([episode.task.prompt, *messages, f"{turn.role}:"])


@dataclass
class Critic:
    """One critic: its model, the roles whose turns it predicts values for, and the context that it reads."""

    learner: TorchLearner
    roles: frozenset[str]
    trained_policies: frozenset[str]  # turns of other policies get no values: they count as environment
    sees: Literal["own", "joint", "reply"]
    truncated: int = 0  # contexts that were too long for its model

    def valued_turns(self, episode: Episode) -> list[Turn]:
        """The turns that this critic predicts values for."""
        return [turn for turn in episode.turns if turn.role in self.roles and self._is_trained(turn)]

    def _is_trained(self, turn: Turn) -> bool:
        return bool(turn.response_ids) and turn.trainable and turn.policy in self.trained_policies

    def critic_view(self, episode: Episode) -> Episode:
        """The episode as this critic reads it: the turns of its roles, each after the context that the critic sees."""
        turns = [
            replace(turn, policy=self.learner.policy, prompt_ids=self.context(episode, turn))
            for turn in self.valued_turns(episode)
        ]
        return replace(episode, turns=turns)

    def context(self, episode: Episode, turn: Turn) -> tuple[int, ...]:
        """The prompt that the critic reads before a turn, truncated on the left to its model's context."""
        ids = turn.prompt_ids
        if self.sees != "own":
            content = joint_context(episode, turn) if self.sees == "joint" else episode.task.prompt
            ids = self.learner.base.chat.prompt([{"role": "user", "content": content}])
        context, response = self.learner.base.context, len(turn.response_ids)
        room = context - response
        if room < 1:
            raise ModelError(
                f"{self.learner.policy}: its model's context is {context} tokens, and a reply of {turn.role} has "
                f"{response}: use a critic model with a longer context, or a lower max_tokens for the role"
            )
        self.truncated += len(ids) > room
        return ids[max(0, len(ids) - room) :]

    def batch(self, views: Sequence[Episode]) -> Batch | None:
        return make_batches(views, require_advantages=False).get(self.learner.policy)


class Critics:
    """All critics of a run; each role has one."""

    def __init__(
        self, critics: Mapping[str, Critic], loss: Loss, weights: Callable[[Batch], Tensor], fits: int
    ) -> None:
        """`weights`: the loss weight of each token, as for the policies. `fits`: optimizer steps per step."""
        self.critics, self.loss, self.weights, self.fits = critics, loss, weights, fits

    def read(self, episodes: Sequence[Episode]) -> None:
        for critic in self.critics.values():
            views = [critic.critic_view(episode) for episode in episodes]
            batch = critic.batch(views)
            if batch is None:
                continue
            values = critic.learner.scores(batch).values
            assert values is not None
            scatter_to_turns(views, batch, values, "values")
            for episode, view in zip(episodes, views, strict=True):
                for turn, viewed in zip(critic.valued_turns(episode), view.turns, strict=True):
                    turn.values = viewed.values

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        metrics: Metrics = {}
        for name, critic in self.critics.items():
            critic.truncated = 0
            batch = critic.batch([critic.critic_view(episode) for episode in episodes])
            if batch is None:
                continue
            critic.learner.begin(step)
            weights = self.weights(batch)
            fits = [critic.learner.fit(batch, weights, self.loss) for _ in range(self.fits)]
            fitted = fits[-1] | {"truncated": critic.truncated}
            metrics |= {f"critic/{name}/{key}": value for key, value in fitted.items()}
        return metrics

    def save(self, folder: Path) -> None:
        for name, critic in self.critics.items():
            critic.learner.save(folder / quote(name, safe=" "))
        states = {name: critic.learner.state() for name, critic in self.critics.items()}
        if all(critic.learner.processes.is_main for critic in self.critics.values()):
            write_tensors(states, folder / "critics.pt")

    def load(self, folder: Path) -> None:
        states = read_tensors(folder / "critics.pt")
        for name, critic in self.critics.items():
            critic.learner.load(folder / quote(name, safe=" "))
            critic.learner.restore(states[name])
