"""A learner worker: one data-parallel rank with the learners of all policies and the critic."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.cluster.processes import Place, here
from coterie.cluster.shipment import Shipment
from coterie.learners.critics import Critics
from coterie.learners.distributed import join_processes
from coterie.training.build import build_learning, load_models, print_template_notes
from coterie.types import Batch, Episode, Loss, Measure, Metrics, Task

Job = tuple[str, Batch, Tensor, Loss, Measure | None]  # the policy first
Values = list[tuple[Tensor | None, float | None]]  # by turn: values and utility
Versions = dict[str, int]


class LearnerWorker:
    """Holds weights and optimizers. Every method returns the versions of the policies beside its result."""

    def heartbeat(self) -> None:
        """Shows that the process is alive; runs in another thread than the methods that compute."""

    def place(self) -> tuple[Place, str]:
        """Where this process is, and an address at which the ranks can meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            return here(), f"{socket.gethostbyname(socket.gethostname())}:{free.getsockname()[1]}"

    def start(
        self, shipment: Shipment, saved: Path | None, rank: int, size: int, address: str
    ) -> tuple[bool, Versions]:
        """Join the ranks and load the models; returns whether there is a critic."""
        config = shipment.unpack()
        assert config.cluster is not None
        self.is_main, processes = rank == 0, join_processes(rank, size, address)
        models = load_models(config, saved, config.cluster.learner.shard)
        if processes.is_main:
            print_template_notes(models.bases)
        self.learners, self.critic = build_learning(models, processes, presharded=True)
        return self.critic is not None, self.versions

    @property
    def versions(self) -> Versions:
        return {policy: learner.version for policy, learner in self.learners.items()}

    def call(self, policy: str, method: str, *arguments: Any) -> tuple[Any, Versions]:
        """Call a method of a learner."""
        return getattr(self.learners[policy], method)(*arguments), self.versions

    def get(self, policy: str, attribute: str) -> tuple[Any, Versions]:
        return getattr(self.learners[policy], attribute), self.versions

    def set(self, policy: str, attribute: str, value: Any) -> tuple[None, Versions]:
        setattr(self.learners[policy], attribute, value)
        return None, self.versions

    def state(self, policy: str) -> tuple[dict[str, Any], Versions]:
        """A learner's state, on the CPU: the driver may have no GPU. The first rank has all of it."""
        state = self.learners[policy].state()
        on_cpu = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, state if self.is_main else {})
        return on_cpu, self.versions

    def fit_together(self, jobs: Sequence[Job]) -> tuple[list[Metrics], Versions]:
        learners = [self.learners[policy] for policy, *_ in jobs]
        fitted = learners[0].fit_together([(learner, *job[1:]) for learner, job in zip(learners, jobs, strict=True)])
        return fitted, self.versions

    def copy(self, target: str, source: str) -> tuple[None, Versions]:
        self.learners[target].copy_from(self.learners[source])
        return None, self.versions

    def weights(self, policy: str) -> dict[str, np.ndarray]:
        """A policy's weights, in the first rank; as arrays, which all processes of a node read in shared memory."""
        weights = self.learners[policy].weights()
        return {name: tensor.float().cpu().numpy() for name, tensor in weights.items() if self.is_main}

    def read_values(self, episodes: Sequence[Episode]) -> tuple[list[Values], Versions]:
        """The values and utilities that the critic writes on the turns."""
        assert self.critic is not None
        self.critic.read(episodes)
        return [[(turn.values, turn.utility) for turn in episode.turns] for episode in episodes], self.versions

    def fit_critic(self, episodes: Sequence[Episode], step: int) -> tuple[Metrics, Versions]:
        assert self.critic is not None
        return self.critic.fit(episodes, step), self.versions

    def critic_files(self, method: str, folder: Path) -> tuple[None, Versions]:
        """`save` or `load` of the critic. Ranks gather critics' models together; a mixer is whole in each."""
        if method == "load" or self.is_main or isinstance(self.critic, Critics):
            getattr(self.critic, method)(folder)
        return None, self.versions


def for_critic(episode: Episode) -> Episode:
    """An episode without fields that critics do not read: answers may be large, or not picklable."""
    task = Task(episode.task.id, episode.task.prompt, None)
    return replace(episode, task=task, answer=None, metrics={})
