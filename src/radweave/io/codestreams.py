"""Signs of damage in compressed frames that decoders ignore, and the decoder of grey JPEG frames.

Runs in the reading process. Frames without such signs may still be damaged: a changed literal byte leaves no trace.
"""

from __future__ import annotations

import io
import struct
from functools import partial
from typing import Final

import gdcm
import numpy as np
from PIL import Image

from radweave.core.errors import InputError
from radweave.io import raster_parse, worker

JPEG_2000: Final = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
RLE: Final = "1.2.840.10008.1.2.5"


def doubts(frame: bytes, syntax: str | None, *, rows: int, columns: int, more: bool = False) -> list[str]:
    """Signs of damage in a compressed frame, in words; ``more`` allows bytes behind its image."""
    # Packets hold no two bytes above FF8F (ISO/IEC 15444-1 B.10.1), hence no marker.
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


# One grey sequential JPEG frame (ITU-T T.81, baseline and extended processes 1, 2 and 4). Pillow (libjpeg-turbo)
# decodes 8 bits, gdcm 12 bits, called directly since pydicom's plugin refuses these. T.81 leaves the arithmetic of the
# inverse cosine transform open, so correct decoders differ by one grey level. gdcm refuses everything libjpeg warns
# about except the end of the data, and Pillow nothing: ``raster_parse`` detects the rest. gdcm may crash on hostile
# data.


SEQUENTIAL: Final = (0xC0, 0xC1)


def damaged(reason: str) -> InputError:
    return InputError(f"the JPEG data is damaged: {reason}", field="PixelData")


def decode_grey(data: bytes, shape: tuple[int, int]) -> tuple[worker.Array, list[str]]:
    """Pixels (rows, columns), uint8 or uint16, and what is doubtful about the data, in words.

    Args:
        shape: rows and columns that the DICOM header states.

    Raises:
        InputError: if the frame is damaged, cut, of another size, or of a kind that is not decoded here.
    """
    layout = raster_parse.layout_of(data)
    if data[:2] != b"\xff\xd8" or layout.frame is None or not layout.refined:
        raise damaged("it ends in its header")
    if layout.frame.kind not in SEQUENTIAL:
        raise InputError("progressive, lossless or arithmetic JPEG is not decoded here", field="PixelData")
    if len(layout.sampling) != 1:
        raise InputError("colour JPEG is not decoded here", field="PixelData")
    if not layout.has_all_coefficients():
        raise damaged("its scan claims a part of the coefficients, which only a progressive JPEG has")
    if (layout.frame.rows, layout.frame.columns) != shape:
        raise InputError("the compressed image has another size than the header states", field="PixelData")
    strict = layout.frame.precision == 12
    decode = partial(_twelve_bits, shape=shape) if strict else _eight_bits
    pixels = decode(data)
    doubts = raster_parse.stream_doubts(data, pixels, decode, strict=strict)
    if lost := set(doubts) - {raster_parse.LEFT_OVER}:
        raise damaged(min(lost).removeprefix("the JPEG data "))
    return pixels, doubts


def _eight_bits(data: bytes) -> worker.Array:
    Image.MAX_IMAGE_PIXELS = None  # the size was looked at before
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, EOFError):
        raise damaged("it cannot be decoded") from None


def _twelve_bits(data: bytes, shape: tuple[int, int]) -> worker.Array:
    fragment, fragments = gdcm.Fragment(), gdcm.SequenceOfFragments.New()
    fragment.SetByteStringValue(data)
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((shape[1], shape[0], 1))
    image.SetDataElement(element)
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(gdcm.PhotometricInterpretation.MONOCHROME2))
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGExtendedProcess2_4))
    image.SetPixelFormat(gdcm.PixelFormat(1, 16, 12, 11, 0))
    text = image.GetBuffer()
    if text is None:
        raise damaged("it cannot be decoded")
    # gdcm gives bytes as text: as UTF-8, with surrogates for what is none.
    pixels = np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint16)
    if pixels.size != shape[0] * shape[1]:
        raise damaged("it cannot be decoded")
    return pixels.reshape(shape)
