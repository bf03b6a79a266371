"""Radiographs from PNG, JPEG and DICOM files, arrays and PIL images, in one form.

    radiograph = read_radiograph(Path("chest.dcm"))
    radiograph.pixels        # float32 (H, W) in [0, 1], white is dense, as MONOCHROME2 is displayed

The kind of a file depends on its content, never on its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.study import View
from radweave.io import worker
from radweave.io.dicom import (
    DOUBTFUL,
    DicomHeader,
    DicomImage,
    FloatImage,
    display,
    integrity_warnings,
    part_warnings,
    polarity_warnings,
    read_dicom,
    without_window,
)
from radweave.io.dicom_parse import looks_like_dicom
from radweave.io.raster_parse import EXIF_ORIENTATION, RASTER_MODES, stored_values
from radweave.io.sandbox import sandbox


@contextmanager
def one_file(path: Path) -> Iterator[None]:
    """Turn arithmetic errors on a file's values into a refusal of the file, which does not end a batch.

    Raises:
        InputError: for arithmetic and value errors in the block.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except InputError:
        raise
    except (ArithmeticError, ValueError, IndexError, MemoryError) as error:
        raise InputError(f"its values cannot be used: {type(error).__name__}", file=path) from error


MAX_SIDE_PX: Final = 16_384
MAX_PIXELS: Final = 100 << 20
MIN_SIDE_PX: Final = 16
RASTER_TIMEOUT_S: Final = 30.0
# JPEG stores luma and chroma separately, so the channels of a grey picture may differ by rounding.
GREY_TOLERANCE: Final = 8
SQUARE_TOLERANCE: Final = 1.02
NOT_SQUARE: Final = "pixels are not square; the image is stretched"
RADIOGRAPH_MODALITIES: Final = frozenset({"CR", "DX", "DR", "XR", "RG"})
UNSTATED_MODALITIES: Final = frozenset({"OT", "SC"})

# A header may begin with a comment, followed by its object type or number of dimensions.
METAIMAGE_START: Final = re.compile(rb"(?:[A-Za-z]+ *= *[^\r\n=]*\r?\n)*(?:ObjectType *= *Image|NDims *= *\d)")

Source = Literal["png", "jpeg", "dicom", "memory"]
Kind = Literal["png", "jpeg", "dicom", "nifti", "gzip", "nrrd", "metaimage"]


@dataclass(frozen=True, slots=True)
class Radiograph:
    """One radiograph as displayed.

    ``pixels`` is float32 (H, W) in [0, 1], white dense, after modality and VOI transformation. ``spacing_mm`` is
    (row, column), None if not stated. ``study_key`` and ``patient_key`` are short digests of the DICOM
    identifiers, for grouping only; None if absent. ``warnings`` states doubts and assumptions in words.
    """

    pixels: FloatImage
    view: View
    spacing_mm: tuple[float, float] | None
    source: Source
    warnings: tuple[str, ...]
    study_key: str | None
    patient_key: str | None


@dataclass(frozen=True, slots=True)
class Raster:
    """A decoded PNG or JPEG, or an image in memory: stored values (H, W) or (H, W, channels).

    ``orientation`` is that of EXIF, 1 for upright. ``doubts`` are signs of damage in the compressed data, in words.
    """

    source: Literal["png", "jpeg", "memory"]
    pixels: worker.Array
    orientation: int
    doubts: tuple[str, ...] = ()


def read_radiograph(path: Path, *, original_size_wh: tuple[int, int] | None = None, doubts: bool = True) -> Radiograph:
    """Read one radiograph.

    Args:
        path: a PNG, JPEG or DICOM file.
        original_size_wh: width and height before the stored image was stretched; it is resized back to that ratio,
            keeping its longer side.
        doubts: search for damage that decoders ignore, which takes longer than decoding. False gives the same pixels
            with fewer warnings.

    Raises:
        InputError: if the file is missing, empty, cut, damaged, too large, or no single grey radiograph.
    """
    with one_file(path):
        kind = sniff(path)
        if kind == "dicom":
            radiograph = radiograph_from_dicom(read_dicom(path, max_pixel_bytes=4 * MAX_PIXELS), doubts=doubts)
        elif kind in ("png", "jpeg"):
            radiograph = radiograph_from_raster(path, read_raster(path, doubts=doubts), doubts=doubts)
        else:
            raise InputError(f"is a volume ({kind}), not a radiograph", file=path, expected="PNG, JPEG or DICOM")
    if original_size_wh is None:
        return radiograph
    pixels = undo_stretch(radiograph.pixels, original_size_wh, path)
    return Radiograph(pixels, radiograph.view, None, radiograph.source, radiograph.warnings, None, None)


