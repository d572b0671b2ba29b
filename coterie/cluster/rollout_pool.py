"""The rollout workers as the driver sees them: chunks go to workers that are ready, and lost ones are played again.

A chunk's tokens depend on its episodes' seeds and on the weights alone, so any worker can play it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from coterie.cluster.learners import START_LIMIT, Pushed
from coterie.cluster.processes import ClusterFailed, LearnersLost, Place, describe_loss, raised_by_code
from coterie.cluster.rollout_worker import Chunk
from coterie.rollout.agent import Players

LOAD_LIMIT = 600.0  # seconds for new weights to arrive
LOSSES = 3  # workers lost with a chunk after which its episodes fail: they are probably the cause


class Rollout:
    """Chunks to be played with the same weights: each waits, is being played, or is done."""

    def __init__(self, chunks: Sequence[Chunk], players: Players, weights: Pushed, limits: Sequence[float]) -> None:
        """`limits`: seconds that a worker may take for each chunk."""
        self.chunks, self.players, self.weights, self.limits = chunks, ray.put(players), weights, limits
        self.waiting = deque(range(len(chunks)))
        self.done: dict[int, list[Mapping[str, Any]]] = {}
        self.losses = [0] * len(chunks)

    @property
    def finished(self) -> bool:
        return len(self.done) == len(self.chunks)

    @property
    def next_alone(self) -> bool:
        """True if the next chunk is on its last attempt. Its worker then plays no other chunk, so that this one causes
        a crash."""
        return self.losses[self.waiting[0]] == LOSSES - 1

    def play_again(self, number: int, why: str) -> None:
        """Requeue a chunk whose worker was lost, at the front; after LOSSES workers its episodes fail."""
        self.losses[number] += 1
        if self.losses[number] < LOSSES:
            self.waiting.appendleft(number)
            return
        error = f"{LOSSES} workers were lost while they played it; the last: {why}"
        self.done[number] = [{"error": error, "error_kind": "WorkerLost"}] * len(self.chunks[number])


@dataclass(frozen=True)
class Call:
    """A call of a worker that has not returned yet: of its start, new weights, or a chunk."""

    until: float  # on the monotonic clock; then the worker is killed
    rollout: Rollout | None = None
    chunk: int = 0
    weight_set: int = 0
    alone: bool = False  # the worker plays no other chunk meanwhile
    starts: bool = False  # it is the worker's `start`


@dataclass(eq=False)
class Worker:
    """One worker, its open calls, and the sets of weights that are loaded, or will be when its open calls return."""

    number: int
    actor: Any
    loaded: list[Pushed]  # by set
    calls: dict[Any, Call] = field(default_factory=dict)  # by object reference
    place: Place | None = None  # None until it has started
    idle_since: float = 0.0  # on the monotonic clock: when it had started, or had played its last chunk

    @property
    def plays(self) -> bool:
        return any(call.rollout for call in self.calls.values())

    @property
    def ready(self) -> bool:
        """True if it may play a chunk: its models and weights are loaded, and it does not play a chunk alone."""
        return self.place is not None and all(call.rollout and not call.alone for call in self.calls.values())

    def set_for(self, weights: Pushed) -> int | None:
        """The set that has these weights, else the oldest one with which no chunk is being played, if there is one."""
        used = {call.weight_set for call in self.calls.values()}
        free = [number for number in range(len(self.loaded)) if number not in used]
        if weights in self.loaded:
            return self.loaded.index(weights)
        return min(free, key=lambda n: sum(version for version, _ in self.loaded[n].values()), default=None)

    @property
    def name(self) -> str:
        return f"rollout worker {self.number}"


class RolloutPool:
    """Starts workers, pushes weights to them, and plays rollouts on them."""

    def __init__(
        self,
        make: Callable[[], Any],
        arguments: tuple[Any, ...],
        sets: int,
        size: int,
        least: int,
        slots: int,
        restarts: int,
    ) -> None:
        """`make` creates an actor; `arguments` of its `start`, before the number of `sets` of weights that it can play
        with at the same time; `slots`: chunks that a worker plays at once."""
        self.make, self.arguments, self.sets, self.least = make, arguments, sets, least
        self.slots, self.restarts = slots, restarts
        self.weights: Pushed = {}
        self.idle = 0.0  # idle seconds of all workers since the last `take_idle`
        self.hashes: dict[str, str] = {}  # of the verifiers that the workers have loaded
        self.started, self.failures = 0, 0  # failures: workers lost since a chunk was last finished
        self.workers: list[Worker] = []
        self.rollouts: list[Rollout] = []  # unfinished, the oldest first
        for _ in range(size):
            self._start_worker()

    def push(self, policy: str, version: int, weights: Any) -> None:
        """From now on rollouts use these weights, one object for all workers; idle workers load it at once."""
        self.weights = {**self.weights, policy: (version, weights)}
        for worker in self.workers:
            if worker.ready and not worker.calls:
                self._load(worker, worker.set_for(self.weights) or 0, self.weights)

    def wait_until_ready(self) -> None:
        """Wait until as many workers have started as a step needs."""
        while sum(worker.place is not None for worker in self.workers) < self.least:
            self._wait()

    def wait_until_loaded(self) -> None:
        """Wait until every worker has loaded the weights that it was sent."""
        while not all(worker.ready for worker in self.workers):
            self._wait()

    def begin(self, rollout: Rollout) -> None:
        """Begin a rollout, after those that were begun before."""
        self.rollouts.append(rollout)
        self._assign()

    def finish(self, rollout: Rollout) -> list[Mapping[str, Any]]:
        """The fields of a rollout's episodes, in their order."""
        self.wait_until_ready()
        while not rollout.finished:
            self._assign()
            self._wait()
        self.rollouts.remove(rollout)
        return [fields for number in range(len(rollout.chunks)) for fields in rollout.done[number]]

    def take_idle(self) -> float:
        """The seconds that a worker, on average, had nothing to play since the last call."""
        idle, self.idle = self.idle / max(len(self.workers), 1), 0.0
        return idle

    def progress(self) -> None:
        """Handle finished calls and assign chunks, without waiting; called while the driver waits for the learners."""
        if self.rollouts:
            self._wait(0.0)
            self._assign()

    def close(self) -> None:
        for worker in self.workers:
            ray.kill(worker.actor)
        self.workers.clear()

    def _assign(self) -> None:
        """Give chunks to workers, those of the oldest rollout first."""
        for rollout in self.rollouts:
            while rollout.waiting and (worker := self._idlest(rollout)) is not None:
                weight_set = worker.set_for(rollout.weights) or 0
                if worker.loaded[weight_set] != rollout.weights:
                    self._load(worker, weight_set, rollout.weights)
                    continue
                self.idle += 0.0 if worker.plays else time.monotonic() - worker.idle_since
                alone, number = rollout.next_alone, rollout.waiting.popleft()
                ref = worker.actor.play.remote(weight_set, rollout.chunks[number], rollout.players)
                worker.calls[ref] = Call(time.monotonic() + rollout.limits[number], rollout, number, weight_set, alone)

    def _idlest(self, rollout: Rollout) -> Worker | None:
        """The worker with the fewest chunks that can play the next one of this rollout, or load its weights."""
        most = 1 if rollout.next_alone else self.slots
        ready = [w for w in self.workers if w.ready and len(w.calls) < most]
        able = [worker for worker in ready if worker.set_for(rollout.weights) is not None]
        return min(able, key=lambda worker: len(worker.calls), default=None)

    def _start_worker(self) -> None:
        worker = Worker(self.started, self.make(), [{}] * self.sets)
        starts = worker.actor.start.remote(*self.arguments, self.sets)
        worker.calls[starts] = Call(time.monotonic() + START_LIMIT, starts=True)
        self.workers.append(worker)
        self.started += 1

    def _load(self, worker: Worker, weight_set: int, weights: Pushed) -> None:
        for policy, (version, pushed) in weights.items():
            if worker.loaded[weight_set].get(policy) != (version, pushed):
                ref = worker.actor.load.remote(weight_set, policy, version, pushed)
                worker.calls[ref] = Call(time.monotonic() + LOAD_LIMIT, weight_set=weight_set)
        worker.loaded[weight_set] = weights

    def _wait(self, seconds: float | None = None) -> None:
        """Wait until a call returns or is overdue, at most `seconds`; then handle all such calls."""
        owners = {ref: worker for worker in self.workers for ref in worker.calls}
        if not owners:
            return
        first = min(call.until for worker in self.workers for call in worker.calls.values())
        left = max(0.0, first - time.monotonic())
        returned, _ = ray.wait(list(owners), timeout=left if seconds is None else min(seconds, left))
        for ref in returned:
            self._returned(owners[ref], ref)
        now = time.monotonic()
        for worker in [w for w in self.workers if any(call.until < now for call in w.calls.values())]:
            self._lost(worker, None)

    def _returned(self, worker: Worker, ref: Any) -> None:
        try:
            value = ray.get(ref)
        except RayError as error:
            if (cause := raised_by_code(error)) is not None:
                raise cause from error
            if isinstance(error, RayTaskError):  # the worker is alive: the weights to load were lost with their node
                worker.loaded[worker.calls.pop(ref).weight_set] = {}
                raise LearnersLost(f"the weights for {worker.name} are lost: {error.cause}") from error
            self._lost(worker, error)
            return
        call = worker.calls.pop(ref)
        if call.starts or call.rollout is not None:
            worker.idle_since = time.monotonic()
        if call.starts:
            worker.place, hashes = value
            self.hashes |= hashes
        elif call.rollout is not None:
            call.rollout.done[call.chunk], self.failures = value, 0

    def _lost(self, worker: Worker, error: RayError | None) -> None:
        """Requeue a lost worker's chunks, and start another worker in the background."""
        ray.kill(worker.actor)
        self.workers.remove(worker)
        what, self.failures = describe_loss(worker.name, worker.place, error), self.failures + 1
        if self.failures > self.restarts + len(self.workers):
            raise ClusterFailed(f"{what}\n{self.failures} rollout workers were lost since one of them played a chunk")
        played = [call for call in worker.calls.values() if call.rollout is not None]
        print(f"{what}\n{len(played)} chunks are played again elsewhere, and another worker starts", file=sys.stderr)
        for call in reversed(played):
            assert call.rollout is not None
            call.rollout.play_again(call.chunk, what)
        self._start_worker()
