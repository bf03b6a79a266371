"""Rewrite the data set of one image, element by element, sequences and all. Runs in the reading process.

What the table names is done as it says. A safety net is below: private attributes, curves, overlays, attributes that
the dictionary does not know, values that are none of their kind, long texts and names go in any case; dates move, UIDs
are replaced; and a word that the header said of the patient, however it is spelled, or a date of it goes wherever else
it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableSequence
from typing import Final

from pydicom.datadict import dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.tag import BaseTag, Tag

from radweave.base.errors import InputError
from radweave.data.deidentify.key import Key
from radweave.data.deidentify.profile import table
from radweave.data.deidentify.values import (
    BYTES,
    DUMMIES,
    LONG_TEXTS,
    NUMBERS,
    TEXTS,
    each,
    is_of_its_kind,
    is_registered,
    moved,
)
from radweave.data.earlier import ways

METHOD: Final = "Radweave: PS3.15 E.1 basic profile, dates modified"
_OPTIONS: Final = (
    ("113100", "Basic Application Confidentiality Profile"),
    ("113107", "Retain Longitudinal Temporal Information Modified Dates Option"),
)
# Of a person's birth, and where a photograph was taken: no dates of the examination, so the option does not keep them.
_NO_OPTION: Final = frozenset({0x00100030, 0x00100032, 0x00160077, 0x0016008D})
# LongCodeValue, URNCodeValue, CodingSchemeUID: a long text and a UID by their representation, and neither in meaning.
_CODES: Final = frozenset({0x00080119, 0x00080120, 0x0008010C})
_NAMING: Final = frozenset({0x00080050, 0x00100020, 0x00100021, 0x00101000, 0x00200010})
_PIXELS: Final = frozenset({0x7FE00008, 0x7FE00009, 0x7FE00010})
_WORD: Final = re.compile(r"[^\W_]+")
_NO_DIGIT: Final = re.compile(r"[^0-9]+")
SHORTEST_WORD: Final = 3
SHORTEST_SIGNS: Final = 2
"""In scripts other than Latin, where names are short and stand without blanks around them."""
SHORTEST_IN_BYTES: Final = 6
"""Shorter words stand in an image's bytes by chance."""


class Rewriting:
    """One image's way: whose it is, what is said of them, and the values that take their places.

    Raises:
        InputError: if it says neither whose nor of which study it is.
    """

    def __init__(self, dataset: Dataset, key: Key) -> None:
        self._key = key
        who = (_plain(dataset, "PatientID"), _plain(dataset, "IssuerOfPatientID"))
        study = _plain(dataset, "StudyInstanceUID")
        if not (who[0] or study):
            raise InputError("says neither whose it is nor of which study", field="PatientID")
        # An image of nobody: what is known is that the images of its study belong together.
        person = who if who[0] else ("study", study, "")
        self.pseudonym, self._days = key.pseudonym(*person), key.days(*person)
        self.words = frozenset(_words(dataset))
        self._dates = frozenset(_dates(dataset))
        self._signs = frozenset(word for word in self.words if not word.isascii())

    def rewrite(self, dataset: Dataset) -> None:
        """Change a data set in place.

        Raises:
            InputError: if a word about the patient stands in its pixel data.
        """
        self._clean(dataset)
        dataset.PatientName = dataset.PatientID = self.pseudonym
        dataset.PatientIdentityRemoved = "YES"
        dataset.DeidentificationMethod = METHOD
        dataset.DeidentificationMethodCodeSequence = [_option(*option) for option in _OPTIONS]
        dataset.LongitudinalTemporalInformationModified = "MODIFIED"
        _state_character_set(dataset)

    def _clean(self, dataset: Dataset) -> None:
        for tag in list(dataset.keys()):
            element = _element(dataset, tag)
            if element is None or not self._keep(element):
                del dataset[tag]

    def _keep(self, element: DataElement) -> bool:
        """Change an element in place; whether it stays."""
        action, vr = table().get(int(element.tag)), _vr(element)
        if action == "remove" and not self._moves(element):
            return False
        if vr == "SQ":
            return self._keep_items(element, action)
        if vr in ("DA", "DT") and self._moves(element):
            return self._move(element, action)
        if vr == "TM" and self._moves(element) and _all_of_its_kind(element):
            return True  # the days move, the time of day stays
        if vr == "UI" and int(element.tag) not in _CODES:
            element.value = each(element.value, self._uid) if element.value else ""
            return action != "remove"
        if action is not None:
            element.value = DUMMIES[vr] if action == "replace" else None if vr in NUMBERS else ""
            return action != "remove"
        return self._keep_unlisted(element)

    def _keep_items(self, element: DataElement, action: str | None) -> bool:
        if action == "empty":
            element.value = Sequence()
        for item in element.value:
            self._clean(item)
        return action in (None, "empty", "walk")

    def _moves(self, element: DataElement) -> bool:
        return _vr(element) in ("DA", "DT", "TM") and int(element.tag) not in _NO_OPTION

    def _move(self, element: DataElement, action: str | None) -> bool:
        values = each(element.value, lambda text: moved(_vr(element), text.strip(" \0"), self._days))
        if not element.value or None in (values if isinstance(values, list) else [values]):
            values = DUMMIES[_vr(element)] if action == "replace" else ""
        element.value = values
        return bool(values) or action != "remove"

    def _uid(self, text: str) -> str:
        text = text.strip(" \0")
        return text if not text or is_registered(text) else self._key.uid(text)

    def _keep_unlisted(self, element: DataElement) -> bool:
        """The safety net for what the table does not name."""
        vr, tag = _vr(element), int(element.tag)
        if vr in LONG_TEXTS and tag not in _CODES:
            return False
        if vr in BYTES:
            self._refuse_words(element)
            return vr != "UN"
        if vr in NUMBERS:
            return True
        if not _all_of_its_kind(element):
            return False
        if vr in TEXTS or tag in _CODES:
            element.value = each(element.value, self._text) if element.value else ""
        return True

    def _text(self, text: str) -> str:
        folded = text.casefold()
        words = {way for word in _WORD.findall(folded) for way in (word, *ways(word))}
        bears = bool(words & self.words) or any(word in folded for word in self._signs)
        digits = _NO_DIGIT.sub("", text)
        bears = bears or any(date in digits for date in self._dates)
        readable = "\ufffd" not in text and all(sign.isprintable() for sign in text)
        return text if readable and not bears else "REMOVED"

    def _refuse_words(self, element: DataElement) -> None:
        value = element.value
        if not isinstance(value, bytes):
            return
        lower = value.lower()
        for word in self.words:
            told = len(word.encode()) >= SHORTEST_IN_BYTES and len(set(word)) > 2  # "000000" is a grey area
            if told and word.encode() in lower:
                where = "PixelData" if int(element.tag) in _PIXELS else element.keyword
                raise InputError("holds a word of the patient's name or number in its bytes", field=where)


