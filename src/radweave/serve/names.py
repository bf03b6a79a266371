"""Names of users: what one may be, and which of them look alike and so are one.

``folded`` follows the skeletons of Unicode (UTS 39, 4), with a table of our own for the letters that are taken from one
alphabet for those of another: two names of one skeleton are one name.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from radweave.base.errors import InputError

LONGEST: Final = 100
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_LOOKS: Final = (
    "aаαɑ bьƅв cсϲς dԁɗ eєеҽ gցɡ hһհн jјյϳ kкκĸ mмμ nпηոռ oоοσօ0 pрρ qԛզ rг sѕƽ tτт uυսц vνѵ wԝωɯшա xхχ yуγү zζ"
    " liıіιӏլ1|ǀ '’`´ -‐‑‒–—−"
)
"""The letter that others are taken for, and these: of Cyrillic, Greek, Armenian, phonetics; digits and marks too."""
_ALIKE: Final = str.maketrans({sign: word[0] for word in _LOOKS.split() for sign in word[1:]})
_USED: Final = (
    "LATIN GREEK CYRILLIC ARMENIAN HEBREW ARABIC DEVANAGARI BENGALI GURMUKHI GUJARATI ORIYA TAMIL TELUGU KANNADA"
    " MALAYALAM SINHALA THAI LAO TIBETAN MYANMAR GEORGIAN ETHIOPIC KHMER HANGUL CJK HIRAGANA KATAKANA BOPOMOFO"
    " KATAKANA-HIRAGANA"
)
_ALPHABETS: Final = frozenset(_USED.split())
_TOGETHER: Final = frozenset({"CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "HANGUL", "KATAKANA-HIRAGANA"})
"""Those that one name may have side by side."""
_MARKS: Final = "-_.'@+()·’ "


def folded(name: str) -> str:
    """What two names share that look alike."""
    text = unicodedata.normalize("NFKC", name).casefold()
    text = "".join(sign for sign in unicodedata.normalize("NFKC", text) if not _is_invisible(sign))
    # Marks that no letter takes up: a dot above an i is not seen, others hide behind a letter.
    text = "".join(sign for sign in text if not unicodedata.name(sign, "").startswith("COMBINING "))
    text = " ".join(text.translate(_ALIKE).split())
    return text.replace("rn", "m").replace("vv", "w")[:LONGEST]


def refuse_unclear(name: str) -> None:
    """Refuse a name that is none, or that does not show all it has.

    Raises:
        InputError: for signs that are not seen, spaces at the ends, other spellings, and alphabets that are mixed.
    """
    if not name or len(name) > LONGEST or not name.isprintable():
        raise InputError("no name", field="name", expected="1 to 100 printable characters")
    if name != " ".join(name.split()) or name != unicodedata.normalize("NFC", name) or any(map(_is_invisible, name)):
        raise InputError("has signs that are not seen, or spaces at its ends", field="name")
    alphabets = {_alphabet(sign) for sign in name} - {""}
    if len(alphabets) > 1 and not alphabets <= _TOGETHER:
        raise InputError("mixes letters of several alphabets", field="name", expected="letters of one")


def _is_invisible(sign: str) -> bool:
    kind = unicodedata.category(sign)
    return kind in ("Cc", "Cf", "Cn", "Co") or sign in _INVISIBLE or "VARIATION SELECTOR" in unicodedata.name(sign, "")


def _alphabet(sign: str) -> str:
    """The alphabet of a letter; none of digits of ASCII, marks that stand on letters, and a few signs.

    Raises:
        InputError: for a sign that stands in no name.
    """
    if sign in _MARKS or (sign.isascii() and sign.isdigit()):
        return ""
    kind, words = unicodedata.category(sign), unicodedata.name(sign, "").split()
    found = words[0] if words else ""
    if kind in ("Mn", "Mc") and found == "COMBINING":
        return ""
    is_known = kind in ("Lu", "Ll", "Lo", "Lm", "Mn", "Mc") and found in _ALPHABETS
    if found == "LATIN":  # of the others some are signs of phonetics, which look like letters
        is_known = kind in ("Lu", "Ll") and (sign < "\u0250" or "\u1e00" <= sign <= "\u1eff")
    if not is_known:
        raise InputError("holds a sign that stands in no name", field="name", expected="letters, digits and -_.'@")
    return found
