"""Rewrite the data set of one image, element by element, including sequences. Runs in the reading process.

Attributes in the table are treated as it says. A safety net covers the rest: private attributes, curves, overlays,
unknown attributes, malformed values, long texts, names and bytes are removed; dates move, UIDs are replaced; and a text
with a trace of the patient (``traces.py``), or any date or long number, is removed. Bytes stay only in lookup tables,
limited to the number of entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from contextlib import suppress
from datetime import date, timedelta
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, Literal

import numpy as np
from pydicom.datadict import dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.tag import BaseTag, Tag
from pydicom.uid import UID, ExplicitVRBigEndian

from radweave.core.errors import InputError
from radweave.data.deidentify.key import Key
from radweave.data.deidentify.traces import Traces
from radweave.io.dicom_fields import (
    BODY_PARTS,
    IMAGE_TYPES,
    LUT_SHAPES,
    MODALITIES,
    PHOTOMETRIC,
    PRESENTATION_INTENTS,
    RESCALE_TYPES,
    VIEW_POSITIONS,
    VOI_FUNCTIONS,
)

# The table of the profile (PS3.15 Table E.1-1), and its open choices.
#
# The standard leaves some choices to the object's definition ("X/Z/D": remove, unless its kind requires the attribute).
# No object loses a required attribute: emptying comes before removal, replacement before emptying. Sequences that would
# need a replacement are removed, since a made-up item describes nobody.

Action = Literal["remove", "empty", "replace", "uid", "walk"]

_ACTIONS: Final[Mapping[str, Action]] = {
    "X": "remove", "Z": "empty", "X/Z": "empty", "D": "replace", "Z/D": "replace", "X/D": "replace",
    "X/Z/D": "replace", "U": "uid", "X/Z/U*": "walk",
}  # fmt: skip


@lru_cache(maxsize=1)
def table() -> Mapping[int, Action]:
    """Tag -> action."""
    lines = (files(__package__) / "profile.txt").read_text(encoding="ascii").splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {int(row[0], 16): _ACTIONS[row[1]] for row in rows}


# Values by representation (PS3.5 Table 6.2-1): valid forms, moved dates, dummies.

_DATE: Final = re.compile(r"(\d{4})([.-]?)(\d\d)\2(\d\d)")
_DATE_TIME: Final = re.compile(r"(\d{8})((?:\d\d){0,3}(?:\.\d{1,6})?(?:[+-]\d{4})?)")

SHAPES: Final[Mapping[str, re.Pattern[str]]] = {
    "AS": re.compile(r"\d{3}[DWMY]"),
    "CS": re.compile(r"[A-Za-z0-9 _]{1,16}"),  # lower case is not allowed, and common
    "DS": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"),
    "IS": re.compile(r"[+-]?\d{1,12}"),
    "TM": re.compile(r"([01]\d|2[0-3])(:?[0-5]\d(:?([0-5]\d|60)(\.\d{1,6})?)?)?"),
    "UI": re.compile(r"[0-9.]{1,64}"),
}
"""Valid forms; other values may be free text and are removed."""
TEXTS: Final = frozenset({"CS", "LO", "SH"})
"""Short texts (names of things, units, codes), removed if they contain a word of the patient."""
LONG_TEXTS: Final = frozenset({"AE", "LT", "PN", "ST", "UC", "UR", "UT"})
NUMBERS: Final = frozenset({"US", "SS", "UL", "SL", "UV", "SV", "FL", "FD", "AT"})
BYTES: Final = frozenset({"OB", "OW", "OD", "OF", "OL", "OV", "UN"})

DUMMIES: Final[Mapping[str, Any]] = {
    "AE": "REMOVED", "AS": "000Y", "CS": "REMOVED", "DA": "19000101", "DS": "0", "DT": "19000101000000", "IS": "0",
    "LO": "REMOVED", "LT": "REMOVED", "PN": "REMOVED", "SH": "REMOVED", "ST": "REMOVED", "TM": "000000",
    "UC": "REMOVED", "UR": "urn:removed", "UT": "REMOVED",
    **dict.fromkeys(("US", "SS", "UL", "SL", "UV", "SV", "AT"), 0), **dict.fromkeys(("FL", "FD"), 0.0),
    **dict.fromkeys(BYTES, b"\0\0\0\0\0\0\0\0"),
}  # fmt: skip


def is_of_its_kind(vr: str, text: str) -> bool:
    """True if a value has the form of its representation."""
    shape = SHAPES.get(vr)
    return text == "" or shape is None or shape.fullmatch(text) is not None


def moved(vr: str, text: str, days: int) -> str | None:
    """A moved date (DA) or date with time (DT); None for other values and incomplete dates."""
    match = (_DATE if vr == "DA" else _DATE_TIME).fullmatch(text)
    if match is None:
        return None
    if vr == "DA":
        digits, rest = match[1] + match[3] + match[4], ""
    else:
        digits, rest = match[1], match[2]
    try:
        then = date(int(digits[:4]), int(digits[4:6]), int(digits[6:])) + timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    return then.strftime("%Y%m%d").zfill(8) + rest


def is_registered(text: str) -> bool:
    """True for a UID of the DICOM standard, which names a kind and no instance."""
    return UID(text).name != text


def each(value: Any, change: Callable[[str], Any]) -> Any:
    """A value, or a list of values, with ``change`` applied."""
    if isinstance(value, MutableSequence):
        return [change(str(one)) for one in value]
    return change(str(value))


METHOD: Final = "Radweave: PS3.15 E.1 basic profile, dates modified"
_OPTIONS: Final = (
    ("113100", "Basic Application Confidentiality Profile"),
    ("113107", "Retain Longitudinal Temporal Information Modified Dates Option"),
)
# Dates of birth, and of a photograph: no dates of the examination, so the option does not retain them.
_NO_OPTION: Final = frozenset({0x00100030, 0x00100032, 0x00160077, 0x0016008D})
# LongCodeValue, URNCodeValue, CodingSchemeUID: a long text and a UID by their representation, and neither in meaning.
_CODES: Final = frozenset({0x00080119, 0x00080120, 0x0008010C})
# Accession number, ids of patient, study, admission, order and procedure, insurance, record locator, serial number.
_NAMING: Final = frozenset({
    0x00080050, 0x00080094, 0x00100020, 0x00100021, 0x00101000, 0x00101050, 0x00101090, 0x00102154, 0x00181000,
    0x00200010, 0x00321064, 0x00380010, 0x00400009, 0x00401001, 0x00402016, 0x00402017,
})  # fmt: skip
# Institution, its address and department, station, addresses of physician and patient, responsible organization.
_PLACES: Final = frozenset({
    0x00080080, 0x00080081, 0x00080092, 0x00081010, 0x00081040, 0x00101040, 0x00102155, 0x00102299, 0x00380300,
})  # fmt: skip
_PERSON_CODE: Final = 0x00401101
_CODE_MEANING: Final = 0x00080104
_PIXELS: Final = 0x7FE00010
# Table -> its descriptor (PS3.3 C.7.6.3.1.5 and C.11.1): the only bytes beside the pixels that stay.
_TABLES: Final = {
    0x00281201: 0x00281101, 0x00281202: 0x00281102, 0x00281203: 0x00281103, 0x00283006: 0x00283002,
}  # fmt: skip
# Meaning and position of pixels: an image cannot do without these groups.
_NEEDED_GROUPS: Final = frozenset({0x0020, 0x0028})
_TERMS: Final = BODY_PARTS | IMAGE_TYPES | LUT_SHAPES | MODALITIES | PHOTOMETRIC | PRESENTATION_INTENTS | {
    *RESCALE_TYPES, *VOI_FUNCTIONS, *VIEW_POSITIONS,
    "A", "P", "H", "F", "L", "R", "YES", "NO", "REMOVED", "DCM", "SRT", "SCT",
}  # fmt: skip
"""Codes of the standard, which identify nobody, even if they equal a name."""
_OURS: Final = (METHOD, *(meaning for _, meaning in _OPTIONS), "MODIFIED")
_ENCODINGS: Final = ("utf-8", "gb18030", "shift_jis", "euc_jp", "iso2022_jp", "euc_kr", "big5", "latin-1")
_WORD: Final = re.compile(r"[^\W_]+")
_NO_DIGIT: Final = re.compile(r"[^0-9]+")
_PACKED: Final = {
    "US": "<u2", "SS": "<i2", "UL": "<u4", "SL": "<i4", "UV": "<u8", "SV": "<i8", "FL": "<f4", "FD": "<f8", "AT": "<u2",
}  # fmt: skip


class Rewriting:
    """The rewriting of one image: its pseudonym, the traces of its patient, and the replacement of values.

    Raises:
        InputError: if it names neither patient nor study.
    """

    def __init__(self, dataset: Dataset, key: Key) -> None:
        self._key = key
        who = (_plain(dataset, "PatientID"), _plain(dataset, "IssuerOfPatientID"))
        study = _plain(dataset, "StudyInstanceUID")
        if not (who[0] or study):
            raise InputError("names neither patient nor study", field="PatientID")
        # Without a patient id, the images of a study still belong together.
        person = who if who[0] else ("study", study, "")
        self.pseudonym, self._days = key.pseudonym(*person), key.days(*person)
        self.traces = _traces(dataset)
        # Without a character set of all scripts, the meaning of non-ASCII text depends on the reader.
        self._all_scripts = _has_all_scripts(dataset)
        self._palette = _plain(dataset, "PhotometricInterpretation") == "PALETTE COLOR"
        self._big_endian = dataset.file_meta.TransferSyntaxUID == ExplicitVRBigEndian

    def rewrite(self, dataset: Dataset) -> None:
        """Change a data set in place, except its pixel data.

        Raises:
            InputError: if a required attribute contains a trace of the patient.
        """
        self._clean(dataset, top=True)
        dataset.PatientName = dataset.PatientID = self.pseudonym
        dataset.PatientIdentityRemoved = "YES"
        dataset.DeidentificationMethod = METHOD
        dataset.DeidentificationMethodCodeSequence = [_option(*option) for option in _OPTIONS]
        dataset.LongitudinalTemporalInformationModified = "MODIFIED"
        _state_character_set(dataset)

    def _clean(self, dataset: Dataset, *, top: bool = False) -> None:
        outside = self._all_scripts
        self._all_scripts = outside if "SpecificCharacterSet" not in dataset else _has_all_scripts(dataset)
        for tag in list(dataset.keys()):
            if top and tag == _PIXELS:
                continue
            if tag in _TABLES:
                self._cut_table(dataset, tag)
            no_palette = tag.group == 0x0028 and tag.element >> 8 in (0x11, 0x12, 0x14) and not self._palette
            element = _element(dataset, tag) if tag in dataset and not no_palette else None
            if tag in dataset and (element is None or not self._keep(element)):
                del dataset[tag]
        self._all_scripts = outside

    def _keep(self, element: DataElement) -> bool:
        """Change an element in place; True if it stays."""
        action, vr = table().get(int(element.tag)), _vr(element)
        if action == "remove" and not self._moves(element):
            return False
        if vr == "SQ":
            return self._keep_items(element, action)
        if vr in ("DA", "DT") and self._moves(element):
            return self._move(element, action)
        if vr == "TM" and self._moves(element) and _all_of_its_kind(element):
            return True  # dates move, the time of day stays
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
        """The safety net for attributes outside the table."""
        vr, tag = _vr(element), int(element.tag)
        if vr in LONG_TEXTS and tag not in _CODES:
            return False
        if vr in BYTES:
            self._refuse(element, tag in _TABLES and self.traces.in_bytes(element.value))
            return tag in _TABLES
        if vr in NUMBERS:
            return not self._refuse(element, self._numbers_tell(element) or self._is_number(element))
        if not _all_of_its_kind(element):
            return False
        if vr in ("DS", "IS", "TM"):
            bears = any(map(self.traces.in_number, _texts(element)))
            bears = bears or (vr != "TM" and (self._numbers_tell(element) or self._is_number(element)))
            return not self._refuse(element, bears)
        if vr in TEXTS or tag in _CODES:
            torn = self.traces.in_parts([text for text in _texts(element) if text.strip() not in _TERMS])
            element.value = "REMOVED" if torn else each(element.value, self._text) if element.value else ""
        return True

    def _text(self, text: str) -> str:
        if text.strip() in _TERMS:
            return text
        readable = (text.isascii() or self._all_scripts) and "\ufffd" not in text and text.isprintable()
        return text if readable and not self.traces.in_text(text) else "REMOVED"

    def _numbers_tell(self, element: DataElement) -> bool:
        """True if numbers are the characters or bytes of a text with a trace."""
        values = _several(element)
        if "" in values or None in values:
            return False
        signs = "".join(chr(int(value)) if 32 <= value < 0x3000 and value == int(value) else "\0" for value in values)
        if _vr(element) == "AT":  # two numbers each
            values = [half for value in values for half in (int(value) >> 16, int(value) & 0xFFFF)]
        packed = np.asarray(values, dtype=_PACKED.get(_vr(element), "<f8"))
        readings = (signs.encode("utf-16-le"), packed.tobytes(), packed.byteswap().tobytes())
        return any(self.traces.in_bytes(reading) for reading in readings)

    def _is_number(self, element: DataElement) -> bool:
        """True if a value is an id or a date; in groups that position the image, fractions may match by chance."""
        values = [value for value in _several(element) if isinstance(value, (int, float))]
        whole = (f"{value:.0f}" for value in values if np.isfinite(value) and value == int(value))
        by_digits = element.tag.group not in _NEEDED_GROUPS and any(map(self.traces.is_number, map(str, values)))
        return by_digits or any(map(self.traces.in_number, whole))

    def _refuse(self, element: DataElement, bears: bool) -> bool:
        """Return ``bears``, or refuse the image if the element is required."""
        if bears and element.tag.group in _NEEDED_GROUPS:
            raise InputError(
                "bears a name, a number or a date of the patient, and cannot be left out", field=element.keyword
            )
        return bears

    def _cut_table(self, dataset: Dataset, tag: BaseTag) -> None:
        """Cut a lookup table to the entries of its descriptor; remove an incomplete one."""
        table, descriptor = _element(dataset, tag), _element(dataset, Tag(_TABLES[int(tag)]))
        stated = descriptor.value if descriptor is not None else None
        entries = (int(next(iter(stated))) & 0xFFFF or 1 << 16) if isinstance(stated, MutableSequence) else 0
        value: Any = b"" if table is None or table.value is None else table.value
        if table is None or not entries:
            del dataset[tag]
            return
        if isinstance(value, bytes):
            size = 2 * entries if len(value) >= 2 * entries else entries + entries % 2
            value = value[:size]
            swapped = self._big_endian and table.VR != "OB" and len(value) % 2 == 0
            table.value = np.frombuffer(value, ">u2").astype("<u2").tobytes() if swapped else value
            whole = len(value) >= entries
        else:
            numbers = list(value) if isinstance(value, MutableSequence) else [value]
            whole = len(numbers) >= (entries + 1) // 2
            table.value = numbers[:entries]
        if not whole:
            del dataset[tag]


def _element(dataset: Dataset, tag: BaseTag) -> DataElement | None:
    """An element to be judged by its value; None for one that is removed in any case."""
    if tag.is_private or tag.group < 0x0008 or tag.element == 0 or tag.group & 0xFF00 in (0x5000, 0x6000):
        return None
    try:
        known = dictionary_VR(tag)
        element = dataset[tag]
        _ = element.value
    except Exception:  # unknown, or a value that pydicom cannot convert: it may raise nearly anything
        return None
    if element.tag == Tag("SpecificCharacterSet") or element.VR not in (known, *known.split(" or "), "UN"):
        return None
    return element


def _vr(element: DataElement) -> str:
    """The representation, or the first of several possible ones."""
    return str(element.VR).split(" or ")[0]


def _all_of_its_kind(element: DataElement) -> bool:
    fits: list[bool] = []
    each(element.value, lambda text: fits.append(is_of_its_kind(_vr(element), text.strip(" \0"))))
    return all(fits) or not element.value


def _several(element: DataElement) -> list[Any]:
    return list(element.value) if isinstance(element.value, MutableSequence) else [element.value]


def _texts(element: DataElement) -> list[str]:
    return [str(one) for one in _several(element)]


def _traces(dataset: Dataset) -> Traces:
    """All names, numbers, places and dates of a data set."""
    names: set[str] = set()
    numbers: set[str] = set()
    places: set[str] = set()
    dates: set[str] = set()
    for tag, vr, text in _identifying_texts(dataset):
        if vr == "PN":
            names.add(text)
        elif int(tag) in _NAMING:
            numbers.add(text)
        elif int(tag) in _PLACES:
            places.add(text)
        elif vr in ("DA", "DT"):
            dates.add(_NO_DIGIT.sub("", text)[:8])
    return Traces(names, numbers, places, dates, {word for term in (*_TERMS, *_OURS) for word in _WORD.findall(term)})


def _identifying_texts(dataset: Dataset, *, of_person: bool = False) -> Iterator[tuple[BaseTag, str, str]]:
    """Every identifying text with its tag and expected representation, in any stored representation.

    Private names count, and the meaning of a person's code.
    """
    for tag in list(dataset.keys()):
        try:
            vr = dictionary_VR(tag)
        except KeyError:
            vr = ""
        try:
            stored, values = dataset[tag].VR, _several(dataset[tag])
        except Exception:  # see ``_element``
            stored, values = "UN", [getattr(dataset.get_item(tag), "value", b"")]
        if stored == "SQ":
            for item in values:
                yield from _identifying_texts(item, of_person=tag == _PERSON_CODE)
            continue
        vr = "PN" if stored == "PN" or (of_person and tag == _CODE_MEANING) else vr
        if vr in ("PN", "DA", "DT") or int(tag) in _NAMING | _PLACES:
            yield from ((tag, vr, text) for value in values if value is not None for text in _decoded(value))


def _decoded(value: Any) -> Iterator[str]:
    """A text by its character set, and by other encodings in case the set is wrong."""
    stored = value if isinstance(value, bytes) else getattr(value, "original_string", b"")
    if not isinstance(value, bytes):
        yield str(value)
    if isinstance(stored, bytes) and (stored is value or not stored.isascii()):
        for encoding in _ENCODINGS:
            with suppress(UnicodeDecodeError):
                yield stored.decode(encoding).strip("\0")


def _has_all_scripts(dataset: Dataset) -> bool:
    return _plain(dataset, "SpecificCharacterSet") in ("ISO_IR 192", "GB18030", "GBK")


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
    """Declare UTF-8 if the remaining texts are not ASCII."""
    texts = (element.value for element in dataset.iterall() if element.VR not in (*BYTES, "SQ"))
    if not all(str(value).isascii() for value in texts):
        dataset.SpecificCharacterSet = "ISO_IR 192"
