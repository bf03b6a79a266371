"""Decode a PNG or JPEG. Runs in the reading process, like every parser of foreign bytes: image codecs crash too."""

from __future__ import annotations

import io
import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from radweave.core.errors import InputError
from radweave.io import worker

# Ends of JPEG data: libjpeg only warns of data that end too early or too late, and Pillow drops the warning.
#
# A decoder without further data fills the image with grey; one that reaches the last block early leaves data over. Both
# are visible with any decoder: random bytes behind the data change the picture only if the decoder still wants data,
# and other bits at the end change nothing only if they are left over. A file is decoded twice more, or once if
# ``load_jpeg`` has seen the second. A changed bit shifts all later codes, so that blocks and data rarely end together,
# but JPEG has no checksum: damage that keeps their number leaves no trace. Markers are those of ITU-T T.81, Annex B.

BLOCK: Final = 8
TAIL_BYTES: Final = 4
TINY_BYTES: Final = 24
# Any bytes but 0xFF, which would begin a marker.
_MORE: Final = random.Random(81).randbytes(256).replace(b"\xff", b"\xfe")
_PROGRESSIVE: Final = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_END, _SCAN, _INTERVAL = 0xD9, 0xDA, 0xDD

LACKS_SCANS: Final = "the JPEG data lacks a part of its scans"
LACKS_PART: Final = "the JPEG data lacks a part between its restart markers"
ENDS_EARLY: Final = "the JPEG data ends before the image does"
LEFT_OVER: Final = "the JPEG data does not end with the image"

