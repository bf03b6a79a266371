"""Compressed voxels to plain bytes, read to the end so that the checksum behind them is compared. Reading process only.

A library that stops at the last voxel never sees that checksum, and a changed bit becomes a changed picture.
"""

from __future__ import annotations

import bz2
import zlib
from typing import Any, Final

from radweave.base.errors import InputError

# Bytes behind the voxels that are read over to reach the checksum: a writer's padding. More is made to fill memory.
MAX_PADDING_BYTES: Final = 1 << 20
_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32
MORE: Final = "holds more data than its header declares voxels"


def inflate_exactly(data: bytes, need: int) -> bytes:
    """``need`` bytes out of a zlib stream or a gzip file, of one member or several.

    Raises:
        InputError: if they are cut, damaged, or more.
    """
    parts: list[bytes] = []
    left = need
    while True:
        inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
        try:
            part = inflater.decompress(data, left + 1)
        except zlib.error:
            raise InputError("the compressed data is damaged") from None
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise InputError(MORE)
        if not inflater.eof:
            raise InputError("truncated: the compressed data ends too early")
        data = inflater.unused_data
        if not data.startswith(b"\x1f\x8b"):
            break
    return _whole(parts, left)


def bunzip_exactly(data: bytes, need: int) -> bytes:
    """As ``inflate_exactly``, out of bzip2 data."""
    inflater = bz2.BZ2Decompressor()
    try:
        plain = inflater.decompress(data, need + 1)
        while not inflater.eof and not inflater.needs_input and len(plain) <= need:
            plain += inflater.decompress(b"", need + 1 - len(plain))
    except (OSError, ValueError):
        raise InputError("the compressed data is damaged") from None
    if len(plain) > need:
        raise InputError(MORE)
    if not inflater.eof:
        raise InputError("truncated: the compressed data ends too early")
    return _whole([plain], need - len(plain))


def _whole(parts: list[bytes], left: int) -> bytes:
    if left > 0:
        raise InputError("truncated: fewer voxels than the header declares")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_to_end(stream: Any) -> int:
    """Read what is left of an opened gzip file, so that its checksum and length are compared; give the bytes read.

    Raises:
        InputError: if more than ``MAX_PADDING_BYTES`` come.
        EOFError, OSError, zlib.error: as the stream does, if it is cut or damaged.
    """
    rest = 0
    while chunk := stream.read(1 << 16):
        rest += len(chunk)
        if rest > MAX_PADDING_BYTES:
            raise InputError(MORE)
    return rest
