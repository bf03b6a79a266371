"""Decode a PNG or JPEG. Runs in the reading process, like every parser of foreign bytes: image codecs crash too."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from radweave.base.errors import InputError
from radweave.data.reading import jpeg_ends, wire
from radweave.data.reading.jpeg_feed import load_jpeg
from radweave.data.reading.png_chunks import check_chunks

EXIF_ORIENTATION = 0x0112
_BLOCK_BYTES = 16 << 20
"""Pillow hands pixels over in blocks and joins them: in one block a copy of a full picture takes half the time."""
_PADDING = b"\0\r\n "
RASTER_MODES = ("1", "L", "LA", "I;16", "I;16B", "I", "P", "PA", "RGB", "RGBA")


def parse_raster(request: dict[str, Any]) -> wire.Message:
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


def _load(image: ImageFile.ImageFile, path: Path, *, doubts: bool) -> tuple[list[str], wire.Array]:
    """Doubts and pixels. A PNG that its checksums tell to be damaged is refused, a JPEG is doubted, if anyone asks."""
    if image.format == "PNG":
        image.load()
        data = path.read_bytes()
        return _behind(data, check_chunks(data)), np.asarray(image)
    if not doubts:
        image.load()
        return [], np.asarray(image)
    data = path.read_bytes()
    layout = jpeg_ends.layout_of(data)
    needs_end = load_jpeg(image, layout)
    decoded = np.asarray(image)
    found = jpeg_ends.doubts(data, decoded, _decode_jpeg, needs_end=needs_end, layout=layout)
    return found + _behind(data, layout.end), decoded


def _behind(data: bytes, end: int | None) -> list[str]:
    """A doubt where more than padding lies behind the image: a second file, or parts of the first that were moved."""
    rest = 0 if end is None else len(data[end:].strip(_PADDING))
    return [f"{rest} bytes lie behind the end of the image"] if rest else []


def _decode_jpeg(data: bytes) -> wire.Array:
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return np.asarray(image)


def stored_values(image: Image.Image) -> wire.Array:
    """The stored values of an image of one of ``RASTER_MODES``: uint8 or uint16, palettes applied."""
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
    if image.mode == "1":
        image = image.convert("L")
    pixels = np.asarray(image)
    return pixels.astype(np.uint16 if pixels.dtype.itemsize > 1 else np.uint8, copy=False)
