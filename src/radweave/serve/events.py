"""The server's own words: JSON lines on standard error, without patient data.

Only the fields named here are written. None of them can hold what a user typed or a file says: a study is its number of
ours, a path is the route's pattern, an error is its type and the place in our code, a client is its address.
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
from pathlib import Path
from typing import Final

from radweave.serve.schema import now

FIELDS: Final = frozenset(
    {
        "method",
        "route",
        "status",
        "milliseconds",
        "study",
        "studies",
        "error",
        "place",
        "seconds",
        "count",
        "pid",
        "client",
    }
)
SAME_S: Final = 60.0
_lock = threading.Lock()


def say(event: str, **fields: str | int | float | None) -> None:
    """Write one line."""
    assert fields.keys() <= FIELDS, fields.keys() - FIELDS
    line = json.dumps({"time": now().isoformat(), "event": event, **fields})
    with _lock:
        print(line, file=sys.stderr, flush=True)


def say_failure(event: str, error: BaseException, **fields: str | int | float | None) -> None:
    """Write that our code failed: what kind of error, and the innermost place in the package. Not what it says."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "radweave" in frame.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    say(event, error=type(error).__name__, place=place, **fields)


class JsonHandler(logging.Handler):
    """What libraries log, as lines of the same kind: who and how bad, not what, for that may quote a request. ``kind``
    is a record's own name of its error. The same line is written once a minute, with the count of those since.
    """

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._written: dict[tuple[str, str, str | None], list[float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        place = f"{record.name}:{record.lineno}"
        kind = type(error).__name__ if error else getattr(record, "kind", None)
        # All keys are places and kinds in code, so that there are few.
        since = self._written.setdefault((record.levelname, place, kind), [-math.inf, 0])
        since[1] += 1
        if time.monotonic() - since[0] < SAME_S:
            return
        count = int(since[1])
        since[:] = time.monotonic(), 0
        say(f"library-{record.levelname.lower()}", place=place, error=kind, **({} if count == 1 else {"count": count}))


def quiet(*names: str) -> None:
    """Let these libraries write lines as above alone, and let nothing of this process quote what a peer sent.

    Python would print a warning with the value that it is about, and keep it for good; and a thread's traceback.
    """
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
