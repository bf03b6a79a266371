"""Read, rewrite and encode one image: the task of the reading process, which no name or id leaves.

The pixels are decoded and encoded again, uncompressed, so that only their values remain: no segment of a compressed
frame, no profile, no bits above or below the stored ones, no bytes behind the last pixel.

{path, key, burned_in}  ->  {patient, study, series, instance}: all new, and the file's new bytes
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import generate_frames
from pydicom.filewriter import dcmwrite
from pydicom.uid import ExplicitVRLittleEndian

from radweave.core.errors import InputError
from radweave.data.deidentify.key import Key
from radweave.data.deidentify.rewrite import Rewriting, is_registered
from radweave.io import worker
from radweave.io.codestreams import doubts
from radweave.io.dicom_parse import dataset_of, parse_dicom
from radweave.io.raster_parse import LEFT_OVER
from radweave.io.worker import Task

# Refusal of kinds of images that often contain text; the pixels themselves are not examined.

_SECONDARY_CAPTURE: Final = "1.2.840.10008.5.1.4.1.1.7"
_TEXT_MODALITIES: Final = frozenset({"DOC", "ES", "GM", "IVUS", "OT", "SC", "SM", "US", "XC"})


def refuse_burned_in(dataset: Dataset) -> None:
    """Refuse an image that states burned-in text, or is of a kind that often has it and does not deny it.

    Raises:
        InputError: naming the decisive attribute.
    """
    stated = _text(dataset, "BurnedInAnnotation").upper()
    if stated == "NO":
        return
    if stated:
        raise _refusal("may bear text about the patient", "BurnedInAnnotation")
    sop_class = _text(dataset, "SOPClassUID")
    if sop_class == _SECONDARY_CAPTURE or sop_class.startswith(f"{_SECONDARY_CAPTURE}."):
        raise _refusal("is a secondary capture, which often bears text about the patient", "SOPClassUID")
    if _text(dataset, "ConversionType"):
        raise _refusal("was captured or scanned, and often bears text about the patient then", "ConversionType")
    if _text(dataset, "Modality").upper() in _TEXT_MODALITIES:
        raise _refusal("is of a kind that often bears text about the patient", "Modality")


def _refusal(reason: str, field: str) -> InputError:
    return InputError(f"{reason}; look at it, then allow burned-in text", field=field)


def _text(dataset: Dataset, keyword: str) -> str:
    try:
        value: Any = dataset.get(keyword)
    except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
        return "?"
    return "" if value is None else str(value).strip(" \0")


config.settings.writing_validation_mode = config.IGNORE

_REFERRED: Final = {"study": "StudyInstanceUID", "series": "SeriesInstanceUID", "instance": "SOPInstanceUID"}

# The colours that a decoder gives for those that a file is compressed in.
_DECODED_COLOURS: Final = {"YBR_ICT": "RGB", "YBR_RCT": "RGB", "YBR_FULL_422": "YBR_FULL"}


def parse_deidentify(request: dict[str, Any]) -> worker.Message:
    """De-identify one image, as described above.

    Raises:
        InputError: for anything but an image of a standard class, for possible text in pixels (unless ``burned_in``),
            and for an image that cannot be rewritten.
    """
    path = Path(request["path"])
    dataset = dataset_of(path)
    if "PixelData" not in dataset:
        raise InputError("is no image; only images are de-identified", field="PixelData")
    if not is_registered(str(dataset.get("SOPClassUID", ""))):
        raise InputError("is of a private or unknown kind, whose content is unspecified", field="SOPClassUID")
    if not all(str(dataset.get(keyword, "")).strip(" \0") for keyword in _REFERRED.values()):
        raise InputError("names no study, series or instance", field="SOPInstanceUID")
    if not request.get("burned_in", False):
        refuse_burned_in(dataset)
    pixels = _decoded(path, dataset)
    rewriting = Rewriting(dataset, Key(bytes.fromhex(request["key"])))
    rewriting.rewrite(dataset)
    _write_anew(dataset, pixels)
    uids = {name: str(dataset[keyword].value) for name, keyword in _REFERRED.items()}
    encoded = _encoded(dataset)
    if rewriting.traces.in_pixels(dataset.PixelData) or rewriting.traces.in_file(encoded):
        raise InputError("holds a name, a number or a date of the patient in its bytes", field="PixelData")
    return {**uids, "patient": str(dataset.PatientID)}, {"file": np.frombuffer(encoded, dtype=np.uint8)}


def _encoded(dataset: Dataset) -> bytes:
    """The encoded file, with a new preamble and new meta information."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta = meta
    dataset.preamble = b"\0" * 128
    buffer = io.BytesIO()
    dcmwrite(buffer, dataset, enforce_file_format=True)  # which also writes in the other byte order what was all read
    return buffer.getvalue()