Decode = Callable[[bytes], worker.Array]


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame header (T.81 B.2.2); ``kind`` is its marker, which names the coding process."""

    kind: int
    precision: int
    rows: int
    columns: int


@dataclass(slots=True)
class Layout:
    """``parts``: first and last place (excluded) of each run of entropy-coded bytes, by scan.

    ``interval``: MCUs between two restart markers, 0 for none. ``sampling``: of each component, across and down.
    ``refined``: of each component's 64 coefficients, how many low bits are still missing (None: all of them).
    ``end``: the place behind the end marker, None where there is none.
    """

    frame: Frame | None = None
    parts: list[list[tuple[int, int]]] = field(default_factory=list)
    restarts_in_order: bool = True
    interval: int = 0
    sampling: dict[int, tuple[int, int]] = field(default_factory=dict)
    first_scan: bytes = b""
    refined: dict[int, list[int | None]] = field(default_factory=dict)
    end: int | None = None

    @property
    def is_progressive(self) -> bool:
        return self.frame is not None and self.frame.kind in _PROGRESSIVE

    def is_complete(self) -> bool:
        """True if a progressive image has all scans, another one each component."""
        if set(self.refined) < set(self.sampling):
            return False
        return not self.is_progressive or self.has_all_coefficients()

    def has_all_coefficients(self) -> bool:
        """True if the scans have all coefficients of their components to the last bit."""
        return all(left == 0 for bits in self.refined.values() for left in bits)

    def mcu_size(self) -> tuple[int, int]:
        """Rows and columns of the pixels of one MCU of the first scan (T.81 A.2)."""
        across = max((h for h, _ in self.sampling.values()), default=1)
        down = max((v for _, v in self.sampling.values()), default=1)
        if len(self.first_scan) == 1:
            own = self.sampling.get(self.first_scan[0], (1, 1))
            return BLOCK * down // max(1, own[1]), BLOCK * across // max(1, own[0])
        return BLOCK * down, BLOCK * across


def stream_doubts(
    data: bytes,
    pixels: worker.Array,
    decode: Decode,
    *,
    strict: bool = False,
    needs_end: bool = False,
    layout: Layout | None = None,
) -> list[str]:
    """Signs of damage in the data of a JPEG that decodes to ``pixels``, in words.

    Args:
        decode: function from JPEG data to pixels; it may raise any error for a broken file.
        strict: ``decode`` raises where libjpeg warns before the last block; then only the last end is tested.
        needs_end: the image is known to use its data to the end (``load_jpeg``), except for 8 bytes.
        layout: layout of ``data`` if known.
    """
    layout = layout or layout_of(data)
    if strict:
        layout.parts, layout.interval = [parts[-1:] for parts in layout.parts], 0
    doubts = []
    if not layout.is_complete():
        doubts.append(LACKS_SCANS)
    used = _by_part(np.zeros(pixels.shape[:2], dtype=bool), layout)
    # Runs of so few bytes may say nothing: blocks that are all like the one before them.
    tiny = np.array([end - start < TINY_BYTES for start, end in layout.parts[0]] if layout.parts else [False])
    if not layout.restarts_in_order or len(used) != len(tiny):
        doubts.append(LACKS_PART)
        return doubts
    if _changes(_with_more(data, layout), pixels, decode).any():
        doubts.append(ENDS_EARLY)
        return doubts
    if needs_end:
        return doubts
    used |= tiny
    for other in _other_ends(data, layout):
        used |= _by_part(_changes(other, pixels, decode), layout)
        if used.all():
            break
    else:
        doubts.append(LEFT_OVER)
    return doubts


def _changes(data: bytes, pixels: worker.Array, decode: Decode) -> NDArray[np.bool_]:
    """Mask (rows, columns) of the pixels that differ in the changed file; all if it cannot be decoded."""
    try:
        changed = decode(data) != pixels
    except Exception:  # a changed file can fail in any way
        changed = np.ones(pixels.shape, dtype=bool)
    return np.asarray(changed.any(axis=2) if changed.ndim == 3 else changed)


def _by_part(changed: NDArray[np.bool_], layout: Layout) -> NDArray[np.bool_]:
    """True for each run between two restart markers of the first scan with a changed pixel."""
    if not layout.interval:
        return np.array([changed.any()])
    high, wide = layout.mcu_size()
    rows, columns = -(-changed.shape[0] // high), -(-changed.shape[1] // wide)
    padded = np.zeros((rows * high, columns * wide), dtype=bool)
    padded[: changed.shape[0], : changed.shape[1]] = changed
    mcus = padded.reshape(rows, high, columns, wide).any(axis=(1, 3)).reshape(-1)
    runs: NDArray[np.bool_] = np.logical_or.reduceat(mcus, np.arange(0, len(mcus), layout.interval))
    return runs


def _with_more(data: bytes, layout: Layout) -> bytes:
    pieces, done = [], 0
    for _, end in (part for parts in layout.parts for part in parts):
        pieces += [data[done:end], _MORE]
        done = end
    return b"".join([*pieces, data[done:]])


def _other_ends(data: bytes, layout: Layout) -> Iterator[bytes]:
    """With other bytes, or none, at the end of each run of the first scan, which holds the mean of each block.

    One of them shows if the bytes are used: a change may hide in rounding, or where the image is black already.
    """
    for end_of in _ENDS:
        pieces, done = [], 0
        for start, end in layout.parts[0] if layout.parts else []:
            cut = max(start, end - TAIL_BYTES)
            pieces += [data[done:cut], end_of(data[cut:end])]
            done = end
        yield b"".join([*pieces, data[done:]])


_ENDS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    lambda tail: b"",
    lambda tail: bytes(byte ^ 0xFF if byte else 0xFE for byte in tail),
    lambda tail: _MORE[: 4 * len(tail)],
)


def layout_of(data: bytes) -> Layout:
    """Walk over the markers; a header that ends nowhere ends the walk."""
    layout, position = Layout(), 2
    marks = np.flatnonzero(np.frombuffer(data, np.uint8)[:-1] == 0xFF)
    codes = np.frombuffer(data, np.uint8)[marks + 1]
    # 0 stands for a data byte of 0xFF; 0xFF is a fill byte before a marker.
    marks, codes = marks[(codes != 0) & (codes != 0xFF)], codes[(codes != 0) & (codes != 0xFF)]
    while position + 2 <= len(data):
        if data[position] != 0xFF:
            break
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker == _END:
            layout.end = position + 2
            break
        body = data[position + 4 : position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")]
        position += 4 + len(body)
        if marker in _FRAMES and len(body) >= 6:
            rows, columns = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
            layout.frame = Frame(marker, body[0], rows, columns)
            parts = zip(body[6::3], body[7::3], strict=False)
            layout.sampling = {name: (factors >> 4, factors & 15) for name, factors in parts}
        if marker == _INTERVAL:
            layout.interval = int.from_bytes(body[:2], "big")
        if marker == _SCAN:
            _note_scan(layout, body)
            position = _note_parts(layout, position, marks, codes, len(data))
    return layout


def _note_parts(layout: Layout, start: int, marks: worker.Array, codes: worker.Array, size: int) -> int:
    """Add the runs of entropy-coded bytes from ``start`` on; give the place of the marker that ends the scan."""
    parts, expected = [], 0
    for index in range(int(np.searchsorted(marks, start)), len(marks)):
        place, code = int(marks[index]), int(codes[index])
        parts.append((start, place))
        if not 0xD0 <= code <= 0xD7:
            layout.parts.append(parts)
            return place
        layout.restarts_in_order &= code == 0xD0 + expected
        expected, start = (expected + 1) % 8, place + 2
    layout.parts.append(parts)
    return size


def _note_scan(layout: Layout, body: bytes) -> None:
    """Record the coefficients of a scan by component and their lowest bit (T.81 B.2.3, G.1.1.1)."""
    if not body or len(body) < 4 + 2 * body[0]:
        return
    layout.first_scan = layout.first_scan or body[1 : 1 + 2 * body[0] : 2]
    first, last, low = body[1 + 2 * body[0]], body[2 + 2 * body[0]], body[3 + 2 * body[0]] & 15
    for component in body[1 : 1 + 2 * body[0] : 2]:
        bits = layout.refined.setdefault(component, [None] * 64)
        bits[first : last + 1] = [low] * len(bits[first : last + 1])


# Decoding with the last byte withheld. A decoder that has all but the last byte and cannot finish the last row uses the
# data to their end. This test is free, while decoding with other bytes at the end costs a second pass. Decoders read up
# to 8 bytes ahead, so that 4 to 8 left-over bytes need the second pass; chance leaves so few in small files, damage to
# large files leaves more. Small files and those that do not come row by row (several scans, restart markers) are
# decoded again.

LARGE_BYTES: Final = 1 << 18
HELD_BACK: Final = 1
_SEQUENTIAL: Final = frozenset({0xC0, 0xC1})
_MARKED: Final = 24
_MODES: Final = ("L", "RGB")


def load_jpeg(image: ImageFile.ImageFile, layout: Layout) -> bool:
    """Decode an opened image; True if it is known to use its data to the end."""
    if not _comes_by_rows(image, layout):
        image.load()
        return False
    marks = _mark_last_row(image)
    checks: list[bool] = []
    image.load_read = _holding_back(  # type: ignore[attr-defined]
        image,
        layout.parts[0][0][1] - HELD_BACK,
        lambda: checks.append(all(image.im.getpixel(position) == value for position, value in marks.items())),
    )
    image.load()
    return checks == [True]


def _comes_by_rows(image: ImageFile.ImageFile, layout: Layout) -> bool:
    return (
        image.mode in _MODES
        and layout.frame is not None
        and layout.frame.kind in _SEQUENTIAL
        and [len(parts) for parts in layout.parts] == [1]
        and layout.parts[0][0][1] >= LARGE_BYTES
    )


def _holding_back(image: ImageFile.ImageFile, stop: int, check: Callable[[], None]) -> Callable[[int], bytes]:
    """A read function that stops at ``stop``, calls ``check`` at the next read, and then gives the rest."""
    position = 0

    def read(count: int) -> bytes:
        nonlocal position
        assert image.fp is not None
        if position == stop:
            check()
        part = image.fp.read(min(count, stop - position) if position < stop else count)
        position += len(part)
        return part

    return read


def _mark_last_row(image: ImageFile.ImageFile) -> dict[tuple[int, int], Any]:
    """Write improbable values into the last row; return them by position."""
    image.load_prepare()
    draw, (width, height) = random.Random(81), image.size
    for position in ((x, height - 1) for x in range(min(width, _MARKED))):
        image.im.putpixel(position, tuple(draw.randbytes(3)) if image.mode == "RGB" else draw.randrange(256))
    return {(x, height - 1): image.im.getpixel((x, height - 1)) for x in range(min(width, _MARKED))}


# Checksums of PNG chunks (ISO/IEC 15948, 5.3 and 5.5), of which Pillow ignores those of the pixels.

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


EXIF_ORIENTATION = 0x0112
_BLOCK_BYTES = 16 << 20
"""Pillow hands pixels over in blocks and joins them: in one block a copy of a full picture takes half the time."""
_PADDING = b"\0\r\n "
RASTER_MODES = ("1", "L", "LA", "I;16", "I;16B", "I", "P", "PA", "RGB", "RGBA")


def parse_raster(request: dict[str, Any]) -> worker.Message:
    """Stored values of the file ``path``: (height, width), or (height, width, channels) with a colour palette applied.

    The size is checked in the header, before a pixel is decoded. The checksums of a PNG are compared; where the data of
    a JPEG does not end with its image, ``doubts`` says so, unless the request says that it is not wanted.

    Raises:
        InputError: if the image is larger than ``max_side_px`` or ``max_pixels``, cut, damaged or of an unknown kind.
    """
    max_side, max_pixels = int(request["max_side_px"]), int(request["max_pixels"])
    path = Path(request["path"])
    Image.MAX_IMAGE_PIXELS = max_pixels
    ImageFile.MAXBLOCK = _BLOCK_BYTES
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            width, height = image.size
            if max(width, height) > max_side or width * height > max_pixels or min(width, height) < 1:
                raise InputError(
                    "the image is too large",
                    got=f"{width} x {height} pixels",
                    expected=f"at most {max_side} a side and {max_pixels >> 20} million in all",
                )
            count = int(getattr(image, "n_frames", 1))
            if count > 1:
                raise InputError("the file holds several images", got=count, expected="one")
            mode, kind = image.mode, str(image.format)
            if mode not in RASTER_MODES:
                raise InputError("the colour mode cannot be used", got=mode, expected="grey or RGB")
            odd, decoded = _load(image, path, doubts=bool(request.get("doubts", True)))
            orientation = int(image.getexif().get(EXIF_ORIENTATION, 1))
            # A copy of a whole picture takes a third of the time of decoding it.
            pixels = decoded if mode == "L" else stored_values(image)
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError("the image is too large", expected=f"at most {max_pixels >> 20} million pixels") from None
    except UnidentifiedImageError:
        raise InputError("not a PNG or JPEG image, or its header is damaged") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        cut = "truncated" in str(error)
        raise InputError("truncated: the image data ends too early" if cut else "the image data is damaged") from None
    header = {"format": kind.lower(), "mode": mode, "bits": 16 if pixels.dtype.itemsize > 1 else 8}
    return {**header, "orientation": orientation, "doubts": odd}, {"pixels": pixels}


def _load(image: ImageFile.ImageFile, path: Path, *, doubts: bool) -> tuple[list[str], worker.Array]:
    """Doubts and pixels. A PNG with wrong checksums is refused, a damaged JPEG has doubts, on request."""
    if image.format == "PNG":
        image.load()
        data = path.read_bytes()
        return _behind(data, check_chunks(data)), np.asarray(image)
    if not doubts:
        image.load()
        return [], np.asarray(image)
    data = path.read_bytes()
    layout = layout_of(data)
    needs_end = load_jpeg(image, layout)
    decoded = np.asarray(image)
    signs = stream_doubts(data, decoded, _decode_jpeg, needs_end=needs_end, layout=layout)
    return signs + _behind(data, layout.end), decoded


def _behind(data: bytes, end: int | None) -> list[str]:
    """A doubt if more than padding follows the image: a second file, or displaced parts of the first."""
    rest = 0 if end is None else len(data[end:].strip(_PADDING))
    return [f"{rest} bytes lie behind the end of the image"] if rest else []


def _decode_jpeg(data: bytes) -> worker.Array:
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return np.asarray(image)


def stored_values(image: Image.Image) -> worker.Array:
    """The stored values of an image of one of ``RASTER_MODES``: uint8 or uint16, palettes applied."""
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
    if image.mode == "1":
        image = image.convert("L")
    pixels = np.asarray(image)
    return pixels.astype(np.uint16 if pixels.dtype.itemsize > 1 else np.uint8, copy=False)
