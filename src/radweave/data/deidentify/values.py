"""Values by their representation (PS3.5 Table 6.2-1): which ones are of their kind, dates that move, dummies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableSequence
from datetime import date, timedelta
from typing import Any, Final

from pydicom.uid import UID

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
"""What a value must look like to stay: what is none of its kind is free text in disguise."""
TEXTS: Final = frozenset({"CS", "LO", "SH"})
"""Short texts: names of things, units, codes. One that bears a word of the patient's goes."""
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
    """Whether a value may be what its representation says."""
    shape = SHAPES.get(vr)
    return text == "" or shape is None or shape.fullmatch(text) is not None


def moved(vr: str, text: str, days: int) -> str | None:
    """A date (DA) or a date with its time (DT), moved; None where it is none, or less than a day is known."""
    found = (_DATE if vr == "DA" else _DATE_TIME).fullmatch(text)
    if found is None:
        return None
    if vr == "DA":
        digits, rest = found[1] + found[3] + found[4], ""
    else:
        digits, rest = found[1], found[2]
    try:
        then = date(int(digits[:4]), int(digits[4:6]), int(digits[6:])) + timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    return then.strftime("%Y%m%d").zfill(8) + rest


def is_registered(text: str) -> bool:
    """Whether DICOM itself gives this UID, so that it names a kind of thing and no thing."""
    return UID(text).name != text


def each(value: Any, change: Callable[[str], Any]) -> Any:
    """A value, or each of several, changed."""
    if isinstance(value, MutableSequence):
        return [change(str(one)) for one in value]
    return change(str(value))
