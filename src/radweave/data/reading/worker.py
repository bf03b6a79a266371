"""The reading process: parses untrusted files on behalf of ``radweave.data.reading.sandbox``.

    python -P -m radweave.data.reading.worker MODULE ADDRESS_SPACE_BYTES

MODULE holds ``TASKS``, a mapping from a name to a function ``(request) -> (header, arrays)``. One request at a time
comes in on standard input and one answer goes out on standard output, both as ``radweave.data.reading.wire`` messages.

The process can do little harm: its memory is limited, it may not write a file, what libraries print goes nowhere
(their warnings quote patients' values), and a task that outlives its time is ended by the kernel even inside C code.
What a library says of a file never leaves the process either: only the kind of its exception does.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from radweave.base.errors import InputError
from radweave.base.heap import keep_freed_pages
from radweave.data.reading import wire

Task = Callable[[dict[str, Any]], wire.Message]

GRACE_S = 2
KEPT_BYTES = 64 << 20
"""Freed memory that stays with the process: a full picture and its file."""


def main() -> None:
    """Serve until standard input ends."""
    replies = os.dup(1)
    requests = os.dup(0)
    _silence()
    _limit(address_space_bytes=int(sys.argv[2]))
    keep_freed_pages(KEPT_BYTES)
    tasks: Mapping[str, Task] = importlib.import_module(sys.argv[1]).TASKS
    _send(replies, {"ready": True}, {})
    while True:
        try:
            request, _ = wire.decode(lambda buffer: _fill(requests, buffer), max_array_bytes=0)
        except (EOFError, wire.WireError):
            return
        signal.alarm(int(request["timeout_s"]) + GRACE_S)
        header, arrays = _answer(tasks, request)
        try:
            _send(replies, header, arrays)
        except (wire.WireError, TypeError, ValueError):  # raised before the first byte goes out
            _send(replies, {"refused": "holds values that cannot be sent"}, {})
        signal.alarm(0)


def _answer(tasks: Mapping[str, Task], request: dict[str, Any]) -> wire.Message:
    try:
        header, arrays = tasks[request["task"]](request)
    except InputError as error:
        got, expected = (None if value is None else str(value) for value in (error.got, error.expected))
        return {"refused": error.reason, "field": error.field, "got": got, "expected": expected}, {}
    except MemoryError:
        return {"refused": "needs more memory than the reader may use"}, {}
    except BaseException as error:  # whatever a parser raises on a hostile file, PanicException included
        return {"refused": f"damaged or not what it seems: the parser failed with {type(error).__name__}"}, {}
    return {"result": header}, arrays


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def _limit(*, address_space_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system: the time limit and the separate process remain
        return
    for kind, limit in (
        (resource.RLIMIT_AS, address_space_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # a lower hard limit is set already, or the system has none
            resource.setrlimit(kind, (limit, limit))


def _fill(descriptor: int, buffer: memoryview) -> None:
    while len(buffer):
        count = os.readv(descriptor, [buffer])
        if not count:
            raise EOFError
        buffer = buffer[count:]


def _send(descriptor: int, header: Mapping[str, Any], arrays: wire.Arrays) -> None:
    for chunk in wire.encode(header, arrays):
        rest = memoryview(chunk)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]


if __name__ == "__main__":
    main()
