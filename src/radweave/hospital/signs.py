"""Texts in signs that every format can hold and every viewer shows in the order in which they stand.

DICOM's long texts take line breaks and no tabs (PS3.5 Sec. 6.2, UT), XML and JSON readers refuse control characters and
what Unicode will never assign, HL7 drops what it cannot show. What separates words in a draft must do so
in all of them.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_BREAKS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_ORDERS: Final = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""Signs that are not seen and change the order of those that are (Unicode annex 9)."""
_UNWRITABLE: Final = ("Cc", "Cs", "Cn")
LONGEST_NAME: Final = 64
"""Characters of one group of a name (PS3.5 Table 6.2-1)."""


def writable(text: str) -> str:
    """A text with spaces for tabs and other gaps, line feeds for breaks, and without signs that cannot be written."""
    lines = _BREAKS.sub("\n", text).split("\n")
    return "\n".join("".join(map(_sign, line)).rstrip() for line in lines).strip()


def _sign(sign: str) -> str:
    if sign.isspace():
        return " "
    dropped = unicodedata.category(sign) in _UNWRITABLE or unicodedata.bidirectional(sign) in _ORDERS
    return "" if dropped else sign


def person_name(text: str) -> str:
    """A name as somebody wrote it, as a name of DICOM: no sign of it begins another part, another group or a value."""
    return " ".join(re.sub(r"[\\^=]", " ", writable(text)).split())[:LONGEST_NAME].rstrip()
