"""Parse one DICOM file into plain numbers and stored pixels. Runs in the reading process.

The decoder of each transfer syntax is fixed: if it refuses a frame, the file is refused. Trying the next library, as
is common, ends at one that returns a half-wrong image without a word.
"""

from __future__ import annotations

import io
import math
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import generate_frames
from pydicom.filereader import dcmread, read_dataset
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID

from radweave.base.errors import InputError
from radweave.data.reading import dicom_scan, wire
from radweave.data.reading.codestreams import JPEG_2000, RLE, doubts
from radweave.data.reading.dicom_codes import (
    IMAGE_TYPES,
    LUT_SHAPES,
    MODALITIES,
    PHOTOMETRIC,
    PRESENTATION_INTENTS,
    RESCALE_TYPES,
    VOI_FUNCTIONS,
)
from radweave.data.reading.dicom_fields import Fields, anatomy_of, body_part_of, laterality_of, orientation_of, view_of
from radweave.data.reading.dicom_words import word_keys
from radweave.data.reading.jpeg import decode_grey

config.settings.reading_validation_mode = config.IGNORE

MAX_FILE_BYTES: Final = 1 << 30
MAX_PIXEL_BYTES: Final = 1 << 30

SEQUENTIAL_JPEG: Final = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
CHECKED_SYNTAXES: Final = (*JPEG_2000, RLE)
# Transfer syntax -> (pydicom's name of the decoding plugin, package that brings it).
DECODERS: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(["1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2"], ("", "pydicom")),
    **dict.fromkeys(["1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51"], ("gdcm", "python-gdcm")),
    **dict.fromkeys(["1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70"], ("gdcm", "python-gdcm")),
    **dict.fromkeys(["1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81"], ("pyjpegls", "pyjpegls")),
    **dict.fromkeys(["1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91"], ("pylibjpeg", "pylibjpeg-openjpeg")),
    **dict.fromkeys(
        ["1.2.840.10008.1.2.4.201", "1.2.840.10008.1.2.4.202", "1.2.840.10008.1.2.4.203"],
        ("pylibjpeg", "pylibjpeg-openjpeg"),
    ),
    "1.2.840.10008.1.2.5": ("pydicom", "pydicom"),
}


def parse_dicom(request: dict[str, Any]) -> wire.Message:
    """Header and, unless ``pixels`` is false, stored pixel values of the file ``path``.

    The pixels are left out, and ``pixel_refusal`` says why, where they cannot be had; that alone refuses no file,
    so that ``inspect`` can still describe it.

    Raises:
        InputError: if the file is no DICOM, is cut short, nests too deeply or inflates to too much.
    """
    data = _read(Path(request["path"]))
    dataset, layout = _dataset(data)
    fields = Fields(dataset)
    header = _header(fields, layout)
    arrays: wire.Arrays = {}
    _add_luts(fields, header, arrays)
    header["pixel_refusal"], header["doubts"] = None, []
    if "salt" in request:
        header["identity_keys"] = word_keys(fields, str(request["salt"]))
    if request.get("pixels", True):
        try:
            arrays["pixels"] = _decode(dataset, header, int(request.get("max_pixel_bytes", MAX_PIXEL_BYTES)))
        except InputError as error:
            got, expected = (None if value is None else str(value) for value in (error.got, error.expected))
            header["pixel_refusal"] = {"reason": error.reason, "field": error.field, "got": got, "expected": expected}
    header["invalid"] = sorted(set(fields.invalid))
    return header, arrays


def dataset_of(path: Path) -> Dataset:
    """The whole header of a file, with its pixel data as they are stored.

    Raises:
        InputError: as ``parse_dicom``.
    """
    return _dataset(_read(path))[0]


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise InputError("the file is too large", got=f"{size >> 20} MB", expected=f"at most {MAX_FILE_BYTES >> 20} MB")
    return path.read_bytes()


def _dataset(data: bytes) -> tuple[Dataset, dicom_scan.Layout]:
    layout = dicom_scan.find_layout(data)
    if layout.transfer_syntax == dicom_scan.DEFLATED:
        data = dicom_scan.inflate(data, layout.start)
        layout = dicom_scan.Layout(0, layout.transfer_syntax, implicit=False, big_endian=False)
        dicom_scan.check_structure(data, layout)
        dataset = read_dataset(io.BytesIO(data), is_implicit_VR=False, is_little_endian=True)
        return _with_syntax(dataset, dicom_scan.EXPLICIT_LITTLE), layout
    dicom_scan.check_structure(data, layout)
    if layout.transfer_syntax is None:
        dataset = read_dataset(io.BytesIO(data), is_implicit_VR=layout.implicit, is_little_endian=True)
        syntax = dicom_scan.IMPLICIT_LITTLE if layout.implicit else dicom_scan.EXPLICIT_LITTLE
        return _with_syntax(dataset, syntax), layout
    return dcmread(io.BytesIO(data), force=True), layout