def _element(dataset: Dataset, tag: BaseTag) -> DataElement | None:
    """An element that may stay if its value may; None for one that goes whatever it says."""
    if tag.is_private or tag.group < 0x0008 or tag.element == 0 or tag.group & 0xFF00 in (0x5000, 0x6000):
        return None
    try:
        known = dictionary_VR(tag)
        element = dataset[tag]
        _ = element.value
    except Exception:  # unknown, or a value that pydicom cannot convert: it may raise nearly anything
        return None
    # A number that a file calls a text is read as that text.
    if element.tag == Tag("SpecificCharacterSet") or element.VR not in (known, *known.split(" or "), "UN"):
        return None
    return element


def _vr(element: DataElement) -> str:
    """The representation, or the first of those that are possible."""
    return str(element.VR).split(" or ")[0]


def _all_of_its_kind(element: DataElement) -> bool:
    fits: list[bool] = []
    each(element.value, lambda text: fits.append(is_of_its_kind(_vr(element), text.strip(" \0"))))
    return all(fits) or not element.value


def _elements(dataset: Dataset) -> Iterator[DataElement]:
    """Every element anywhere in a data set that can be read, those in sequences too."""
    for tag in list(dataset.keys()):
        element = _element(dataset, tag)
        if element is None:
            continue
        if element.VR == "SQ":
            for item in element.value:
                yield from _elements(item)
        else:
            yield element


def _texts(element: DataElement) -> list[str]:
    several = element.value if isinstance(element.value, MutableSequence) else [element.value]
    return [str(one) for one in several]


def _words(dataset: Dataset) -> set[str]:
    """The words that are long enough in names and numbers of persons, in lower case, anywhere in a data set."""
    found: set[str] = set()
    for element in _elements(dataset):
        if element.VR == "PN" or int(element.tag) in _NAMING:
            words = {word.casefold() for one in _texts(element) for word in _WORD.findall(one)}
            found |= words | {way for word in words for way in ways(word)}
    return {word for word in found if len(word) >= (SHORTEST_WORD if word.isascii() else SHORTEST_SIGNS)}


def _dates(dataset: Dataset) -> set[str]:
    """The dates anywhere in a data set as digits, in the three orders that are usual."""
    found: set[str] = set()
    for element in _elements(dataset):
        if element.VR in ("DA", "DT"):
            for digits in (_NO_DIGIT.sub("", one)[:8] for one in _texts(element)):
                year, month, day = digits[:4], digits[4:6], digits[6:]
                found |= {digits, f"{day}{month}{year}", f"{month}{day}{year}"} if len(digits) == 8 else set()
    return found


def _plain(dataset: Dataset, keyword: str) -> str:
    try:
        value = dataset.get(keyword)
    except Exception:  # see ``_element``
        return ""
    return "" if value is None else str(value).strip(" \0")


def _option(code: str, meaning: str) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code, "DCM", meaning
    return item


def _state_character_set(dataset: Dataset) -> None:
    """UTF-8 where ASCII does not hold what stays."""
    texts = (element.value for element in dataset.iterall() if element.VR not in (*BYTES, "SQ"))
    if not all(str(value).isascii() for value in texts):
        dataset.SpecificCharacterSet = "ISO_IR 192"
