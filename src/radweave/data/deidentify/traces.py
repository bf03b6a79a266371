"""Traces of a person: the names, numbers and dates of one header, and the search for them in texts and in bytes.

A name matches as a word, joined with the person's other names (``SMITHJOHN``, ``jsmith``), inside a longer word from
five letters on, truncated at the end of a text, and without diacritics, or with replacements of these letters
(``M?ller``, ``M%C3%BCller``). A number matches without separators (``12-3456-78`` is ``12345678``) and leading zeros, a
date in all common formats. Bytes are read as ASCII, Latin-1, UTF-8 and UTF-16, the last in both byte orders and from
even and odd offsets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise, permutations
from typing import Final

from radweave.core.same_patient import plain_spellings
from radweave.data.deidentify.texts import bears_pattern
from radweave.io.dicom_fields import MOST_NAMES, SHORTEST_NAME, number_spellings, spellings

SHORTEST_INSIDE: Final = 5
"""A shorter name occurs inside words by chance: Mens in Siemens."""
SHORTEST_IN_BYTES: Final = 4
SHORTEST_IN_PIXELS: Final = 6
"""A shorter run occurs in pixels by chance."""
SHORTEST_DIGITS: Final = 6
"""A shorter number occurs in coordinates by chance."""
SHORTEST_CUT: Final = 6
"""Fewest letters of a truncated name."""
_PLACES = """address avenue center centre central chest city clinic clinical county department diagnostic general health
    hospital hospitals imaging institute medical medicine national north radiology regional road room saint service
    south state street university unknown"""
_COMMON: Final = frozenset(_PLACES.split())
_MONTHS: Final = (
    "jan ene gen sty led янв i", "feb fév lut úno фев ii", "mar mrz bře мар iii", "apr abr avr kwi dub апр iv",
    "may mai mag maj mei май мая v", "jun juin giu cze чер июн vi", "jul juil lug lip июл vii",
    "aug ago aoû sie srp авг viii", "sep set wrz zář сен ix", "oct okt out ott paź říj окт x", "nov lis ноя xi",
    "dec dez dic déc gru pro дек xii",
)  # fmt: skip
"""First letters of month names in European languages, and Roman numerals."""
_FILLING: Final = frozenset(("of", "the", "de", "del", "st", "nd", "rd", "th", "er", "年", "月", "日"))
_LONGEST_GAP: Final = 8
"""Most characters between the parts of a date."""
_TOKEN: Final = re.compile(r"\d+|[年月日]|(?:(?![年月日])[^\W\d_])+")
_INSTEAD: Final = r"(?:[^a-z]{1,4}|[&%=\\](?:[#0-9a-fx%=\\]{1,12}|[a-z]{2,7});?)"
"""Replacements of a letter that could not be encoded: ``?``, ``%C3%BC``, ``&uuml;``, ``Ã¼``."""
_BETWEEN: Final = (" ", "^", "_", ".", "-", ", ")
_NO_DIGIT: Final = re.compile(r"\D+")
_WORD: Final = re.compile(r"[^\W_]+")
_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LONG_NUMBER: Final = re.compile(rf"\d{{{SHORTEST_DIGITS},}}")
# A day, a word or a Roman number, and a year: a date in any language.
_ANY_DATE: Final = re.compile(
    r"(?<!\d)\d\d?[^\W\d_]{0,2}[\s./-]{1,2}(?:de\s)?[^\W\d_]{1,10}[\s./,-]{1,2}(?:de\s)?(?:19|20)\d\d"
)
_LETTERS: Final = re.compile(r"(?<![^\W_])[^\W\d_](?:[\W_]{1,2}[^\W\d_](?![^\W_]))+")
_PRINTED: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ufffd]{4,}")


class Traces:
    """The identifying values of one person, in searchable form.

    Args:
        names: each a name of a person, of several words.
        numbers: patient ids, accession numbers and the like.
        places: institutions and addresses; their everyday words are ignored.
        dates: as YYYYMMDD.
        ordinary: words that stay on purpose, such as codes of the standard; no trace by themselves in bytes.
    """

    def __init__(
        self,
        names: Iterable[str],
        numbers: Iterable[str],
        places: Iterable[str],
        dates: Iterable[str],
        ordinary: Iterable[str] = (),
    ) -> None:
        names, numbers = [_folded(name) for name in names], [_folded(number).strip() for number in numbers]
        words = {spelling for name in names for spelling in spellings(name) if not spelling.isdigit()}
        parts = ([word for word in _WORD.findall(name) if len(word) >= SHORTEST_NAME][:MOST_NAMES] for name in names)
        pairs = {pair for own in parts for pair in permutations(own, 2)}
        for place in places:
            words.update(w for w in _WORD.findall(_folded(place)) if len(w) >= SHORTEST_INSIDE and w not in _COMMON)
        written = {spelling for number in numbers for spelling in number_spellings(number)}
        inner = {_NO_DIGIT.sub("", number) for number in numbers}
        written |= {digits for digits in inner if len(digits) >= SHORTEST_DIGITS}
        self._ids = {one for one in written if len(one) >= SHORTEST_IN_BYTES and any(sign.isdigit() for sign in one)}
        words |= written
        lossy = {word.encode("ascii", "ignore").decode() for word in words}  # of those who cannot write them all
        words |= {word for word in lossy if len(word) >= SHORTEST_IN_BYTES}
        self.words = words | {way for word in words for way in plain_spellings(word) if len(way) >= SHORTEST_NAME}
        self._signs = {word for word in self.words if not word.isascii() and len(word) >= SHORTEST_NAME}
        self._inside = {word for word in self.words if len(word) >= SHORTEST_INSIDE}
        self._pairs = _either(pairs)
        self._loose = [re.compile(pattern) for word in words for pattern in _without_marks(word)]
        self._days = {day for day in dates if len(day) == 8 and day.isdigit() and day[4:6] <= "12" and day[4:] > "0100"}
        numeric = {*(one for one in self._ids if one.isdigit() and len(one) >= SHORTEST_DIGITS), *self._day_digits()}
        self._numeric = numeric
        self._whole = {one for digits in inner if len(one := digits.lstrip("0")) >= SHORTEST_IN_BYTES}
        self._values = {value for one in numeric if len(value := one.strip("0")) >= SHORTEST_DIGITS}
        long = {*self.words, *self._day_digits()} - {_folded(word) for word in ordinary}
        long |= {sep.join(pair) for pair in pairs for sep in _BETWEEN} | set(numbers)
        patterns = sorted({pattern for word in long for pattern in _patterns(word)}, key=len)
        self._patterns: list[bytes] = []
        for pattern in patterns:
            if not any(shorter in pattern for shorter in self._patterns):
                self._patterns.append(pattern)

    def in_text(self, text: str) -> bool:
        """True if a text contains a trace, or any date, long number, address or title."""
        patterns = _LONG_NUMBER.search(text) or _ANY_DATE.search(text) or bears_pattern(text)
        return bool(patterns) or self._known(text)

    def in_parts(self, texts: list[str]) -> bool:
        """True if several values together contain a trace that none contains alone."""
        whole, parts = _squeezed("".join(texts)), [_squeezed(text) for text in texts]
        torn = any(number in whole and not any(number in part for part in parts) for number in self._ids)
        return torn or (self._known("".join(texts)) and not any(map(self._known, texts)))

    def in_number(self, text: str) -> bool:
        """True if the digits of a number contain those of an id or a date."""
        return any(one in run for one in self._numeric for run in _LONG_NUMBER.findall(text))

    def is_number(self, text: str) -> bool:
        """True if a number is an id, or has the digits of an id or a date, regardless of its decimal point."""
        with suppress(ValueError, OverflowError):
            if f"{abs(float(text)):.0f}" in self._whole and float(text).is_integer():
                return True
        return _NO_DIGIT.sub("", text.lower().partition("e")[0]).strip("0") in self._values

    def in_bytes(self, data: bytes) -> bool:
        """True if retained bytes contain a trace, in any encoding."""
        return any(self._known(run, SHORTEST_IN_BYTES) for text in _readings(data) for run in _PRINTED.findall(text))

    def in_pixels(self, data: bytes) -> bool:
        """True if bytes of mostly numbers contain a long trace, in any encoding and context."""
        lower = data.lower()
        return any(pattern in lower for pattern in self._patterns)

    def in_file(self, data: bytes) -> bool:
        """``in_pixels`` for a rewritten file, whose new UIDs and moved dates may contain any digits."""
        lower = data.lower()
        return any(pattern in lower for pattern in self._patterns if not pattern.isdigit())

    def _day_digits(self) -> set[str]:
        return {order for day in self._days for order in (day, day[6:] + day[4:6] + day[:4], day[4:] + day[:4])}

    def _known(self, text: str, shortest: int = 1) -> bool:
        folded = _folded(text)
        in_order = _WORD.findall(folded)
        is_cut = shortest == 1 and bool(in_order) and len(in_order[-1]) >= SHORTEST_CUT
        words = {*in_order, *(part.casefold() for part in _PART.findall(text))}
        words |= {"".join(_WORD.findall(spaced)) for spaced in _LETTERS.findall(folded)}  # S m i t h
        words |= {way for word in words for way in plain_spellings(word)}
        squeezed = _squeezed(text)
        return (
            any(len(word) >= shortest for word in words & self.words)
            or any(inside in word for inside in self._inside if len(inside) >= shortest for word in words)
            or any(sign in folded for sign in self._signs if 2 * len(sign) >= shortest)
            or (is_cut and any(word.startswith(in_order[-1]) for word in self.words))
            or any(loose.search(folded) for loose in self._loose)
            or any(pair.search(folded) for pair in self._pairs[shortest > 1 :])
            or any(
                number in squeezed
                for number in self._ids
                if (shortest == 1 and len(number) > SHORTEST_DIGITS) or not _is_ramp(number.encode())
            )
            or any(_stands_alone(form, folded) for form in self._day_digits())
            or any(day in (known, known[2:]) for day in _days(folded) for known in self._days)
        )


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _squeezed(text: str) -> str:
    return "".join(_WORD.findall(_folded(text)))


def _either(pairs: set[tuple[str, str]]) -> list[re.Pattern[str]]:
    """Patterns of two adjacent names, which may be too short by themselves: as words, and in any context."""
    several = "|".join(sorted(rf"{re.escape(one)}[\W_]{{1,2}}{re.escape(other)}" for one, other in pairs))
    return [re.compile(rf"(?<![^\W_])(?:{several})(?![^\W_])"), re.compile(several)] if pairs else []


def _without_marks(word: str) -> Iterator[str]:
    """Pattern of a word of Latin letters with any replacement of non-ASCII ones."""
    plain = sum(sign.isascii() for sign in word)
    if SHORTEST_IN_BYTES <= plain < len(word) and word.isalpha():
        yield rf"(?<![a-z]){''.join(sign if sign.isascii() else _INSTEAD for sign in word)}"


def _days(text: str) -> Iterator[str]:
    """Dates in a text, as YYYYMMDD or YYMMDD, in each possible order of three numbers."""
    tokens = [match for match in _TOKEN.finditer(text) if match[0] not in _FILLING]
    for three in zip(tokens, tokens[1:], tokens[2:], strict=False):
        gaps = (after.start() - before.end() for before, after in pairwise(three))
        if sum(match[0].isdigit() for match in three) < 2 or max(gaps) > _LONGEST_GAP:
            continue
        first, second, third = (match[0] for match in three)
        for day, month, year in (
            (first, second, third), (second, first, third), (third, second, first), (second, third, first),
        ):  # fmt: skip
            if day.isdecimal() and year.isdecimal() and len(day) <= 2 and len(year) in (2, 4):
                yield from (f"{int(year):0{len(year)}}{number:02}{int(day):02}" for number in _months(month))


def _months(word: str) -> Iterator[int]:
    """The months that a number or a word may denote; other letters may be joined to the name of the month."""
    if word.isdecimal():
        if len(word) <= 2:
            yield int(word)
        return
    for number, starts in enumerate(_MONTHS, start=1):
        if any(word == start or (len(start) >= 3 and start in word) for start in starts.split()):
            yield number


def _stands_alone(form: str, text: str) -> bool:
    """True if a text contains a date that is no part of a longer number."""
    start = text.find(form)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(form) : start + len(form) + 1]
        if not (before.isdigit() and form[0].isdigit()) and not (after.isdigit() and form[-1].isdigit()):
            return True
        start = text.find(form, start + 1)
    return False


def _readings(data: bytes) -> Iterator[str]:
    yield data.decode("latin-1")
    yield data.decode("utf-8", "replace")
    for start in (0, 1):
        for order in ("utf-16-le", "utf-16-be"):
            yield data[start:].decode(order, "replace")
            yield data[start::2].decode("latin-1")


def _patterns(word: str) -> Iterator[bytes]:
    """Byte patterns of a lower-case word; none for a short one, or one that resembles a grey area."""
    dense = word.encode("utf-8", "replace")
    if len(dense) < SHORTEST_IN_PIXELS or _is_ramp(dense):
        return
    for encoding in ("utf-8", "latin-1", "utf-16-le", "utf-16-be"):
        with suppress(UnicodeEncodeError):
            pattern = word.encode(encoding).lower()
            if len(pattern) >= SHORTEST_IN_PIXELS:
                yield pattern


def _is_ramp(data: bytes) -> bool:
    """True if bytes hardly change, or rise or fall by one, like the values of neighbouring pixels and tables."""
    steps = {after - before for before, after in pairwise(data)}
    return len(set(data)) < 3 or steps <= {0, 1} or steps <= {0, -1}
