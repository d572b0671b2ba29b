"""A team for inference, without learners: `coterie serve` and `coterie chat` run it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.engines.router import Router
from coterie.engines.text_player import TextPlayer
from coterie.errors import UserError, is_users_code
from coterie.models.chat import Chat
from coterie.rollout.agent import AgentTeam, OnText, Players, RecordingAgent
from coterie.rollout.collector import play_episode
from coterie.rollout.scoring import within_deadline
from coterie.types import Episode, Task, Turn, Workflow


class WorkflowFailed(UserError, RuntimeError):
    """A workflow raised on a message; the text has the error and the last line of the user's code before it."""

    @classmethod
    def by(cls, error: Exception) -> WorkflowFailed:
        frames = traceback.extract_tb(error.__traceback__)
        place = next(filter(is_users_code, reversed(frames)), frames[-1])
        where = f"{Path(place.filename).name}, line {place.lineno}"
        return cls(f"the workflow failed on this message: {type(error).__name__}: {error} ({where})")


@dataclass(frozen=True)
class PlayableTeam:
    """A trained team without learners, optimizers, environment or state; `training.build.for_inference` makes one."""

    name: str
    step: int  # completed training steps; 0: untrained
    workflow: Workflow
    engine: Router
    chats: Mapping[str, Chat]  # by policy
    players: Players
    contexts: Mapping[str, int]  # by policy: tokens of prompt and reply together
    deadline: float  # seconds per episode
    text_players: Mapping[str, TextPlayer] = field(default_factory=dict)  # by policy: those without token ids

    @property
    def needs_world(self) -> bool:
        """True if the workflow plays in a world of the environment: then only its roles can be asked."""
        return bool(getattr(self.workflow, "needs_world", False))  # a user's own workflow need not have it

    @property
    def own_roles(self) -> list[str]:
        """The roles that a local model plays, not an endpoint or a person."""
        return [role for role, player in self.players.items() if player.policy in self.chats]

    async def play(
        self,
        task: Task,
        players: Players | None = None,
        seed: int = 0,
        on_text: OnText | None = None,
        world: Any = None,
    ) -> Episode:
        """Run the workflow on one task: an episode with its answer and turns, and without a reward.

        `players`: the policy and the sampling of each role; by default as in an evaluation. `on_text` gets each role's
        text while it is sampled. `world`: what the environment's `open(task)` would return, if the workflow needs one.
        What the workflow raises becomes WorkflowFailed.
        """
        episode = Episode(task.id, task, 0, seed=seed)

        def team(turns: list[Turn | None]) -> AgentTeam:
            return AgentTeam(
                RecordingAgent(role, player, self.chats, self.engine, seed, turns, {}, on_text, self.text_players)
                for role, player in (players or self.players).items()
            )

        try:
            async with within_deadline("the episode", self.deadline, "rollout.deadline"):
                outcome = await play_episode(episode, self.workflow, world, team)
        except (UserError, TimeoutError):
            raise
        except Exception as error:  # a workflow is user code, which may raise anything
            raise WorkflowFailed.by(error) from error
        episode.answer = outcome.answer
        return episode


def answer_text(answer: Any) -> str:
    """A team's answer as text. Answers by role are one paragraph each: the last one of every role."""
    if isinstance(answer, Mapping):
        return "\n\n".join(f"{role}: {answer_text(_last(own))}" for role, own in answer.items())
    return "" if answer is None else str(answer)


def _last(answer: Any) -> Any:
    return answer[-1] if isinstance(answer, Sequence) and not isinstance(answer, str) and answer else answer
