"""A server's metrics in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 100.0)  # seconds
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RequestMetrics:
    """Counts requests by path and status, and how long those that succeeded took. Only the event loop writes to it."""

    def __init__(self, prefix: str, timed: Iterable[str]) -> None:
        """`timed`: the paths whose time is measured; fast ones, such as `/health`, would distort the histogram."""
        self.prefix, self.timed = prefix, frozenset(timed)
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds = [0] * (len(BUCKETS) + 1)  # by bucket; the last one is above all
        self.total_seconds = 0.0

    def add(self, path: str, status: int, seconds: float) -> None:
        self.requests[path, status] += 1
        if status == 200 and path in self.timed:
            self.seconds[bisect_left(BUCKETS, seconds)] += 1
            self.total_seconds += seconds

    def text(self, own: Iterable[str] = ()) -> str:
        """All metrics, one per line; `own`: lines of `metric`, which only this server has."""
        return "".join(f"{line}\n" for line in (*self._lines(), *own))

    def metric(self, name: str, kind: str, about: str, values: float | Mapping[str, float]) -> Iterator[str]:
        """The lines of one metric: a number, or numbers by labels such as `role="solver"`."""
        yield f"# HELP {self.prefix}_{name} {about}"
        yield f"# TYPE {self.prefix}_{name} {kind}"
        for labels, value in values.items() if isinstance(values, Mapping) else [("", values)]:
            yield f"{self.prefix}_{name}{f'{{{labels}}}' if labels else ''} {value}"

    def _lines(self) -> Iterator[str]:
        requests = {f'path="{path}",status="{status}"': n for (path, status), n in sorted(self.requests.items())}
        yield from self.metric("requests_total", "counter", "Requests by path and status.", requests)
        yield from self.metric("seconds", "histogram", "Time until a request that succeeded began to reply.", {})
        below = 0
        for bucket, count in zip((*map(str, BUCKETS), "+Inf"), self.seconds, strict=True):
            below += count
            yield f'{self.prefix}_seconds_bucket{{le="{bucket}"}} {below}'
        yield f"{self.prefix}_seconds_sum {self.total_seconds:.6f}"
        yield f"{self.prefix}_seconds_count {below}"


def label(name: str, value: str) -> str:
    """`name="value"`, with the escapes of the text format."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'