def sniff(path: Path) -> Kind:
    """Tell the kind of a file from its first bytes.

    Raises:
        InputError: if it is missing, no plain file, empty, unreadable, or of an unknown kind.
    """
    try:
        if not path.exists():
            raise InputError("file is missing", file=path)
        if not path.is_file():
            raise InputError("is not a file", file=path)
        with path.open("rb") as file:
            head = file.read(348)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or type(error).__name__}", file=path) from None
    except ValueError:  # a NUL in the name
        raise InputError("is no usable file name", file=path.name.replace("\0", "?")) from None
    if not head:
        raise InputError("the file is empty", file=path)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"NRRD0"):
        return "nrrd"
    if head[344:348] in (b"n+1\0", b"ni1\0") or head[4:8] in (b"n+2\0", b"ni2\0"):
        return "nifti"
    if looks_like_dicom(head):
        return "dicom"
    if METAIMAGE_START.match(head):
        return "metaimage"
    raise InputError("is of no kind that can be read", file=path, expected="PNG, JPEG, DICOM, NIfTI, NRRD or MetaImage")


def read_raster(path: Path, *, doubts: bool = True) -> Raster:
    """Decode a PNG or JPEG in the sandbox; ``doubts`` as ``read_radiograph``.

    Raises:
        InputError: if it is damaged or too large.
    """
    header, arrays = sandbox().call(
        "raster",
        {"path": str(path.absolute()), "max_side_px": MAX_SIDE_PX, "max_pixels": MAX_PIXELS, "doubts": doubts},
        timeout_s=RASTER_TIMEOUT_S,
        max_reply_bytes=8 * MAX_PIXELS,
    )
    source: Literal["png", "jpeg"] = "png" if header.get("format") == "png" else "jpeg"
    if "pixels" not in arrays or arrays["pixels"].ndim not in (2, 3):
        raise InputError("the reader gave no sensible answer", file=path)
    signs = tuple(str(doubt) for doubt in header.get("doubts", ()))
    return Raster(source, arrays["pixels"], int(header.get("orientation", 1)), signs)


def radiograph_from_raster(path: Path, raster: Raster, *, doubts: bool = True) -> Radiograph:
    """A radiograph from a PNG or JPEG, or an image in memory; ``doubts`` as ``read_radiograph``.

    Raises:
        InputError: if it is coloured, constant or too small.
    """
    warnings = [DOUBTFUL + doubt for doubt in raster.doubts]
    grey = upright_grey(path, raster, warnings)
    if grey.dtype == np.uint8:
        _refuse_unusable(path, grey)  # the check of bytes takes a tenth of the time
        pixels = np.divide(grey, np.float32(255), dtype=np.float32)
    else:
        is_unit = grey.dtype == np.float32
        pixels = grey if is_unit else without_window(grey.astype(np.float32), (0.0, 65535.0), None, warnings)
        _refuse_unusable(path, pixels)
    if doubts:
        warnings += integrity_warnings(pixels) + polarity_warnings(pixels, View.UNKNOWN)
    pixels = np.ascontiguousarray(pixels)
    return Radiograph(pixels, View.UNKNOWN, None, raster.source, tuple(warnings), None, None)


def upright_grey(path: Path, raster: Raster, warnings: list[str]) -> worker.Array:
    """The stored grey values (H, W) of a PNG or JPEG, set upright.

    Raises:
        InputError: if it is coloured.
    """
    grey = _grey(path, raster.pixels, warnings)
    if raster.orientation == 1:
        return grey
    warnings.append("the file says that it lies turned or mirrored; it was set upright")
    return _upright(grey, raster.orientation)


def _grey(path: Path, pixels: worker.Array, warnings: list[str]) -> worker.Array:
    if pixels.ndim == 2:
        return pixels
    colours, alpha = (pixels[..., :3], pixels[..., 3:]) if pixels.shape[2] > 2 else (pixels[..., :1], pixels[..., 1:])
    if alpha.size and (alpha != np.iinfo(alpha.dtype).max).any():
        warnings.append("has transparent parts; their stored grey values are used")
    if colours.shape[2] == 3:
        spread = colours.max(axis=2).astype(np.int32) - colours.min(axis=2)
        if int(spread.max()) > GREY_TOLERANCE:
            raise InputError("is a colour image, not a radiograph", file=path, expected="grey, or equal RGB channels")
        return colours[..., 1]
    return colours[..., 0]


