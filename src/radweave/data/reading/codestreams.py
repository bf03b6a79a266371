"""Structural signs of damage in a compressed frame that its decoder passes over in silence.

Runs in the reading process. Nothing here is proof that a frame is whole: a changed literal byte leaves no trace.
"""

from __future__ import annotations

import struct
from typing import Final

JPEG_2000: Final = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
RLE: Final = "1.2.840.10008.1.2.5"


def doubts(frame: bytes, syntax: str | None, *, rows: int, columns: int, more: bool = False) -> list[str]:
    """What is odd about a compressed frame, in words; with ``more``, bytes behind its image are not."""
    # No two bytes of packets are above FF8F (ISO/IEC 15444-1 B.10.1), so that they hold no marker.
    ends = b"\xff\xd9" in frame[frame.rfind(b"\xff\x93") :] if more else frame.rstrip(b"\0").endswith(b"\xff\xd9")
    if syntax in JPEG_2000 and not ends:
        return ["the JPEG 2000 data has no end marker"]
    if syntax == RLE and not rle_is_regular(frame, rows=rows, columns=columns, more=more):
        return ["the RLE runs do not end where the image rows do"]
    return []


def rle_is_regular(frame: bytes, *, rows: int, columns: int, more: bool = False) -> bool:
    """True if each segment decodes to rows x columns bytes and no run crosses the end of a row (PS3.5 G.3.1).

    With ``more``, bytes may lie behind a segment.

    A changed run length shifts all runs after it, so that they miss the ends of their rows.
    """
    if len(frame) < 64:
        return False
    count, *offsets = struct.unpack("<16I", frame[:64])
    if not 1 <= count <= 15:
        return False
    ends = [*offsets[1:count], len(frame)]
    return all(
        _segment_is_regular(frame[start:end], rows, columns, more)
        for start, end in zip(offsets[:count], ends, strict=True)
    )


def _segment_is_regular(segment: bytes, rows: int, columns: int, more: bool) -> bool:
    position, done, total, last = 0, 0, rows * columns, len(segment)
    left = columns
    while done < total:
        if position >= last:
            return False
        code = segment[position]
        if code < 128:
            length, position = code + 1, position + code + 2
        elif code > 128:
            length, position = 257 - code, position + 2
        else:
            position += 1
            continue
        done += length
        left -= length
        if left == 0:
            left = columns
        elif left < 0:
            return False
    return position <= last and (more or last - position <= 1)
