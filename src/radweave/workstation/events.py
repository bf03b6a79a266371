"""Server events as JSON lines on standard error, metrics, and periodic threads.

Events hold no patient data: only the fields named here are written, and none of them can hold text of a user or a file.
A study is its number, a path is the pattern of its route, an error is its type and place in the code, a client is its
address.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from radweave.workstation.database import now

FIELDS: Final = {
    "method", "route", "status", "milliseconds", "study", "studies", "error", "place", "seconds", "count", "pid",
    "client",
}  # fmt: skip
SAME_S: Final = 60.0
_lock = threading.Lock()


def log_event(event: str, **fields: str | int | float | None) -> None:
    """Write one event."""
    assert fields.keys() <= FIELDS, fields.keys() - FIELDS
    line = json.dumps({"time": now().isoformat(), "event": event, **fields})
    with _lock:
        print(line, file=sys.stderr, flush=True)


def log_failure(event: str, error: BaseException, **fields: str | int | float | None) -> None:
    """Write a failure: the type of the error and the innermost place in the package, without the message."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "radweave" in frame.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    log_event(event, error=type(error).__name__, place=place, **fields)


class JsonHandler(logging.Handler):
    """Handler that writes records of libraries as events, without their messages, which may quote a request.

    ``kind`` of a record names its error. The same event is written once a minute, with the count of records since.
    """

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._written: dict[tuple[str, str, str | None], list[float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        place = f"{record.name}:{record.lineno}"
        kind = type(error).__name__ if error else getattr(record, "kind", None)
        # Keys are places in code and error types: few.
        since = self._written.setdefault((record.levelname, place, kind), [-math.inf, 0])
        since[1] += 1
        if time.monotonic() - since[0] < SAME_S:
            return
        count = int(since[1])
        since[:] = time.monotonic(), 0
        log_event(
            f"library-{record.levelname.lower()}", place=place, error=kind, **({} if count == 1 else {"count": count})
        )


def silence_loggers(*names: str) -> None:
    """Write records of these loggers as events only, and suppress warnings and tracebacks, which may quote peers."""
    handler = JsonHandler(logging.ERROR)
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    warnings.simplefilter("ignore")
    threading.excepthook = _thread_failed


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    error = failed.exc_value
    if error is not None:
        logging.getLogger(__name__).error("a thread failed", exc_info=error)


# Metrics in the text format of Prometheus (version 0.0.4).

_PREFIX: Final = "radweave_"
BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Counters of one server. Thread-safe."""

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
        """Count a draft with its time since its batch was sent to the inference process."""
        with self._lock:
            self._drafts += 1
            self._seconds += seconds
            for bound in BUCKETS_S:
                self._buckets[bound] += seconds <= bound

    def text(self, states: Mapping[str, int], gauges: Mapping[str, int] | None = None, *, ready: bool) -> str:
        """All metrics; ``states`` are the studies per state, ``gauges`` current values."""
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


STOP_S: Final = 8.0
"""Time for which a stopping server waits for a run in progress."""


class PeriodicThread(ABC):
    """Thread that calls ``run_once`` every ``pause_s`` seconds, and at once if there is more to do.

    Errors do not end it, since a full disk or an unreachable database may recover; they are logged as event ``failed``.
    """

    def __init__(self, name: str, *, pause_s: float, failed: str) -> None:
        self._pause_s, self._failed = pause_s, failed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run_once(self) -> int:
        """Do the work once; return 0 if there is nothing more to do now."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the run in progress, or after ``STOP_S``."""
        self._stopping.set()
        if self._thread.ident:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            more = 0
            try:
                more = self.run_once()
            except Exception as error:
                log_failure(self._failed, error)
            if not more:
                self._stopping.wait(self._pause_s)
