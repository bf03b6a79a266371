"""Words of names and ids in a DICOM header, as salted digests, to find them again in a text."""

from __future__ import annotations

import hashlib
import re
from itertools import permutations
from typing import Final

from radweave.data.earlier import ways
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

PERSONS: Final = frozenset(name for name in NAMING if "ID" not in name and "Number" not in name)

_WORD: Final = re.compile(r"[^\W_]+")
SHORTEST_NAME: Final = 2
SHORTEST_NUMBER: Final = 3
SHORTEST_JOINED: Final = 4
SHORTEST_BARE: Final = 4
"""Digits of an id that had leading zeros."""
MOST_NAMES: Final = 6
"""Names of a person that are run together with one another."""


def word_key(word: str, salt: str) -> str:
    """A digest of a word, without regard to case; of no use without the salt."""
    return hashlib.sha256(f"{salt}\0{word.casefold()}".encode("utf-8", "replace")).hexdigest()[:16]


def word_keys(fields: Fields, salt: str) -> list[str]:
    """Digests of all words in the naming attributes, and of what they are together: names of two characters or more."""
    found: set[str] = set()
    for name in NAMING:
        # A person's name and a list of several both print with all their parts.
        text = str(fields.raw(name) or "")
        found |= spellings(text) if name in PERSONS else number_spellings(text)
    return sorted(word_key(word, salt) for word in found)


def spellings(name: str) -> set[str]:
    """The words of a person's name in lower case, and these run together: two or three, or one with an initial.

    Each also without the marks on its letters.
    """
    words = [word.casefold() for word in _WORD.findall(name)]
    found = {word for word in words if len(word) >= SHORTEST_NAME}
    for several in (2, 3):
        found |= {"".join(order) for order in permutations(words[:MOST_NAMES], several)}
    for one, other in permutations(words[:MOST_NAMES], 2):
        found |= {one + other[0], other[0] + one} if len(one) >= SHORTEST_JOINED else set()
    found = {word for word in found if word in words or len(word) >= SHORTEST_JOINED or not word.isascii()}
    return found | {way for word in found for way in ways(word) if len(way) >= SHORTEST_NAME}


def number_spellings(text: str) -> set[str]:
    """The words of an id in lower case, the whole of it without what separates them, and without leading zeros."""
    words = [word.casefold() for word in _WORD.findall(text)]
    found = {word for word in (*words, "".join(words)) if len(word) >= SHORTEST_NUMBER}
    bare = (word.lstrip("0") for word in found if word.isdigit())
    return found | {word for word in bare if len(word) >= SHORTEST_BARE}
