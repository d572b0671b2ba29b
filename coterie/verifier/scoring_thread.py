"""The thread that owns a verifier's model: requests within 20 ms are scored as one batch (dynamic batching).

Each verifier has one such thread, in its server or in the process of a run, so that the model is loaded once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf, isfinite
from queue import Empty, SimpleQueue
from typing import Protocol

from coterie.types import Message

WAIT = 0.02  # seconds that the first request of a batch waits for others
MAX_BATCH = 256  # conversations in one batch, unless a single request has more

Conversations = Sequence[Sequence[Message]]


class Scorer(Protocol):
    """The interface of a verifier that the thread uses."""

    hash: str
    context: int

    def score(self, conversations: Conversations) -> list[float]:
        """The probability that the last message of each conversation is right."""


class QueueFull(Exception):
    """More conversations are waiting than the queue holds."""


@dataclass
class Request:
    """Conversations to score, and the future of their caller."""

    conversations: Conversations
    future: Future[list[float]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class ScoringThread:
    """Scores requests in the order in which they arrive, several in one batch."""

    def __init__(self, verifier: Scorer, limit: float = inf) -> None:
        """`limit`: conversations that may wait, those being scored included."""
        self.verifier, self.limit = verifier, limit
        self.waiting = self.scored = 0  # conversations
        self.batches = 0
        self.closed = False
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="verifier", daemon=True)
        self._thread.start()

    def submit(self, conversations: Conversations) -> Future[list[float]]:
        """The future scores of some conversations; raises QueueFull if there is no room for all of them."""
        request = Request(conversations)
        with self._lock:
            if self.closed:
                raise RuntimeError("the verifier is closed")
            if self.waiting + len(conversations) > self.limit:
                raise QueueFull(f"{self.waiting} conversations are waiting, and at most {self.limit:.0f} may")
            self.waiting += len(conversations)
            self._queue.put(request)
        return request.future

    def close(self) -> None:
        """Score what is waiting, then end the thread."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while batch := self._gather():
            self._score([request for request in batch if request.future.set_running_or_notify_cancel()])
            with self._lock:
                self.waiting -= sum(len(request.conversations) for request in batch)

    def _gather(self) -> list[Request]:
        """The next batch; empty when the queue is closed. WAIT counts from the arrival of the first request, so
        that one that arrived during the last batch does not wait again."""
        request = self._queue.get()
        batch: list[Request] = []
        end = request.arrived + WAIT if request else 0.0
        while request is not None:
            batch.append(request)
            if sum(len(request.conversations) for request in batch) >= MAX_BATCH:
                return batch
            try:
                request = self._queue.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                return batch
        if batch:
            self._queue.put(None)  # for the next call
        return batch

    def _score(self, batch: Sequence[Request]) -> None:
        """Score a batch. If it fails, each request is scored alone, so that only the one that is at fault fails."""
        conversations = [conversation for request in batch for conversation in request.conversations]
        try:
            scores = self._checked_scores(conversations) if conversations else []
        except Exception as error:  # raised in the caller through the future
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for request in batch:
                self._score([request])
            return
        for request in batch:
            own, scores = scores[: len(request.conversations)], scores[len(request.conversations) :]
            request.future.set_result(own)

    def _checked_scores(self, conversations: Conversations) -> list[float]:
        scores = self.verifier.score(conversations)
        if len(scores) != len(conversations) or not all(isfinite(score) for score in scores):
            raise RuntimeError(f"the verifier gave {scores} for {len(conversations)} conversations")
        self.batches += 1
        self.scored += len(conversations)
        return scores