def _decoded(path: Path, dataset: Dataset) -> worker.Array:
    """The stored values of the pixels: (frames,) rows, columns (, samples).

    Raises:
        InputError: if they cannot be decoded, or seem damaged, which a new encoding would hide.
    """
    header, arrays = parse_dicom({"path": str(path)})
    if header["pixel_refusal"]:
        raise InputError(header["pixel_refusal"]["reason"], field=header["pixel_refusal"]["field"])
    if set(header["doubts"]) - {LEFT_OVER}:
        frame = next(generate_frames(dataset.PixelData, number_of_frames=1))
        size = {"rows": header["rows"], "columns": header["columns"]}
        for doubt in doubts(frame, header["transfer_syntax"], **size, more=True):  # which is not written again
            raise InputError(f"may be damaged: {doubt}", field="PixelData")
    pixels = arrays["pixels"]
    frames, samples = header["frames"] or 1, header["samples"]
    shape = (
        *((frames,) if frames > 1 else ()),
        header["rows"],
        header["columns"],
        *((samples,) if samples > 1 else ()),
    )
    if pixels.shape != shape:
        raise InputError("has another number of frames or pixels than the header states", field="PixelData")
    return pixels


def _write_anew(dataset: Dataset, pixels: worker.Array) -> None:
    """Write pixels uncompressed, colours side by side, and of each word no more than its stored bits (PS3.5 8.1.1).

    Overlays of older standards live in the bits above and below these (PS3.5 Sec. 8.1.2).
    """
    stored, high = int(dataset.BitsStored), dataset.get("HighBit")
    allocated = 8 * pixels.dtype.itemsize
    stored = min(stored, allocated)
    high = min(stored - 1 if high is None else int(high), allocated - 1)
    if high + 1 < stored:
        raise InputError("does not fit BitsStored", field="HighBit")
    low = high + 1 - stored
    unsigned = np.dtype(f"<u{allocated // 8}")
    words = (pixels.astype(pixels.dtype.newbyteorder("<")).view(unsigned) >> low) & ((1 << stored) - 1)
    if int(dataset.get("PixelRepresentation", 0)) == 1 and low == 0:  # a sign fills the bits above
        words = np.where(words >> (stored - 1), words | (((1 << allocated) - 1) ^ ((1 << stored) - 1)), words)
    one_bit = int(dataset.BitsAllocated) == 1
    data = np.packbits(words, bitorder="little").tobytes() if one_bit else (words << low).astype(unsigned).tobytes()
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 1 if one_bit else allocated, stored, high
    if int(dataset.SamplesPerPixel) > 1:
        dataset.PlanarConfiguration = 0
        photometric = str(dataset.PhotometricInterpretation).strip()
        dataset.PhotometricInterpretation = _DECODED_COLOURS.get(photometric, photometric)
    dataset.PixelData = data + b"\0" * (len(data) % 2)
    dataset["PixelData"].VR = "OW" if allocated > 8 else "OB"
    dataset["PixelData"].is_undefined_length = False


TASKS: Final[dict[str, Task]] = {"deidentify": parse_deidentify}
