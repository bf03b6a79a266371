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

_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")


def comparable_id(identifier: str) -> str:
    """A form that is equal for two ids of the same patient; may be equal for two others only by odd numbering.

    Width, case, surrounding blanks, invisible characters, look-alike letters, the script of digits and leading zeros
    make no difference.
    """
    plain = identifier.strip()
    if not plain.isascii():
        plain = unicodedata.normalize("NFKC", plain).translate(_LOOK_ALIKES)
        plain = "".join(_digit(character) for character in plain if unicodedata.category(character) not in ("Cf", "Cc"))
        plain = " ".join(plain.split())
    plain = plain.casefold()
    # "0" before a number or before the whole id; an id of zeros alone stays "0".
    return _LEADING_ZEROS.sub("", plain).lstrip("0") or ("0" if plain else "")


def _digit(character: str) -> str:
    value = unicodedata.digit(character, None)
    return character if value is None else str(value)
