"""Header values of a DICOM data set as plain numbers and known codes, never as free text.

Runs in the reading process. A value leaves it only as a number, as one of the listed codes, or (identifiers) as
the beginning of a SHA-256 digest: what a site typed into a field cannot reach a message or a log.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

from pydicom.dataset import Dataset

from radweave.data.reading.dicom_codes import (
    BODY_PARTS,
    CHEST_PARTS,
    CHEST_REGIONS,
    CHEST_SIGNS,
    CHEST_WORDS,
    OTHER_PARTS,
    OTHER_REGIONS,
    OTHER_SIGNS,
    OTHER_WORDS,
    PARTLY_CHEST,
    VIEW_CODES,
    VIEW_POSITIONS,
)

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


CHEST, PARTLY, OTHER, CONFLICT = "chest", "partly", "other", "conflict"
_OF_THE_IMAGE: Final = ("SeriesDescription", "ProtocolName", "AcquisitionDeviceProcessingDescription", "ViewPosition")
_OF_THE_STUDY: Final = (
    "StudyDescription", "PerformedProcedureStepDescription", "RequestedProcedureDescription",
)  # fmt: skip
_REGIONS: Final = ("AnatomicRegionSequence", "PrimaryAnatomicStructureSequence")
_WORD: Final = re.compile(r"[^\W\d_]+")


def anatomy_of(fields: Fields) -> str | None:
    """``CHEST``, ``PARTLY``, ``OTHER`` or ``CONFLICT``, by all fields that name a part of the body; None if none does.

    Body part, coded regions and the series' descriptions are about the image, and must not contradict each other. Those
    of the study are about all of its images (an abdominal series has a chest too), and count where nothing else does.
    """
    named = {_of_part(value) for value in fields.words("BodyPartExamined")} - {None}
    about_image = [_joined(named), _joined(_of_regions(fields)), _of_texts(fields, _OF_THE_IMAGE)]
    stated = {kind for kind in about_image if kind is not None}
    if CONFLICT in stated or (OTHER in stated and len(stated) > 1):
        return CONFLICT
    return _joined(stated) or _of_texts(fields, _OF_THE_STUDY)


def _joined(kinds: Iterable[str | None]) -> str | None:
    """Of values in one field: what shows a chest among others, as chest and abdomen do, shows a chest."""
    found = set(kinds)
    return next((kind for kind in (CONFLICT, CHEST, PARTLY, OTHER) if kind in found), None)


def _of_part(value: str) -> str | None:
    """Of a body part, also where it is in the site's own words, or joined as ``UP_EXM`` and ``T SPINE`` are."""
    plain = _plain(value)
    for term in (plain, re.sub(r"[\W_]+", "", plain)):
        for kind, parts in ((CHEST, CHEST_PARTS), (PARTLY, PARTLY_CHEST), (OTHER, OTHER_PARTS)):
            if term in parts:
                return kind
    return _of_words(plain, others=OTHER_WORDS | OTHER_PARTS)


def _of_regions(fields: Fields) -> set[str | None]:
    kinds: set[str | None] = set()
    for keyword in _REGIONS:
        for item in fields.raw(keyword) or ():
            try:
                code, meaning = (str(item.get(name, "") or "").strip() for name in ("CodeValue", "CodeMeaning"))
            except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
                fields.invalid.append(keyword)
                continue
            if code in CHEST_REGIONS or code in OTHER_REGIONS:
                kinds.add(CHEST if code in CHEST_REGIONS else OTHER)
            else:
                kinds.add(_of_part(meaning))
    return kinds


def _of_texts(fields: Fields, keywords: Iterable[str]) -> str | None:
    return _of_words(" ".join(_plain(text) for keyword in keywords for text in fields.words(keyword)))


def _of_words(plain: str, others: frozenset[str] = OTHER_WORDS) -> str | None:
    words = set(_WORD.findall(plain))
    if words & CHEST_WORDS or any(sign in plain for sign in CHEST_SIGNS):
        return CHEST
    return OTHER if words & others or any(sign in plain for sign in OTHER_SIGNS) else None


def _plain(text: str) -> str:
    """Upper case, without accents."""
    apart = unicodedata.normalize("NFKD", text.upper())
    return unicodedata.normalize("NFC", "".join(sign for sign in apart if not unicodedata.combining(sign)))
