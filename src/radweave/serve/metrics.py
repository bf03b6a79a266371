"""Figures for Prometheus, in its text format (version 0.0.4)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final

_PREFIX: Final = "radweave_"
BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Counters of one server; safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._counts: Counter[str] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._drafts = 0

    def request(self, method: str, route: str, status: int) -> None:
        with self._lock:
            self._requests[method, route, status] += 1

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by

    def drafted(self, seconds: float) -> None:
        """A draft that took so long, from when its batch went to the inference process."""
        with self._lock:
            self._drafts += 1
            self._seconds += seconds
            for bound in BUCKETS_S:
                self._buckets[bound] += seconds <= bound

    def text(self, states: Mapping[str, int], gauges: Mapping[str, int] | None = None, *, ready: bool) -> str:
        """All figures; ``states`` are the studies of each state, ``gauges`` figures that are read now."""
        with self._lock:
            requests, counts = dict(self._requests), dict(self._counts)
            buckets, drafts, seconds = dict(self._buckets), self._drafts, self._seconds
        lines = [f"# TYPE {_PREFIX}ready gauge", f"{_PREFIX}ready {int(ready)}", f"# TYPE {_PREFIX}studies gauge"]
        lines += [f'{_PREFIX}studies{{state="{state}"}} {number}' for state, number in states.items()]
        for name, number in (gauges or {}).items():
            lines += [f"# TYPE {_PREFIX}{name} gauge", f"{_PREFIX}{name} {number}"]
        lines.append(f"# TYPE {_PREFIX}requests_total counter")
        for (method, route, status), number in sorted(requests.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            lines.append(f"{_PREFIX}requests_total{{{labels}}} {number}")
        for name in sorted(
            {"worker_starts", "worker_deaths", "dropped_drafts", "connections_cut", "logins_refused", *counts}
        ):
            lines += [f"# TYPE {_PREFIX}{name}_total counter", f"{_PREFIX}{name}_total {counts.get(name, 0)}"]
        lines.append(f"# TYPE {_PREFIX}draft_seconds histogram")
        lines += [f'{_PREFIX}draft_seconds_bucket{{le="{bound}"}} {buckets.get(bound, 0)}' for bound in BUCKETS_S]
        lines += [
            f'{_PREFIX}draft_seconds_bucket{{le="+Inf"}} {drafts}',
            f"{_PREFIX}draft_seconds_sum {seconds}",
            f"{_PREFIX}draft_seconds_count {drafts}",
        ]
        return "\n".join(lines) + "\n"
