"""Read, rewrite and encode one image: the task of the reading process, which no name or id leaves.

{path, key, burned_in}  ->  {patient, study, series, instance}: all new, and the file's new bytes
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRBigEndian

from radweave.base.errors import InputError
from radweave.data.deidentify.burned_in import refuse_burned_in
from radweave.data.deidentify.key import Key
from radweave.data.deidentify.rewrite import Rewriting
from radweave.data.deidentify.values import is_registered
from radweave.data.reading import wire
from radweave.data.reading.dicom_parse import dataset_of
from radweave.data.reading.worker import Task

config.settings.writing_validation_mode = config.IGNORE

_REFERRED: Final = {"study": "StudyInstanceUID", "series": "SeriesInstanceUID", "instance": "SOPInstanceUID"}


def parse_deidentify(request: dict[str, Any]) -> wire.Message:
    """See above.

    Raises:
        InputError: for what is no image of a class of DICOM's own, may bear text in its pixels (unless ``burned_in``),
            or cannot be rewritten.
    """
    dataset = dataset_of(Path(request["path"]))
    if "PixelData" not in dataset:
        raise InputError("is no image; only images are de-identified", field="PixelData")
    if not is_registered(str(dataset.get("SOPClassUID", ""))):
        raise InputError("is of a private or unknown kind, of which nobody knows what it holds", field="SOPClassUID")
    if not all(str(dataset.get(keyword, "")).strip(" \0") for keyword in _REFERRED.values()):
        raise InputError("names no study, series or instance", field="SOPInstanceUID")
    if not request.get("burned_in", False):
        refuse_burned_in(dataset)
    _clear_overlay_bits(dataset)
    Rewriting(dataset, Key(bytes.fromhex(request["key"]))).rewrite(dataset)
    found = {name: str(dataset[keyword].value) for name, keyword in _REFERRED.items()}
    encoded = np.frombuffer(_encoded(dataset), dtype=np.uint8)
    return {**found, "patient": str(dataset.PatientID)}, {"file": encoded}


def _encoded(dataset: Dataset) -> bytes:
    """The file: of its old meta information nothing stays but how the data set is encoded."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
    meta.TransferSyntaxUID = dataset.file_meta.TransferSyntaxUID
    dataset.file_meta = meta
    dataset.preamble = b"\0" * 128
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def _clear_overlay_bits(dataset: Dataset) -> None:
    """Overlays of older standards live in the unused bits of the pixels (PS3.5 Sec. 8.1.2): clear these.

    Raises:
        InputError: if the pixels are compressed, so that these bits cannot be cleared without decoding.
    """
    groups = {tag.group for tag in [*dataset.keys()] if tag.group & 0xFF00 == 0x6000 and not tag.is_private}
    positions = [dataset.get((group, 0x0102)) for group in groups if (group, 0x3000) not in dataset]
    if not any(position is not None and position.value for position in positions):
        return
    syntax = dataset.file_meta.TransferSyntaxUID
    stored, allocated, high = (int(dataset.get(name, 0)) for name in ("BitsStored", "BitsAllocated", "HighBit"))
    if syntax.is_compressed or allocated not in (8, 16) or not 0 < stored <= high + 1 <= allocated:
        raise InputError("an overlay lies in the bits of the pixels, where it cannot be removed", field="PixelData")
    kind = f"{'>' if syntax == ExplicitVRBigEndian and allocated == 16 else '<'}u{allocated // 8}"
    low = high + 1 - stored
    words = (np.frombuffer(dataset.PixelData, dtype=kind) >> low) & ((1 << stored) - 1)
    if int(dataset.get("PixelRepresentation", 0)) == 1 and low == 0:  # a sign fills the bits above
        words = np.where(words >> (stored - 1), words | (((1 << allocated) - 1) ^ ((1 << stored) - 1)), words)
    dataset.PixelData = (words << low).astype(kind).tobytes()


TASKS: Final[dict[str, Task]] = {"deidentify": parse_deidentify}
