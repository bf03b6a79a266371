"""Messages between the tool and its reading process: a JSON header and named arrays as raw bytes, never a pickle.

    b"RWV1" | uint32 length of the header | header (JSON) | bytes of the arrays, in the header's order

The header's ``arrays`` maps a name to its type and shape. The receiver checks both against a cap before it allocates.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
