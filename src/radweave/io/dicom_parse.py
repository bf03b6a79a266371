"""Parse one DICOM file into plain numbers and stored pixels. Runs in the reading process.

Each transfer syntax has one decoder; a frame that it refuses refuses the file. A fallback to other libraries would end
at one that returns a partly wrong image without an error.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import generate_frames
from pydicom.filereader import dcmread, read_dataset
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID

from radweave.core.errors import InputError
from radweave.io import worker
from radweave.io.codestreams import JPEG_2000, RLE, decode_grey, doubts
from radweave.io.dicom_fields import (
    BODY_PARTS,
    IMAGE_TYPES,
    LUT_SHAPES,
    MODALITIES,
    PHOTOMETRIC,
    PRESENTATION_INTENTS,
    RESCALE_TYPES,
    VOI_FUNCTIONS,
    Fields,
    anatomy_of,
    laterality_of,
    orientation_of,
    view_of,
    word_keys,
)

# Structure check before parsing. pydicom reads nested sequences by recursion, and a file of some kilobytes can nest
# thousands; it also accepts files that end inside an element. The check loops over the headers of elements (PS3.5 Sec.
# 7).
PREAMBLE_BYTES = 128
MAX_SEQUENCE_DEPTH = 64
MAX_ELEMENTS = 1_000_000
MAX_INFLATED_BYTES = 128 << 20
UNDEFINED = 0xFFFFFFFF

IMPLICIT_LITTLE = "1.2.840.10008.1.2"
EXPLICIT_LITTLE = "1.2.840.10008.1.2.1"
DEFLATED = "1.2.840.10008.1.2.1.99"
EXPLICIT_BIG = "1.2.840.10008.1.2.2"

ITEM, ITEM_END, SEQUENCE_END, PIXEL_DATA = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD, 0x7FE00010
LONG_VRS = frozenset({b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"})
_SHORTEST_ELEMENT = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Start and encoding of the data set. ``transfer_syntax`` is None in a file without meta header."""

    start: int
    transfer_syntax: str | None
    implicit: bool
    big_endian: bool


def looks_like_dicom(head: bytes) -> bool:
    """Tell DICOM from its first 132 bytes; a data set without preamble begins with group 2 or 8."""
    if head[PREAMBLE_BYTES : PREAMBLE_BYTES + 4] == b"DICM":
        return True
    if len(head) < 16 or head[:2] not in (b"\x02\x00", b"\x08\x00") or head[3] != 0:
        return False
    return (head[4:6].isalpha() and head[4:6].isupper()) or int.from_bytes(head[4:8], "little") <= 256


def find_layout(data: bytes) -> Layout:
    """Read the file meta information (PS3.10 Sec. 7.1).

    Raises:
        InputError: if the bytes are no DICOM file, or the meta information is cut or names no transfer syntax.
    """
    if not looks_like_dicom(data[: PREAMBLE_BYTES + 4]):
        raise InputError("not a DICOM file")
    has_preamble = data[PREAMBLE_BYTES : PREAMBLE_BYTES + 4] == b"DICM"
    position = PREAMBLE_BYTES + 4 if has_preamble else 0
    if not has_preamble and data[:2] == b"\x08\x00":
        return Layout(0, None, implicit=not data[4:6].isalpha(), big_endian=False)
    syntax: str | None = None
    while data[position : position + 2] == b"\x02\x00":
        tag, vr = data[position : position + 4], data[position + 4 : position + 6]
        if vr in LONG_VRS:
            header, length = 12, int.from_bytes(data[position + 8 : position + 12], "little")
        else:
            header, length = 8, int.from_bytes(data[position + 6 : position + 8], "little")
        end = position + header + length
        if end > len(data):
            raise InputError("truncated: the file ends inside the file meta information")
        if tag == b"\x02\x00\x10\x00":
            syntax = data[position + header : end].rstrip(b"\0 ").decode("ascii", "replace")
        position = end
    if syntax is None:
        raise InputError("the file meta information names no transfer syntax", field="TransferSyntaxUID")
    return Layout(position, syntax, implicit=syntax == IMPLICIT_LITTLE, big_endian=syntax == EXPLICIT_BIG)


