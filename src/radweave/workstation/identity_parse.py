"""Parse the identity of a DICOM file in the sandbox, for reports that return to the same patient.

Elsewhere headers leave the sandbox as numbers and known codes. Here names and ids do, since a report needs them.
An invalid identifying value is refused, an invalid describing one left out with a warning; none is truncated.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from pydicom.charset import python_encoding
from pydicom.dataset import Dataset
from pydicom.multival import MultiValue
from pydicom.sequence import Sequence

from radweave.core.errors import InputError
from radweave.io import worker
from radweave.io.dicom_fields import Fields
from radweave.io.dicom_parse import dataset_of
from radweave.io.worker import Task

UID: Final = re.compile(r"[1-9]\d*|0|(?:(?:[1-9]\d*|0)\.)+(?:[1-9]\d*|0)", re.ASCII)
_AGE: Final = re.compile(r"\d{3}[DWMY]", re.ASCII)
_DATE: Final = re.compile(r"(\d{4})\.?(0[1-9]|1[0-2])\.?(0[1-9]|[12]\d|3[01])", re.ASCII)
_TIME: Final = re.compile(r"([01]\d|2[0-3])(?::?([0-5]\d)(?::?([0-5]\d|60)(\.\d{1,6})?)?)?", re.ASCII)

IDENTIFYING: Final = {
    "PatientName": 64, "PatientID": 64, "IssuerOfPatientID": 64, "AccessionNumber": 16,
    "StudyInstanceUID": 64, "SeriesInstanceUID": 64, "SOPInstanceUID": 64, "SOPClassUID": 64,
}  # fmt: skip
"""Field -> its longest value by PS3.5 Table 6.2-1; of a name, of each of its three groups."""
DESCRIBING: Final = {
    "PatientBirthDate": 8, "PatientSex": 16, "PatientAge": 4, "StudyID": 16, "StudyDate": 8, "StudyTime": 16,
    "ReferringPhysicianName": 64, "StudyDescription": 64, "Modality": 16, "BodyPartExamined": 16,
    "PatientIdentityRemoved": 16, "DeidentificationMethod": 64, "FrameOfReferenceUID": 64,
    "RequestedProcedurePriority": 16,
}  # fmt: skip
DISPLAY: Final = "Display"
_NAMES: Final = ("PatientName", "ReferringPhysicianName")
_NUMBERS: Final = ("Rows", "Columns")


def parse_identity(request: dict[str, Any]) -> worker.Message:
    """The identity in the header of the file ``path``: field -> text, and ``warnings``.

    Raises:
        InputError: for an invalid identifying value, naming the field and never the value.
    """
    dataset = dataset_of(Path(request["path"]))
    unstated = _charset(dataset)
    fields: dict[str, Any] = {}
    warnings: list[str] = []
    for keyword, longest in IDENTIFYING.items():
        text = _text(dataset, keyword)
        problem = _problem(keyword, text, longest)
        if problem:
            raise InputError(f"{problem}; no report is written for it", field=keyword)
        fields[keyword] = text
    for keyword, longest in DESCRIBING.items():
        text = _text(dataset, keyword)
        text, problem = _usual(keyword, text), _problem(keyword, _usual(keyword, text), longest)
        if problem:
            warnings.append(f"{keyword} {problem}; it is left out")
        fields[keyword] = "" if problem else text
    if unstated and not all(str(value).isascii() for value in fields.values()):
        warnings.append("the file states no character set for its names; they are taken as Latin-1")
    for keyword in _NUMBERS:
        value = dataset.get(keyword)
        fields[keyword] = value if isinstance(value, int) and 0 < value < 1 << 16 else None
    return {**fields, DISPLAY: _display(dataset), "warnings": warnings}, {}


def _display(dataset: Dataset) -> dict[str, Any]:
    """Grey values and place of an image as its header states them; what cannot be used is left out.

    ``window`` is (center, width): the first one of the file, or the range of its table. PS3.3 C.7.6.2, C.11.1, C.11.2.
    """
    center, width = _numbers(dataset, "WindowCenter", None), _numbers(dataset, "WindowWidth", None)
    window = (center[0], width[0]) if center and width and width[0] >= 1 else None
    descriptor = _numbers(_first(dataset, "VOILUTSequence"), "LUTDescriptor", 3)
    if window is None and descriptor is not None:
        count = descriptor[0] or 1 << 16
        window = (descriptor[1] + count / 2, count)
    slope, intercept = _numbers(dataset, "RescaleSlope", 1), _numbers(dataset, "RescaleIntercept", 1)
    function = str(dataset.get("VOILUTFunction") or "")
    spacing, *others = (
        _positive(dataset, name) for name in ("PixelSpacing", "ImagerPixelSpacing", "PixelAspectRatio")
    )  # fmt: skip
    sides = next((pair for pair in (spacing, *others) if pair is not None), (1.0, 1.0))
    return {
        "is_localizer": "LOCALIZER" in str(dataset.get("ImageType") or ""),
        "is_inverted": dataset.get("PhotometricInterpretation") == "MONOCHROME1",
        "has_table": _first(dataset, "ModalityLUTSequence") is not None,
        "rescale": (slope[0], intercept[0]) if slope and intercept else None,
        "window": window,
        "function": function if function in ("LINEAR_EXACT", "SIGMOID") else "LINEAR",
        "position_lps": _numbers(dataset, "ImagePositionPatient", 3),
        "orientation": _numbers(dataset, "ImageOrientationPatient", 6),
        "spacing_mm": spacing,
        "pixel_ratio": sides[0] / sides[1],
    }


def _positive(dataset: Dataset, keyword: str) -> tuple[float, ...] | None:
    """Two positive numbers of a field; None where they are not."""
    numbers = _numbers(dataset, keyword, 2)
    return numbers if numbers is not None and min(numbers) > 0 else None


def _first(dataset: Dataset, keyword: str) -> Dataset | None:
    sequence = dataset.get(keyword)
    return sequence[0] if isinstance(sequence, Sequence) and len(sequence) else None


def _numbers(dataset: Dataset | None, keyword: str, count: int | None) -> tuple[float, ...] | None:
    """The numbers of a field; None where they are not ``count`` (None: at least one) finite numbers."""
    numbers = None if dataset is None else Fields(dataset).numbers(keyword)
    return tuple(numbers) if numbers is not None and count in (None, len(numbers)) else None


def _charset(dataset: Dataset) -> bool:
    """Check the character set; True if the file states none.

    Raises:
        InputError: if it is unknown.
    """
    stated = dataset.get("SpecificCharacterSet") or ""
    names = [str(name) for name in stated] if isinstance(stated, (list, MultiValue)) else [str(stated)]
    if any(name not in python_encoding for name in names):
        raise InputError("is none that DICOM defines; no report is written for it", field="SpecificCharacterSet")
    return not any(names)


def _text(dataset: Dataset, keyword: str) -> str:
    try:
        value = dataset.get(keyword)
    except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
        raise InputError("cannot be read; no report is written for it", field=keyword) from None
    if isinstance(value, MultiValue):
        return "\\".join(map(str, value))
    return "" if value is None else str(value).strip(" \0")


def _usual(keyword: str, text: str) -> str:
    """Dates and times of older standards in the current form."""
    if keyword.endswith("Date") and (match := _DATE.fullmatch(text)):
        return "".join(match.groups())
    if keyword.endswith("Time") and (match := _TIME.fullmatch(text)):
        return "".join(part or "" for part in match.groups())
    return text


_SHAPES: Final[Mapping[str, Callable[[str], object]]] = {
    "PatientSex": ("M", "F", "O").__contains__,
    "PatientAge": _AGE.fullmatch,
    "PatientIdentityRemoved": ("YES", "NO").__contains__,
    "Modality": re.compile("[A-Z0-9 _]+").fullmatch,
    "BodyPartExamined": re.compile("[A-Z0-9 _]+").fullmatch,
}


def _problem(keyword: str, text: str, longest: int) -> str | None:
    """The problem of a value; None for a valid one."""
    if not text:
        return None
    if "\ufffd" in text:
        return "cannot be read in the character set that the file states"
    if any(unicodedata.category(sign) in ("Cc", "Cs", "Cn") for sign in text):
        return "holds control characters"
    if "\\" in text:
        return "holds several values"
    parts = text.split("=") if keyword in _NAMES else [text]
    if len(parts) > 3:
        return "holds more than three groups"
    if any(len(part) > longest for part in parts):
        return f"is longer than DICOM allows ({max(map(len, parts))} characters, at most {longest})"
    return None if _has_shape(keyword, text) else "is not a value of its kind"


def _has_shape(keyword: str, text: str) -> bool:
    if keyword.endswith("UID"):
        return UID.fullmatch(text) is not None
    if keyword.endswith("Date"):
        return _is_day(text)
    if keyword.endswith("Time"):
        return _TIME.fullmatch(text) is not None
    return keyword not in _SHAPES or bool(_SHAPES[keyword](text))


def _is_day(text: str) -> bool:
    """True for a day of the calendar: FHIR and HL7 refuse the 30th of February."""
    match = _DATE.fullmatch(text)
    try:
        return match is not None and bool(date(*map(int, match.groups())))
    except ValueError:
        return False


TASKS: Final[dict[str, Task]] = {"identity": parse_identity}
