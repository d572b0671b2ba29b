"""The learners as the driver sees them: a group of ranks that run every call together, and a proxy per policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from coterie.cluster.learner_worker import Job, LearnerWorker, for_critic
from coterie.cluster.processes import LearnersLost, Place, describe_loss, raised_by_code
from coterie.learners.distributed import TIMEOUT, LostProcess, Processes
from coterie.types import Batch, Episode, Learner, Loss, Measure, Metrics, Scores, Weights

HEARTBEAT = 2.0  # seconds between heartbeat checks of all ranks during a call
POLL = 0.05  # seconds between polls of the rollouts that run at the same time
START_LIMIT = 1800.0  # seconds for a worker to get its resources and to load its models
EARLIER = "earlier"  # key in the state of a learner: version and weights of earlier steps, by step
Pushed = Mapping[str, tuple[int, Any]]  # by policy: the version, and the object with its weights


class LearnerGroup:
    """All learner ranks. Every call runs on all of them, and if one is lost, all are restarted."""

    def __init__(self, size: int, cpus: float, gpus: float, arguments: tuple[Any, ...], patience: float) -> None:
        """`cpus` and `gpus` of each rank; `arguments` of its `start`, before rank, size and address."""
        self.size, self.cpus, self.gpus, self.arguments, self.patience = size, cpus, gpus, arguments, patience
        self.bundles: PlacementGroup | None = None
        self.versions: dict[str, int] = {}
        self.changed: set[str] = set()  # policies whose weights were not pushed yet
        self.ranks: list[Any] = []
        self.places: list[Place | None] = []
        self.has_critic = False
        self.earlier: dict[int, Pushed] = {}  # by step: the weights of the last steps, for rollouts that run ahead
        self.meanwhile: Callable[[], None] | None = None  # called repeatedly while a call is waited for

    def start(self) -> None:
        """Start the ranks, with fresh weights."""
        self.close()
        self.earlier.clear()
        self.ranks, self.places = self._make_actors(), [None] * self.size
        found = self._wait([_call(rank, "place") for rank in self.ranks])
        self.places, address = [place for place, _ in found], found[0][1]
        started = [_call(rank, "start", *self.arguments, n, self.size, address) for n, rank in enumerate(self.ranks)]
        self.has_critic, self.versions = self._wait(started)[0]

    def _make_actors(self) -> list[Any]:
        """The actors of all ranks, on as few nodes as possible: gradients are summed faster within a node."""
        # Two threads, neither of them the main one: a heartbeat must not wait for a method that computes.
        threads: dict[str, Any] = {"concurrency_groups": {"work": 1, "heartbeat": 1}}
        actor, own = ray.remote(**threads)(LearnerWorker), {"num_cpus": self.cpus, "num_gpus": self.gpus}
        each = {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}
        if not each:
            return [actor.options(**own).remote() for _ in range(self.size)]
        self.bundles = placement_group([each] * self.size, strategy="PACK")
        places = [PlacementGroupSchedulingStrategy(self.bundles, number) for number in range(self.size)]
        return [actor.options(**own, scheduling_strategy=place).remote() for place in places]

    def close(self) -> None:
        for rank in self.ranks:
            ray.kill(rank)
        self.ranks = []
        if self.bundles is not None:
            remove_placement_group(self.bundles)
            self.bundles = None

    def call_all(self, method: str, *arguments: Any) -> Any:
        """Call a method on every rank; each node gets the arguments once. Returns the first rank's result."""
        return self.call_each(method, [[ray.put(argument) for argument in arguments]] * self.size)[0]

    def call_each(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a method on every rank, each with arguments of its own; returns the results in order of rank."""
        calls = [_call(rank, method, *own) for rank, own in zip(self.ranks, arguments, strict=True)]
        results = self._wait(calls)
        self.versions = results[0][1]
        return [result for result, _ in results]

    def weights(self, policy: str) -> Any:
        """A reference to a policy's weights, which go from the learner's node to the workers without the driver."""
        weights = [_call(rank, "weights", policy) for rank in self.ranks]
        self._wait(weights, fetch=False)
        return weights[0]

    def _wait(self, calls: Sequence[Any], fetch: bool = True) -> list[Any]:
        """The results of calls. While they run, every rank must answer heartbeats."""
        until, waiting = time.monotonic() + max(START_LIMIT, TIMEOUT.total_seconds()), list(calls)
        pulse = time.monotonic() + HEARTBEAT
        while waiting:
            returned, waiting = ray.wait(waiting, timeout=POLL if self.meanwhile else HEARTBEAT, fetch_local=fetch)
            for ref in returned if fetch else ():
                self._result(ref)
            if waiting and time.monotonic() > pulse:
                if time.monotonic() > until or self._silent():
                    raise self._lost()
                pulse = time.monotonic() + HEARTBEAT
            if waiting and self.meanwhile:
                self.meanwhile()
        return [self._result(ref) for ref in calls] if fetch else []

    def _silent(self) -> bool:
        """True if a rank misses a heartbeat. Ranks that still wait for their resources are not checked."""
        if None in self.places:
            return False
        pulses = [_call(rank, "heartbeat", group="heartbeat") for rank in self.ranks]
        return bool(ray.wait(pulses, num_returns=len(pulses), timeout=self.patience)[1])

    def _result(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except RayError as error:
            cause = raised_by_code(error)
            if cause is None or isinstance(cause, LostProcess):  # a rank noticed the loss of another one first
                raise self._lost() from error
            raise cause from error

    def _lost(self) -> LearnersLost:
        """Find out which rank is lost."""
        for number, (rank, place) in enumerate(zip(self.ranks, self.places, strict=True)):
            try:
                ray.get(_call(rank, "heartbeat", group="heartbeat"), timeout=HEARTBEAT)
            except GetTimeoutError:
                return LearnersLost(describe_loss(f"learner {number}", place, None))
            except RayError as error:
                return LearnersLost(describe_loss(f"learner {number}", place, error))
        return LearnersLost("the learners lost each other, and all of them answer")


def _call(rank: Any, method: str, *arguments: Any, group: str = "work") -> Any:
    """Call a method in one of the two threads of a learner worker."""
    return getattr(rank, method).options(concurrency_group=group).remote(*arguments)


class RemoteLearner:
    """The learner of one policy, in the group."""

    def __init__(self, group: LearnerGroup, policy: str, frozen: bool) -> None:
        self.group, self.policy, self.frozen = group, policy, frozen

    @property
    def version(self) -> int:
        return self.group.versions[self.policy]

    @property
    def recorded(self) -> dict[int, Tensor] | None:
        found = self.group.call_each("get", [(self.policy, "recorded")] * self.group.size)
        return None if found[0] is None else {turn: tokens for part in found for turn, tokens in part.items()}

    @recorded.setter
    def recorded(self, recorded: dict[int, Tensor] | None) -> None:
        self.group.call_all("set", self.policy, "recorded", recorded)

    def begin(self, step: int) -> None:
        self._call("begin", step)

    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        return torch.cat(self._call_rows("logprobs", batch, reference))

    def scores(self, batch: Batch) -> Scores:
        parts = [vars(part).values() for part in self._call_rows("scores", batch)]
        return Scores(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def fit(self, batch: Batch, weights: Tensor, loss: Loss, measure: Measure | None = None) -> Metrics:
        return self.fit_together([(self, batch, weights, loss, measure)])[0]

    def fit_together(self, jobs: Sequence[tuple[Any, Batch, Tensor, Loss, Measure | None]]) -> list[Metrics]:
        self.group.changed |= {learner.policy for learner, *_ in jobs}
        sent = [(own_jobs(jobs, Processes(rank, self.group.size)),) for rank in range(self.group.size)]
        return self.group.call_each("fit_together", sent)[0]

    def weights(self) -> Weights:
        return _tensors(ray.get(self.group.weights(self.policy)))

    def copy_from(self, other: Learner) -> None:
        assert isinstance(other, RemoteLearner)
        self.group.changed.add(self.policy)
        self.group.call_all("copy", self.policy, other.policy)

    def save(self, folder: Path) -> None:
        self._call("save", folder.resolve())

    def load(self, folder: Path) -> None:
        self.group.changed.add(self.policy)
        self._call("load", folder.resolve())

    def state(self) -> dict[str, Any]:
        """The learner's state, with the weights of earlier steps that rollouts which run ahead are played with."""
        pushed = {step: weights[self.policy] for step, weights in self.group.earlier.items() if self.policy in weights}
        earlier = {step: (version, _tensors(ray.get(ref))) for step, (version, ref) in pushed.items()}
        return {**self.group.call_all("state", self.policy), EARLIER: earlier}

    def restore(self, state: dict[str, Any]) -> None:
        state = dict(state)
        for step, (version, tensors) in state.pop(EARLIER, {}).items():
            weights = ray.put({name: tensor.numpy() for name, tensor in tensors.items()})
            self.group.earlier[step] = {**self.group.earlier.get(step, {}), self.policy: (version, weights)}
        self._call("restore", state)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self.group.call_all("call", self.policy, method, *arguments)

    def _call_rows(self, method: str, batch: Batch, *arguments: Any) -> list[Any]:
        """Call a method on every rank with its rows of a batch."""
        parts = [own_rows(batch, Processes(rank, self.group.size)) for rank in range(self.group.size)]
        return self.group.call_each("call", [(self.policy, method, part, *arguments) for part in parts])


def own_rows(batch: Batch, processes: Processes) -> Batch:
    """Copies of a rank's rows: pickling a view would send the whole tensor."""
    return processes.own_rows(batch).each(torch.clone)


def own_jobs(jobs: Sequence[tuple[Any, Batch, Tensor, Loss, Measure | None]], processes: Processes) -> list[Job]:
    """What a rank is sent of the jobs of `fit_together`: its rows and their loss weights."""
    return [
        (learner.policy, own_rows(batch, processes), weights[processes.shard_rows(batch)].clone(), *functions)
        for learner, batch, weights, *functions in jobs
    ]


def _tensors(arrays: Any) -> dict[str, Tensor]:
    """Copies of arrays by name, which are in shared memory."""
    return {name: torch.tensor(array) for name, array in arrays.items()}


class RemoteCritic:
    """The critics or the mixer, in the group."""

    def __init__(self, group: LearnerGroup) -> None:
        self.group = group

    def read(self, episodes: Sequence[Episode]) -> None:
        found = self.group.call_all("read_values", [for_critic(episode) for episode in episodes])
        for episode, values in zip(episodes, found, strict=True):
            for turn, read in zip(episode.turns, values, strict=True):
                turn.values, turn.utility = read

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        return self.group.call_all("fit_critic", [for_critic(episode) for episode in episodes], step)

    def save(self, folder: Path) -> None:
        self.group.call_all("critic_files", "save", folder.resolve())

    def load(self, folder: Path) -> None:
        self.group.call_all("critic_files", "load", folder.resolve())
