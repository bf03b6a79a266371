"""Decode a JPEG with its last byte held back for a moment, to see whether the image needs the end of its data.

A decoder that is given all but the last byte and cannot finish the last row uses the data to its end. That costs
nothing, where decoding the file anew with other bytes at its end costs as much as decoding it. A decoder reads up to 8
bytes ahead of what it uses, so that 4 to 8 bytes left over are seen by decoding anew only. Such few are left by chance
alone, and damage to a large file leaves more: small ones are decoded anew, as are those that do not come row by row
(several scans, restart markers).

Runs in the reading process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from PIL.ImageFile import ImageFile

from radweave.data.reading.jpeg_ends import Layout

LARGE_BYTES: Final = 1 << 18
HELD_BACK: Final = 1
_SEQUENTIAL: Final = frozenset({0xC0, 0xC1})
_MARKED: Final = 24
_MODES: Final = ("L", "RGB")


def load_jpeg(image: ImageFile, layout: Layout) -> bool:
    """Decode an image that was opened; whether it was seen that it uses its data to the end."""
    if not _comes_by_rows(image, layout):
        image.load()
        return False
    marks = _mark_last_row(image)
    seen: list[bool] = []
    image.load_read = _holding_back(  # type: ignore[attr-defined]
        image, layout.parts[0][0][1] - HELD_BACK, lambda: seen.append(_is_as_marked(image, marks))
    )
    image.load()
    return seen == [True]


def _comes_by_rows(image: ImageFile, layout: Layout) -> bool:
    return (
        image.mode in _MODES
        and layout.frame is not None
        and layout.frame.kind in _SEQUENTIAL
        and [len(parts) for parts in layout.parts] == [1]
        and layout.parts[0][0][1] >= LARGE_BYTES
    )


def _holding_back(image: ImageFile, stop: int, look: Callable[[], None]) -> Callable[[int], bytes]:
    """Give the decoder the file up to ``stop``; look when it asks for more, then give it the rest."""
    given = 0

    def read(count: int) -> bytes:
        nonlocal given
        assert image.fp is not None
        if given == stop:
            look()
        part = image.fp.read(min(count, stop - given) if given < stop else count)
        given += len(part)
        return part

    return read


def _mark_last_row(image: ImageFile) -> dict[tuple[int, int], Any]:
    """Write values into the last row that no decoder would by chance; what was written, by place."""
    image.load_prepare()
    draw, (width, height) = random.Random(81), image.size
    for place in ((x, height - 1) for x in range(min(width, _MARKED))):
        image.im.putpixel(place, tuple(draw.randbytes(3)) if image.mode == "RGB" else draw.randrange(256))
    return {(x, height - 1): image.im.getpixel((x, height - 1)) for x in range(min(width, _MARKED))}


def _is_as_marked(image: ImageFile, marks: dict[tuple[int, int], Any]) -> bool:
    """Whether the last row is not decoded yet."""
    return all(image.im.getpixel(place) == value for place, value in marks.items())
