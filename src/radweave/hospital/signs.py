"""Texts in signs that every format can hold and every viewer shows in the order in which they stand.

What a model writes is cleaned (``writable``); what a person signs is never changed, but refused where an export would
lose a sign of it (``refuse_unsignable``).

DICOM's long texts take line breaks and no tabs (PS3.5 Sec. 6.2, UT), XML and JSON readers refuse control characters and
what Unicode will never assign, HL7 drops what it cannot show. What separates words in a draft must do so
in all of them.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from radweave.base.errors import InputError

_BREAKS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0xFFFC, 0xFFFD, 0x16FE4, 0x1D159,
              *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0x13441, 0x13443), *range(0xE0100, 0xE01F0)))
)  # fmt: skip
"""Printable by their category, and blank by their shape or a mark of a lost sign: fillers, selectors of variants.

Other signs that are not seen, or change the order of those that are, are of the categories Cc, Cf, Cn, Co and Cs.
"""
LONGEST_NAME: Final = 64
"""Characters of one group of a name (PS3.5 Table 6.2-1)."""


def writable(text: str) -> str:
    """A text with spaces for tabs and other gaps, line feeds for breaks, and without signs that cannot be written."""
    lines = _BREAKS.sub("\n", text).split("\n")
    return "\n".join("".join(map(_sign, line)).rstrip() for line in lines).strip()


def _sign(sign: str) -> str:
    if sign.isspace():
        return " "
    return sign if sign.isprintable() and sign not in _UNSEEN else ""


def refuse_unsignable(text: str, *, field: str) -> None:
    """Refuse a text of which an export would lose a sign, or that says nothing.

    Raises:
        InputError: naming the first sign that is not seen, turns the order of others or cannot be written, by its code
            point; or if there is no letter and no digit.
    """
    for place, sign in enumerate(text, start=1):
        if not sign.isspace() and not _sign(sign):
            name = unicodedata.name(sign, "a control or unassigned sign")
            got = f"U+{ord(sign):04X} {name}, character {place}"
            raise InputError("holds a sign that is not seen or cannot be written", field=field, got=got)
    if not any(unicodedata.category(sign)[0] in "LN" for sign in text):
        raise InputError("is empty: it holds no letter and no digit", field=field)


def person_name(text: str) -> str:
    """A name as somebody wrote it, as a name of DICOM: no sign of it begins another part, another group or a value."""
    return " ".join(re.sub(r"[\\^=]", " ", writable(text)).split())[:LONGEST_NAME].rstrip()