def inflate(data: bytes, start: int) -> bytes:
    """Inflate a deflated data set (PS3.5 Annex A.5), up to a cap.

    Raises:
        InputError: if it holds more than ``MAX_INFLATED_BYTES`` or is damaged.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(data[start:], MAX_INFLATED_BYTES)
    except zlib.error:
        raise InputError("the deflated data set is damaged") from None
    if inflater.unconsumed_tail:
        raise InputError(
            "the deflated data set is too large", got=f"over {MAX_INFLATED_BYTES >> 20} MB", expected="a smaller image"
        )
    if not inflater.eof:
        raise InputError("truncated: the deflated data set has no end")
    return plain


@dataclass(slots=True)
class _Open:
    """An unfinished sequence or item; ``end`` is None if a delimiter ends it."""

    end: int | None
    is_sequence: bool
    implicit: bool


class _Scan:
    def __init__(self, data: bytes, layout: Layout) -> None:
        order = ">" if layout.big_endian else "<"
        self._data = data
        self._tag = struct.Struct(order + "HH")
        self._long = struct.Struct(order + "I")
        self._short = struct.Struct(order + "H")
        self._position = layout.start
        self._implicit = layout.implicit
        self._stack: list[_Open] = []

    def run(self) -> None:
        data_end = len(self._data)
        for _ in range(MAX_ELEMENTS):
            while self._stack and self._stack[-1].end is not None and self._position >= self._stack[-1].end:
                self._stack.pop()
            if self._position + _SHORTEST_ELEMENT > data_end:
                break
            self._step()
            if self._position > data_end:
                raise InputError("truncated: the file ends inside a data element")
        else:
            raise InputError("holds too many data elements", expected=f"at most {MAX_ELEMENTS}")
        if any(part.end is None for part in self._stack):
            raise InputError("truncated: the file ends inside a sequence")

    def _step(self) -> None:
        group, element = self._tag.unpack_from(self._data, self._position)
        tag = group << 16 | element
        if group == 0xFFFE:
            self._delimiter(tag, self._long.unpack_from(self._data, self._position + 4)[0])
            return
        vr, length, header = self._element_header(tag)
        self._position += header
        opens_sequence = vr == b"SQ" or (length == UNDEFINED and tag != PIXEL_DATA)
        if opens_sequence:
            implicit = vr in (b"UN", None) or (bool(self._stack) and self._stack[-1].implicit)
            self._open(None if length == UNDEFINED else self._position + length, True, implicit)
        elif length == UNDEFINED:
            self._skip_fragments()
        else:
            self._position += length

    def _element_header(self, tag: int) -> tuple[bytes | None, int, int]:
        """Value representation (None: not known), length of the value, length of the header."""
        implicit = self._stack[-1].implicit if self._stack else self._implicit
        vr = self._data[self._position + 4 : self._position + 6]
        if implicit or not (vr.isalpha() and vr.isupper()):
            length = self._long.unpack_from(self._data, self._position + 4)[0]
            return (b"SQ" if _is_sequence(tag) else None), length, 8
        if vr in LONG_VRS:
            if self._position + 12 > len(self._data):
                raise InputError("truncated: the file ends inside a data element")
            return vr, self._long.unpack_from(self._data, self._position + 8)[0], 12
        return vr, self._short.unpack_from(self._data, self._position + 6)[0], 8

    def _open(self, end: int | None, is_sequence: bool, implicit: bool) -> None:
        self._stack.append(_Open(end, is_sequence, implicit))
        if len(self._stack) > 2 * MAX_SEQUENCE_DEPTH:
            raise InputError("sequences are nested too deeply", expected=f"at most {MAX_SEQUENCE_DEPTH} levels")

    def _delimiter(self, tag: int, length: int) -> None:
        self._position += 8
        if tag == ITEM:
            implicit = self._stack[-1].implicit if self._stack else self._implicit
            self._open(None if length == UNDEFINED else self._position + length, False, implicit)
        elif tag in (ITEM_END, SEQUENCE_END):
            while self._stack:
                if self._stack.pop().is_sequence == (tag == SEQUENCE_END):
                    break

    def _skip_fragments(self) -> None:
        while self._position + 8 <= len(self._data):
            group, element = self._tag.unpack_from(self._data, self._position)
            length = self._long.unpack_from(self._data, self._position + 4)[0]
            self._position += 8
            if (group << 16 | element) == SEQUENCE_END:
                return
            if (group << 16 | element) != ITEM or self._position + length > len(self._data):
                break
            self._position += length
        raise InputError("truncated or damaged: the compressed image does not end", field="PixelData")


def _is_sequence(tag: int) -> bool:
    from pydicom._dicom_dict import DicomDictionary

    entry = DicomDictionary.get(tag)
    return entry is not None and entry[0] == "SQ"


def check_structure(data: bytes, layout: Layout) -> None:
    """Walk over all elements.

    Raises:
        InputError: if sequences nest too deeply, there are too many elements, or the file ends too early.
    """
    _Scan(data, layout).run()


config.settings.reading_validation_mode = config.IGNORE

MAX_FILE_BYTES: Final = 1 << 30
MAX_PIXEL_BYTES: Final = 1 << 30

SEQUENTIAL_JPEG: Final = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
CHECKED_SYNTAXES: Final = (*JPEG_2000, RLE)
# Transfer syntax -> (pydicom's name of the decoding plugin, its package).
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


def parse_dicom(request: dict[str, Any]) -> worker.Message:
    """Header and, unless ``pixels`` is false, stored pixel values of the file ``path``.

    ``pixel_refusal`` has the reason if the pixels are not available; the header is still returned for ``inspect``.

    Raises:
        InputError: if the file is no DICOM, is cut short, nests too deeply or inflates to too much.
    """
    data = _read(Path(request["path"]))
    dataset, layout = _dataset(data)
    fields = Fields(dataset)
    header = _header(fields, layout)
    arrays: worker.Arrays = {}
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
    """The data set of a file, with its pixel data as stored.

    Raises:
        InputError: as ``parse_dicom``.
    """
    return _dataset(_read(path))[0]


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise InputError("the file is too large", got=f"{size >> 20} MB", expected=f"at most {MAX_FILE_BYTES >> 20} MB")
    return path.read_bytes()


def _dataset(data: bytes) -> tuple[Dataset, Layout]:
    layout = find_layout(data)
    if layout.transfer_syntax == DEFLATED:
        data = inflate(data, layout.start)
        layout = Layout(0, layout.transfer_syntax, implicit=False, big_endian=False)
        check_structure(data, layout)
        dataset = read_dataset(io.BytesIO(data), is_implicit_VR=False, is_little_endian=True)
        return _with_syntax(dataset, EXPLICIT_LITTLE), layout
    check_structure(data, layout)
    if layout.transfer_syntax is None:
        dataset = read_dataset(io.BytesIO(data), is_implicit_VR=layout.implicit, is_little_endian=True)
        syntax = IMPLICIT_LITTLE if layout.implicit else EXPLICIT_LITTLE
        return _with_syntax(dataset, syntax), layout
    return dcmread(io.BytesIO(data), force=True), layout


def _with_syntax(dataset: Dataset, syntax: str) -> Dataset:
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    implicit = syntax == IMPLICIT_LITTLE
    dataset.set_original_encoding(implicit, True)
    return dataset


def _header(fields: Fields, layout: Layout) -> dict[str, Any]:
    syntax = layout.transfer_syntax
    known = syntax is not None and UID(syntax).is_transfer_syntax
    return {
        "transfer_syntax": syntax if known else None if syntax is None else "?",
        "transfer_syntax_name": UID(syntax).name if known and syntax else "unknown",
        "modality": fields.code("Modality", MODALITIES),
        "photometric": fields.code("PhotometricInterpretation", PHOTOMETRIC),
        "image_types": [word for word in fields.words("ImageType") if word in IMAGE_TYPES],
        "sop_class": _class_name(fields),
        "body_part": fields.code("BodyPartExamined", BODY_PARTS),
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


def _decode(dataset: Dataset, header: dict[str, Any], max_bytes: int) -> worker.Array:
    """Stored values, (rows, columns), with several frames before and several samples after."""
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
        # pydicom assumes that all unused bits are above the image; an image in the upper bits must not be cut.
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


def _decode_jpeg(dataset: Dataset, header: dict[str, Any]) -> worker.Array:
    """One grey frame of JPEG baseline or extended; gdcm serves the colour ones and those of several frames."""
    pixels, jpeg_doubts = decode_grey(_only_frame(dataset), (header["rows"], header["columns"]))
    header["doubts"] += jpeg_doubts
    if not header["signed"] and header["bits_stored"] < 16 and header["high_bit"] in (None, header["bits_stored"] - 1):
        # Lossy values overshoot; without its upper bits a value beyond white would be black.
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
    if syntax is None or syntax == DEFLATED:
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
    """The error in our words, since the library may quote the header."""
    text = str(error)
    if "less than expected" in text or "insufficient pixel data" in text:
        return InputError("truncated: fewer pixels than the header declares", field="PixelData")
    if len(dataset.PixelData) == 0:
        return InputError("holds no pixel data", field="PixelData")
    return InputError(f"the image data is damaged: the decoder failed with {type(error).__name__}", field="PixelData")


def _add_luts(fields: Fields, header: dict[str, Any], arrays: worker.Arrays) -> None:
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


def _read_lut(item: Dataset, *, signed: bool) -> tuple[int, int, worker.Array]:
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
