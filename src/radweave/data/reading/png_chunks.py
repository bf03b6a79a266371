"""Compare the checksum of each chunk of a PNG (ISO/IEC 15948, 5.3 and 5.5): Pillow leaves those of the pixels out.

Runs in the reading process.
"""

from __future__ import annotations

import zlib
from typing import Final

from radweave.base.errors import InputError

SIGNATURE_BYTES: Final = 8


def check_chunks(data: bytes) -> int:
    """Walk over the chunks up to IEND; the place behind it, where the image ends.

    Raises:
        InputError: if one is cut or its checksum differs, or IEND is missing.
    """
    view, position = memoryview(data), SIGNATURE_BYTES
    while position + 12 <= len(view):
        end = position + 8 + int.from_bytes(view[position : position + 4], "big")
        if end + 4 > len(view):
            break
        if zlib.crc32(view[position + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise InputError("the image data is damaged: a checksum of the PNG differs")
        if bytes(view[position + 4 : position + 8]) == b"IEND":
            return end + 4
        position = end + 4
    raise InputError("truncated: the PNG has no end")
