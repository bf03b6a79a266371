"""Header values of a DICOM data set as plain numbers and known codes, never as free text.

Runs in the reading process. A value leaves it only as a number, as one of the listed codes, or (identifiers) as
the beginning of a SHA-256 digest: what a site typed into a field cannot reach a message or a log.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from pydicom.dataset import Dataset

from radweave.data.reading.dicom_codes import BODY_PARTS, VIEW_CODES, VIEW_POSITIONS

DIGEST_CHARS = 16


class Fields:
    """Safe access to one data set; what cannot be read is noted in ``invalid`` by the field's name."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.invalid: list[str] = []

    def raw(self, keyword: str) -> Any:
        try:
            return self._dataset.get(keyword)
        except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
            self.invalid.append(keyword)
            return None

    def numbers(self, keyword: str) -> list[float] | None:
        """All values as finite floats; None if absent or any of them is not a finite number."""
        value = self.raw(keyword)
        if value is None or value == "":
            return None
        values = list(value) if hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) else [value]
        try:
            floats = [float(v) for v in values]
        except (TypeError, ValueError, OverflowError):
            floats = [math.nan]
        if not floats:
            return None
        if not all(math.isfinite(v) for v in floats):
            self.invalid.append(keyword)
            return None
        return floats

    def number(self, keyword: str) -> float | None:
        values = self.numbers(keyword)
        return None if values is None else values[0]

    def integer(self, keyword: str) -> int | None:
        value = self.number(keyword)
        if value is not None and value != int(value):
            self.invalid.append(keyword)
            return None
        return None if value is None else int(value)

    def code(self, keyword: str, known: frozenset[str]) -> str | None:
        """The first value if it is a known code, "?" if it is another one, None if there is none."""
        words = self.words(keyword)
        if not words:
            return None
        return words[0] if words[0] in known else "?"

    def words(self, keyword: str) -> list[str]:
        value = self.raw(keyword)
        if value is None:
            return []
        values = [value] if isinstance(value, str) else value if hasattr(value, "__iter__") else [value]
        return [text for text in (str(v).strip().upper() for v in values) if text]

    def digest(self, *keywords: str) -> str | None:
        """A short digest that groups files of one study or patient and tells nobody whose they are."""
        values = ["".join(self.words(keyword)) for keyword in keywords]
        if not values[0]:
            return None
        return hashlib.sha256("\0".join(values).encode("utf-8", "replace")).hexdigest()[:DIGEST_CHARS]


def view_of(fields: Fields) -> str | None:
    """PA, AP, FRONTAL or LATERAL, from the view's code, the view position or the patient's orientation."""
    sequence = fields.raw("ViewCodeSequence")
    if sequence:
        try:
            code = str(sequence[0].get("CodeValue", "")).strip()
        except (AttributeError, IndexError, TypeError):
            code = ""
        if code in VIEW_CODES:
            return VIEW_CODES[code]
    position = " ".join(fields.words("ViewPosition"))
    if position in VIEW_POSITIONS:
        return VIEW_POSITIONS[position]
    for word in position.replace("_", " ").split():
        if word in VIEW_POSITIONS:
            return VIEW_POSITIONS[word]
    for keyword in ("ProtocolName", "SeriesDescription", "AcquisitionDeviceProcessingDescription"):
        words = " ".join(fields.words(keyword)).replace("_", " ").replace(",", " ").replace(".", " ").split()
        named = {VIEW_POSITIONS[word] for word in words if word in ("PA", "AP", "LAT", "LATERAL")}
        if len(named) == 1:
            return named.pop()
    return _view_from_orientation(fields.words("PatientOrientation"))


def _view_from_orientation(orientation: list[str]) -> str | None:
    """PS3.3 C.7.6.1.1.1: the first value is the direction of the rows, across a frontal view or along a lateral one."""
    if not orientation or len(orientation) != 2:
        return None
    return {"L": "FRONTAL", "R": "FRONTAL", "A": "LATERAL", "P": "LATERAL"}.get(orientation[0][:1])


def laterality_of(fields: Fields) -> str | None:
    """L, R, B (both) or U (unpaired) of the image, else of the series (PS3.3 C.7.3.1 and C.8.11.7)."""
    known = frozenset({"L", "R", "B", "U"})
    found = (fields.code(keyword, known) for keyword in ("ImageLaterality", "Laterality"))
    return next((code for code in found if code in known), None)


def orientation_of(fields: Fields) -> list[str]:
    """Where rows and columns run to (PS3.3 C.7.6.1.1.1), as ["L", "F"]; empty where it is not stated so."""
    words = fields.words("PatientOrientation")
    fits = len(words) == 2 and all(len(word) <= 3 and set(word) <= set("APRLHF") for word in words)
    return words if fits else []


def body_part_of(fields: Fields) -> str | None:
    """A known code, "?" for another one, None where the field is absent."""
    return fields.code("BodyPartExamined", BODY_PARTS)
