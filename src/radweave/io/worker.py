"""The reading process: parses untrusted files on behalf of ``radweave.io.sandbox``.

    python -P -m radweave.io.worker MODULE ADDRESS_SPACE_BYTES

MODULE holds ``TASKS``, a mapping from a name to a function ``(request) -> (header, arrays)``. One request at a time
comes in on standard input and one answer goes out on standard output, both as ``radweave.io.worker`` messages.

The process can do little harm: its memory is limited, it may not write a file, what libraries print goes nowhere
(their warnings quote patients' values), and a task that outlives its time is ended by the kernel even inside C code.
What a library says of a file never leaves the process either: only the kind of its exception does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.core.devices import keep_freed_pages
from radweave.core.errors import InputError

# Messages between the tool and its reading process: a JSON header and named arrays as raw bytes, never a pickle.
#
# b"RWV1" | uint32 length of the header | header (JSON) | bytes of the arrays, in the header's order
#
# The header's ``arrays`` maps a name to its type and shape. The receiver checks both against a cap before it allocates.


Array = NDArray[Any]
Arrays = dict[str, Array]
Message = tuple[dict[str, Any], Arrays]

MAGIC = b"RWV1"
PREFIX = struct.Struct("<4sI")
MAX_HEADER_BYTES = 8 << 20
ARRAY_TYPES = frozenset({"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<f8"})


class WireError(ValueError):
    """The other side sent something that is no message."""


def encode(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[bytes | memoryview]:
    """Chunks to write, in order. Arrays are sent little-endian, in C order."""
    chunks: list[bytes | memoryview] = []
    described = {}
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if plain.dtype.str not in ARRAY_TYPES:
            raise WireError(f"array '{name}' of type {plain.dtype} cannot be sent")
        described[name] = [plain.dtype.str, list(plain.shape)]
        if plain.size:
            chunks.append(plain.reshape(-1).view(np.uint8).data)
    text = json.dumps({**header, "arrays": described}).encode()
    return [PREFIX.pack(MAGIC, len(text)) + text, *chunks]


def decode(fill: Callable[[memoryview], None], *, max_array_bytes: int) -> Message:
    """Read one message; ``fill`` fills a buffer or raises.

    Raises:
        WireError: for a wrong magic, a header or an array above its cap, or a type that is not in the list.
    """
    prefix = bytearray(PREFIX.size)
    fill(memoryview(prefix))
    magic, length = PREFIX.unpack(prefix)
    if magic != MAGIC or length > MAX_HEADER_BYTES:
        raise WireError("not a message")
    text = bytearray(length)
    fill(memoryview(text))
    try:
        header = json.loads(bytes(text))
        described = header.pop("arrays")
        shapes = {str(name): (str(kind), [int(n) for n in shape]) for name, (kind, shape) in described.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"header does not parse: {type(error).__name__}") from None
    total = 0
    for kind, shape in shapes.values():
        if kind not in ARRAY_TYPES or any(n < 0 for n in shape):
            raise WireError("array of an unknown type or shape")
        total += math.prod(shape) * np.dtype(kind).itemsize
    if total > max_array_bytes:
        raise WireError("arrays above the cap")
    arrays: Arrays = {}
    for name, (kind, shape) in shapes.items():
        array = np.empty(shape, dtype=kind)
        if array.size:
            fill(array.reshape(-1).view(np.uint8).data)
        arrays[name] = array
    return header, arrays


Task = Callable[[dict[str, Any]], Message]

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
            request, _ = decode(lambda buffer: _fill(requests, buffer), max_array_bytes=0)
        except (EOFError, WireError):
            return
        signal.alarm(int(request["timeout_s"]) + GRACE_S)
        header, arrays = _answer(tasks, request)
        try:
            _send(replies, header, arrays)
        except (WireError, TypeError, ValueError):  # raised before the first byte goes out
            _send(replies, {"refused": "holds values that cannot be sent"}, {})
        signal.alarm(0)


def _answer(tasks: Mapping[str, Task], request: dict[str, Any]) -> Message:
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


def _send(descriptor: int, header: Mapping[str, Any], arrays: Arrays) -> None:
    for chunk in encode(header, arrays):
        rest = memoryview(chunk)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]


if __name__ == "__main__":
    main()
