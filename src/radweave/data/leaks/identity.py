"""When two ids name the same patient although they are not written alike.

``P7``, ``p7 ``, ``p007`` and ``0p7`` are one patient, and so is an id in which a Cyrillic letter stands for the Latin
one that it looks like. Used to compare only: a data set keeps its ids as they are.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_LOOK_ALIKES: Final = str.maketrans(
    # Cyrillic, Greek, Armenian and others, capitals apart where they resemble other letters than the small ones do.
    "АВЕЅСНІЈКМОРԚТУХԜавеѕсԁнһіјкӏморԛтухԝѵΑΒΕΖΗΙΚΜΝΟΡΤΥΧαεικνορτυχօսոհյıɑɡ‐‑‒–—―−",
    "abeschijkmopqtyxwabescdhhijklmopqtyxwvabezhikmnoptyxaeikvoptuxounhjiag-------",
)
"""Letters of other scripts that print like Latin ones, and dashes."""

_FILLERS: Final = "\u115f\u1160\u17b4\u17b5\u3164\uffa0"
"""Letters and symbols that print as nothing."""
_SPREADSHEET: Final = re.compile(r"(?<=[0-9])\.0+$")
"""What a spreadsheet makes of a number."""
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")


def comparable_id(identifier: str) -> str:
    """A form that is equal for two ids of the same patient; may be equal for two others only by odd numbering.

    Width, case, blanks, invisible characters, accents, look-alike letters, the script of digits, leading zeros, quotes
    around the id and a final ".0" make no difference.
    """
    form, plainer = identifier, _plainer(identifier)
    # What one pass takes away may lay open what the next one does: a blank behind a zero, a quote behind that.
    while plainer != form:
        form, plainer = plainer, _plainer(plainer)
    return form


def _plainer(plain: str) -> str:
    """One pass: the id without what stands before, behind and between what tells patients apart."""
    if not plain.isascii():
        # Look-alikes before the letters come apart, and what then stands there without its marks.
        plain = _latin(unicodedata.normalize("NFKC", plain)).replace("\u2800", " ")
        plain = unicodedata.normalize("NFKD", plain)
        plain = "".join(_digit(character) for character in plain if not _is_unseen(character))
    plain = "".join(character for character in " ".join(plain.split()) if character.isprintable())
    plain = _latin(plain.casefold()).strip("'\" ")
    plain = _SPREADSHEET.sub("", plain)
    # "0" before a number or before the whole id; an id of zeros alone stays "0".
    return _LEADING_ZEROS.sub("", plain).lstrip("0") or ("0" if plain else "")


def _latin(text: str) -> str:
    """The text with Latin letters for those that print like them."""
    return text.translate(_LOOK_ALIKES)


def _is_unseen(character: str) -> bool:
    """Whether it leaves no mark of its own: controls, marks on the letter before it, fillers."""
    unseen = unicodedata.category(character) in ("Cf", "Cc", "Mn", "Me", "Mc") and not character.isspace()
    return unseen or character in _FILLERS


def _digit(character: str) -> str:
    value = unicodedata.digit(character, None)
    return character if value is None else str(value)
