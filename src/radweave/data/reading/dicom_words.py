"""Words of names and ids in a DICOM header, as salted digests, to find them again in a text."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from radweave.data.reading.dicom_fields import Fields

NAMING: Final = (
    "PatientName",
    "OtherPatientNames",
    "PatientBirthName",
    "PatientMotherBirthName",
    "PatientID",
    "OtherPatientIDs",
    "AccessionNumber",
    "StudyID",
    "ReferringPhysicianName",
    "PerformingPhysicianName",
    "NameOfPhysiciansReadingStudy",
    "RequestingPhysician",
    "PhysiciansOfRecord",
    "OperatorsName",
)
"""Attributes of PS3.15 Table E.1-1 that name a person or a record in few words."""

_WORD: Final = re.compile(r"[^\W_]+")
_SHORTEST = 3


def word_key(word: str, salt: str) -> str:
    """A digest of a word, without regard to case; of no use without the salt."""
    return hashlib.sha256(f"{salt}\0{word.casefold()}".encode("utf-8", "replace")).hexdigest()[:16]


def word_keys(fields: Fields, salt: str) -> list[str]:
    """Digests of all words of three characters or more in the naming attributes."""
    # A person's name and a list of several both print with all their parts.
    words = {word for name in NAMING for word in _WORD.findall(str(fields.raw(name) or ""))}
    return sorted(word_key(word, salt) for word in words if len(word) >= _SHORTEST)