def _upright(pixels: worker.Array, orientation: int) -> worker.Array:
    """Undo an EXIF orientation (CIPA DC-008 Sec. 4.6.5): 2-4 mirrored or turned, 5-8 with the sides swapped."""
    turned = {
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.T,
        6: lambda p: np.rot90(p, -1),
        7: lambda p: p[::-1, ::-1].T,
        8: lambda p: np.rot90(p, 1),
    }.get(orientation)
    return pixels if turned is None else turned(pixels)


def _refuse_unusable(path: Path, pixels: FloatImage | NDArray[np.uint8]) -> None:
    if min(pixels.shape) < MIN_SIDE_PX:
        raise InputError(
            "the image is too small", file=path, got=f"{pixels.shape[1]} x {pixels.shape[0]} pixels",
            expected=f"at least {MIN_SIDE_PX} a side",
        )  # fmt: skip
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise InputError("holds pixel values that are no finite numbers", file=path)
    if float(pixels.max()) == float(pixels.min()):
        raise InputError("all pixels are equal: there is no image", file=path)


def radiograph_from_dicom(image: DicomImage, *, doubts: bool = True) -> Radiograph:
    """A radiograph from a parsed DICOM file; ``doubts`` as ``read_radiograph``.

    Raises:
        InputError: if it is no single grey radiograph, or has no pixels.
    """
    refusal = no_radiograph(image.header)
    if refusal is not None:
        raise InputError(refusal.reason, file=image.path, field=refusal.field, got=refusal.got,
                         expected=refusal.expected)  # fmt: skip
    stored = image.stored_pixels()
    if max(stored.shape) > MAX_SIDE_PX:
        raise InputError("the image is too large", file=image.path, got=f"{max(stored.shape)} pixels wide or high",
                         expected=f"at most {MAX_SIDE_PX} a side")  # fmt: skip
    pixels, warnings = display(image)
    _refuse_unusable(image.path, pixels)
    header = image.header
    spacing, spacing_warnings = radiograph_spacing(header)
    warnings = header_warnings(header) + spacing_warnings + warnings
    view = View(header.view) if header.view and header.view in View.__members__ else View.UNKNOWN
    if doubts:
        warnings += integrity_warnings(pixels) + [DOUBTFUL + doubt for doubt in header.doubts]
        warnings += polarity_warnings(pixels, view)
    return Radiograph(pixels, view, spacing, "dicom", tuple(warnings), header.study_key, header.patient_key)


def no_radiograph(header: DicomHeader) -> InputError | None:
    """The reason why a DICOM file is no single grey radiograph, judged by its header; None if it may be one."""
    modality = header.modality
    if modality is not None and modality not in RADIOGRAPH_MODALITIES | UNSTATED_MODALITIES:
        got = "a modality that DICOM does not define" if modality == "?" else modality
        return InputError("is not a radiograph", field="Modality", got=got, expected="CR or DX")
    if modality is None and header.sop_class is not None and "CT " in header.sop_class:
        return InputError("is not a radiograph but a CT image", field="SOPClassUID")
    if header.pixel_refusal is not None and header.rows is None:
        return None
    if (header.frames or 1) > 1:
        return InputError("holds several frames, not one radiograph", field="NumberOfFrames", got=header.frames)
    if (header.samples or 1) > 1:
        return InputError("is a colour image, not a radiograph", field="SamplesPerPixel", got=header.samples)
    if header.photometric not in ("MONOCHROME1", "MONOCHROME2") and header.rows is not None:
        photometric = "a value that DICOM does not define" if header.photometric == "?" else header.photometric
        return InputError(
            "is not a grey image", field="PhotometricInterpretation", got=photometric or "nothing",
            expected="MONOCHROME1 or MONOCHROME2",
        )  # fmt: skip
    if header.bits_stored is not None and header.bits_stored < 8:
        return InputError("has too few grey levels for a radiograph", field="BitsStored", got=header.bits_stored)
    return None


def header_warnings(header: DicomHeader) -> list[str]:
    """Warnings by the header, in words and known codes only."""
    warnings = []
    if header.transfer_syntax is None:
        warnings.append("has no file meta information; the transfer syntax was guessed")
    if header.modality is None:
        warnings.append("names no modality; taken as a radiograph")
    elif header.modality in UNSTATED_MODALITIES:
        warnings.append(f"modality {header.modality} does not say that it is a radiograph")
    warnings += part_warnings(header)
    if header.view == "LATERAL":
        warnings.append("lateral view")
    warnings += turned_warnings(header)
    if header.for_processing:
        warnings.append("a raw detector image, not processed for display")
    if header.burned_in:
        warnings.append("may hold burned-in text about the patient")
    return warnings