def _with_syntax(dataset: Dataset, syntax: str) -> Dataset:
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    implicit = syntax == dicom_scan.IMPLICIT_LITTLE
    dataset.set_original_encoding(implicit, True)
    return dataset


def _header(fields: Fields, layout: dicom_scan.Layout) -> dict[str, Any]:
    syntax = layout.transfer_syntax
    known = syntax is not None and UID(syntax).is_transfer_syntax
    return {
        "transfer_syntax": syntax if known else None if syntax is None else "?",
        "transfer_syntax_name": UID(syntax).name if known and syntax else "unknown",
        "modality": fields.code("Modality", MODALITIES),
        "photometric": fields.code("PhotometricInterpretation", PHOTOMETRIC),
        "image_types": [word for word in fields.words("ImageType") if word in IMAGE_TYPES],
        "sop_class": _class_name(fields),
        "body_part": body_part_of(fields),
        "anatomy": anatomy_of(fields),
        "view": view_of(fields),
        "rows": fields.integer("Rows"),
        "columns": fields.integer("Columns"),
        "samples": fields.integer("SamplesPerPixel"),
        "frames": fields.integer("NumberOfFrames"),
        "bits_allocated": fields.integer("BitsAllocated"),
        "bits_stored": fields.integer("BitsStored"),
        "high_bit": fields.integer("HighBit"),
        "signed": fields.integer("PixelRepresentation") == 1,
        "lut_shape": fields.code("PresentationLUTShape", LUT_SHAPES),
        "padding": fields.number("PixelPaddingValue"),
        "padding_limit": fields.number("PixelPaddingRangeLimit"),
        "slope": fields.number("RescaleSlope"),
        "intercept": fields.number("RescaleIntercept"),
        "rescale_type": fields.code("RescaleType", RESCALE_TYPES),
        "window_centers": fields.numbers("WindowCenter") or [],
        "window_widths": fields.numbers("WindowWidth") or [],
        "voi_function": fields.code("VOILUTFunction", VOI_FUNCTIONS),
        "pixel_spacing_mm": fields.numbers("PixelSpacing"),
        "imager_spacing_mm": fields.numbers("ImagerPixelSpacing"),
        "pixel_aspect": fields.numbers("PixelAspectRatio"),
        "position_lps_mm": fields.numbers("ImagePositionPatient"),
        "orientation_lps": fields.numbers("ImageOrientationPatient"),
        "gantry_tilt_deg": fields.number("GantryDetectorTilt"),
        "for_processing": fields.code("PresentationIntentType", PRESENTATION_INTENTS) == "FOR PROCESSING",
        "burned_in": fields.code("BurnedInAnnotation", frozenset({"YES", "NO"})) == "YES",
        "study_key": fields.digest("StudyInstanceUID"),
        "series_key": fields.digest("SeriesInstanceUID"),
        "sop_key": fields.digest("SOPInstanceUID"),
        "frame_key": fields.digest("FrameOfReferenceUID"),
        "patient_key": fields.digest("PatientID", "IssuerOfPatientID"),
        "laterality": laterality_of(fields),
        "patient_orientation": orientation_of(fields),
    }


def _class_name(fields: Fields) -> str | None:
    words = fields.words("SOPClassUID")
    if not words:
        return None
    uid = UID(words[0])
    return uid.name if uid.name != str(uid) else "?"


