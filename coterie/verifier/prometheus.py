"""The server's metrics in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from coterie.verifier.scoring_thread import ScoringThread

PREFIX = "coterie_verifier"
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RequestMetrics:
    """Counts requests by path and status, and how long the scored ones took. Only the event loop writes to it."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds = [0] * (len(BUCKETS) + 1)  # by bucket; the last one is above all
        self.total_seconds = 0.0

    def add(self, path: str, status: int, seconds: float) -> None:
        self.requests[path, status] += 1
        if status == 200:
            self.seconds[bisect_left(BUCKETS, seconds)] += 1
            self.total_seconds += seconds

    def text(self, thread: ScoringThread) -> str:
        """All metrics, one per line."""
        return "".join(f"{line}\n" for line in self._lines(thread))

    def _lines(self, thread: ScoringThread) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests by path and status.")
        for (path, status), count in sorted(self.requests.items()):
            yield f'{PREFIX}_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _single("batches_total", "counter", "Batches that the model scored.", thread.batches)
        yield from _single("conversations_total", "counter", "Conversations that the model scored.", thread.scored)
        yield from _single("waiting", "gauge", "Conversations in the queue or being scored.", thread.waiting)
        yield from _head("info", "gauge", "The model's hash.")
        yield f'{PREFIX}_info{{hash="{thread.verifier.hash}"}} 1'
        yield from _head("seconds", "histogram", "Time to answer a request that was scored.")
        below = 0
        for bucket, count in zip((*map(str, BUCKETS), "+Inf"), self.seconds, strict=True):
            below += count
            yield f'{PREFIX}_seconds_bucket{{le="{bucket}"}} {below}'
        yield f"{PREFIX}_seconds_sum {self.total_seconds:.6f}"
        yield f"{PREFIX}_seconds_count {below}"


def _single(name: str, kind: str, about: str, value: int) -> Iterator[str]:
    yield from _head(name, kind, about)
    yield f"{PREFIX}_{name} {value}"


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}_{name} {about}"
    yield f"# TYPE {PREFIX}_{name} {kind}"