def turned_warnings(header: DicomHeader) -> list[str]:
    """A doubt where rows do not run to the left or columns not to the feet of a patient seen from the front.

    Such an image lies mirrored or turned (PS3.3 C.7.6.1.1.1), and left and right of a draft would be exchanged.
    Rows of a lateral view may run to the front or the back.
    """
    if len(header.patient_orientation) != 2 or not all(header.patient_orientation):
        return []
    across, down = (letters[0] for letters in header.patient_orientation)
    if down == "F" and (across in "LAP" or header.view == "LATERAL"):
        return []
    return [DOUBTFUL + "the header says that it lies mirrored or turned (PatientOrientation)"]


def radiograph_spacing(header: DicomHeader) -> tuple[tuple[float, float] | None, list[str]]:
    """Spacing (row, column) in mm: PixelSpacing, else the detector's (PS3.3 Sec. 10.7.1)."""
    for field, spacing in (("PixelSpacing", header.pixel_spacing_mm), ("ImagerPixelSpacing", header.imager_spacing_mm)):
        if field in header.invalid:
            return None, [f"{field} cannot be used; sizes in mm are not known"]
        if spacing is None:
            continue
        if len(spacing) != 2 or min(spacing) <= 0:
            return None, [f"{field} is not positive; sizes in mm are not known"]
        note = [NOT_SQUARE] if max(spacing) > SQUARE_TOLERANCE * min(spacing) else []
        note += [] if field == "PixelSpacing" else ["spacing is that of the detector, not of the patient"]
        return (spacing[0], spacing[1]), note
    aspect = header.pixel_aspect
    return None, [NOT_SQUARE] if aspect and min(aspect) > 0 and max(aspect) > SQUARE_TOLERANCE * min(aspect) else []


def undo_stretch(pixels: FloatImage, original_size_wh: tuple[int, int], path: Path) -> FloatImage:
    """Resize (H, W) back to the ratio of ``original_size_wh``, keeping the longer stored side; antialiased bilinear.

    Raises:
        InputError: if the size is not positive or the ratio is beyond 1 : 20.
    """
    width, height = original_size_wh
    if min(width, height) < 1 or max(width, height) > 20 * min(width, height):
        raise InputError("cannot be used", file=path, field="original_size_wh", got=original_size_wh)
    longer = max(pixels.shape)
    scale = longer / max(width, height)
    target = (max(1, round(width * scale)), max(1, round(height * scale)))
    if target == (pixels.shape[1], pixels.shape[0]):
        return pixels
    resized = Image.fromarray(pixels).resize(target, Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.clip(np.asarray(resized, dtype=np.float32), 0.0, 1.0))


def radiograph_from_array(pixels: Any, name: Path) -> Radiograph:
    """A radiograph from an array with white dense.

    Args:
        pixels: (H, W) or (H, W, channels), also with one channel first; uint8, uint16, or floats from 0 to 1.
        name: name of the image in errors.

    Raises:
        InputError: for another shape, kind of number or range, and as for a file.
    """
    try:
        array = np.asarray(pixels)
    except (TypeError, RuntimeError) as error:  # a tensor on another device, or one with gradients
        raise InputError("is no array that can be read", file=name, got=type(error).__name__) from None
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] > 4) or 0 in array.shape:
        shape = " x ".join(map(str, array.shape)) or "one number"
        raise InputError("is no image", file=name, got=shape, expected="(H, W) or (H, W, channels)")
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not 0 <= low <= high <= 1:
            raise InputError("floats go from 0 to 1", file=name, got=f"{low:g} to {high:g}")
        array = array.astype(np.float32)
    elif array.dtype not in (np.uint8, np.uint16):
        raise InputError("cannot be used", file=name, got=array.dtype, expected="uint8, uint16, or floats from 0 to 1")
    if max(array.shape) > MAX_SIDE_PX:
        raise InputError("the image is too large", file=name, expected=f"at most {MAX_SIDE_PX} a side")
    return radiograph_from_raster(name, Raster("memory", array, 1))


def radiograph_from_picture(picture: Image.Image, name: Path) -> Radiograph:
    """A radiograph from a PIL image; ``name`` is its name in errors.

    Raises:
        InputError: as for a file.
    """
    if picture.mode not in RASTER_MODES:
        raise InputError("the colour mode cannot be used", file=name, got=picture.mode, expected="grey or RGB")
    try:
        picture.load()
    except (OSError, SyntaxError, ValueError, EOFError):
        raise InputError("the image data is damaged or cut", file=name) from None
    if max(picture.size) > MAX_SIDE_PX:
        raise InputError("the image is too large", file=name, expected=f"at most {MAX_SIDE_PX} a side")
    orientation = int(picture.getexif().get(EXIF_ORIENTATION, 1))
    return radiograph_from_raster(name, Raster("memory", stored_values(picture), orientation))