def _decode(dataset: Dataset, header: dict[str, Any], max_bytes: int) -> wire.Array:
    """Stored values, (rows, columns), with frames before and samples after where there are several of them."""
    if not any(name in dataset for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise InputError("holds no pixel data", field="PixelData")
    if "PixelData" not in dataset:
        raise InputError("holds floating-point pixel data, which no radiograph or CT image has", field="PixelData")
    _check_size(header, max_bytes)
    if header["transfer_syntax"] in SEQUENTIAL_JPEG and header["samples"] == 1 and (header["frames"] or 1) == 1:
        return _decode_jpeg(dataset, header)
    plugin = _plugin(header["transfer_syntax"])
    decoder = get_decoder(UID(dataset.file_meta.TransferSyntaxUID))
    try:
        # pydicom cuts off unused bits as if they were all above the image; an image in the upper bits is left whole.
        options: Any = {"correct_unused_bits": header["high_bit"] in (None, header["bits_stored"] - 1)}
        pixels, _ = decoder.as_array(dataset, raw=True, decoding_plugin=plugin, **options)
    except MemoryError:
        raise
    except BaseException as error:  # a codec may raise anything on damaged data, PanicException included
        raise _explain(error, dataset) from None
    if header["transfer_syntax"] in CHECKED_SYNTAXES and (header["frames"] or 1) == 1:
        rows, columns = header["rows"], header["columns"]
        header["doubts"] += doubts(_only_frame(dataset), header["transfer_syntax"], rows=rows, columns=columns)
    return np.asarray(pixels)


def _decode_jpeg(dataset: Dataset, header: dict[str, Any]) -> wire.Array:
    """One grey frame of JPEG baseline or extended; gdcm serves the colour ones and those of several frames."""
    pixels, odd = decode_grey(_only_frame(dataset), (header["rows"], header["columns"]))
    header["doubts"] += odd
    if not header["signed"] and header["bits_stored"] < 16 and header["high_bit"] in (None, header["bits_stored"] - 1):
        # What is lossy overshoots; without its upper bits a value beyond white would be black.
        pixels = np.minimum(pixels, np.uint16((1 << header["bits_stored"]) - 1))
    return pixels.astype(np.uint8 if header["bits_allocated"] == 8 else np.uint16)


def _only_frame(dataset: Dataset) -> bytes:
    try:
        return bytes(next(generate_frames(dataset.PixelData, number_of_frames=1)))
    except (ValueError, StopIteration, struct.error):
        raise InputError("the compressed image is not framed as it should be", field="PixelData") from None


def _check_size(header: dict[str, Any], max_bytes: int) -> None:
    for field, name in (("Rows", "rows"), ("Columns", "columns"), ("SamplesPerPixel", "samples")):
        if not header[name] or header[name] < 0:
            raise InputError("is missing or not positive", field=field, got=header[name])
    frames = header["frames"]
    if frames is not None and frames < 1:
        raise InputError("is not positive", field="NumberOfFrames", got=frames)
    allocated, stored = header["bits_allocated"], header["bits_stored"]
    if allocated not in (1, 8, 16, 32):
        raise InputError("cannot be decoded", field="BitsAllocated", got=allocated, expected="1, 8, 16 or 32")
    if stored is None or not 1 <= stored <= allocated:
        raise InputError("does not fit BitsAllocated", field="BitsStored", got=stored, expected=f"1 to {allocated}")
    need = header["rows"] * header["columns"] * header["samples"] * (frames or 1) * math.ceil(allocated / 8)
    if need > max_bytes:
        raise InputError(
            "the header declares too large an image", got=f"{need >> 20} MB", expected=f"at most {max_bytes >> 20} MB"
        )


def _plugin(syntax: str | None) -> str:
    if syntax is None or syntax == dicom_scan.DEFLATED:
        return ""
    if syntax not in DECODERS:
        known = syntax != "?"
        raise InputError(
            "the transfer syntax cannot be decoded here",
            field="TransferSyntaxUID",
            got=f"{UID(syntax).name} ({syntax})" if known else "one that DICOM does not define",
            expected="an uncompressed, JPEG, JPEG Lossless, JPEG-LS, JPEG 2000, HTJ2K or RLE image",
        )
    plugin, package = DECODERS[syntax]
    if plugin not in ("", "pydicom") and plugin not in get_decoder(UID(syntax)).available_plugins:
        raise InputError(
            f"the decoder for this transfer syntax is not installed; pip install {package}",
            field="TransferSyntaxUID",
            got=f"{UID(syntax).name} ({syntax})",
        )
    return plugin


def _explain(error: BaseException, dataset: Dataset) -> InputError:
    """Say what is wrong without quoting the library, which may quote the header."""
    text = str(error)
    if "less than expected" in text or "insufficient pixel data" in text:
        return InputError("truncated: fewer pixels than the header declares", field="PixelData")
    if len(dataset.PixelData) == 0:
        return InputError("holds no pixel data", field="PixelData")
    return InputError(f"the image data is damaged: the decoder failed with {type(error).__name__}", field="PixelData")


def _add_luts(fields: Fields, header: dict[str, Any], arrays: wire.Arrays) -> None:
    """First item of the modality LUT and of the VOI LUT sequence (PS3.3 C.11.1 and C.11.2), as uint16 tables."""
    for name, keyword in (("modality_lut", "ModalityLUTSequence"), ("voi_lut", "VOILUTSequence")):
        header[name] = None
        sequence = fields.raw(keyword)
        if not sequence:
            continue
        try:
            first, bits, table = _read_lut(sequence[0], signed=header["signed"])
        except (AttributeError, IndexError, TypeError, ValueError, KeyError):
            fields.invalid.append(keyword)
            continue
        header[name] = {"first": first, "bits": bits}
        arrays[name] = table


def _read_lut(item: Dataset, *, signed: bool) -> tuple[int, int, wire.Array]:
    entries, first, bits = (int(v) for v in item.LUTDescriptor)
    entries = entries & 0xFFFF or 65536  # 0 stands for 2**16, and a writer may have used a signed type
    if not 8 <= bits <= 16:
        raise ValueError("bits")
    if signed and first > 0x7FFF:
        first -= 0x10000
    data = item.LUTData
    if isinstance(data, bytes):
        wide = len(data) >= 2 * entries
        table = np.frombuffer(data, dtype="<u2" if wide else "u1")
    else:
        table = np.asarray(data, dtype=np.int64) & 0xFFFF
        if len(table) == (entries + 1) // 2 and bits == 8:  # two 8-bit entries in each word
            table = np.stack([table & 0xFF, table >> 8], axis=1).reshape(-1)
    if len(table) < entries:
        raise ValueError("entries")
    return first, bits, table[:entries].astype(np.uint16)
