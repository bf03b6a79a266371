"""Scrub identifying text from reports: names and ids of the study's headers, a list of names, and common patterns.

A name is matched as a word, joined with the person's other names, with and without diacritics, and, with two letters,
only if capitalised. An id is matched with any single separator between its parts.
Each match becomes ``___``, the mark of MIMIC-CXR, which ``drop_deid_marks`` and ``drop_deid_sentences`` recognise. A
name in no list and no header and after no title stays: this assists a de-identification and does not replace it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from radweave.core.errors import InputError
from radweave.core.same_patient import plain_spellings
from radweave.io.dicom_fields import SHORTEST_NAME, number_spellings, spellings, word_key

MARK: Final = "___"
SHORTEST = 3
"""Length of the shortest word of a list, an id or a header that is always removed; initials stay."""
_SHORT_WORDS = """ad am an ap as at be bi by cc cm ct cv do ed em en er et ex go gu he ho hr ii in iv is it la ll lt
    lv me mg ml mm mr my ng no of og oh on op or pa pe pm po pt ra re rt rv se si so st sv to up us va vs we xi xl xv"""
SHORT_WORDS: Final = frozenset(_SHORT_WORDS.split())
"""Common words of two letters: as names they are removed only next to another name."""

LARGEST_LIST_BYTES = 64 << 20

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_CAPITAL_MONTH = rf"(?:{_MONTH}|{_MONTH.upper()})"
"""Capitalised month: without a year, "may" and "march" are words."""
_DAY = r"(?:3[01]|[12]\d|0?[1-9])(?:st|nd|rd|th|ST|ND|RD|TH|\.)?"
_YEAR = r"(?:1[89]|20)\d\d"
_NAME = r"[A-Z][\w'’-]{1,40}"
_START, _END = r"(?<![^\W_])", r"(?![^\W_])"
# Every repetition is bounded, and none begins inside a word, so that no text takes more than linear time.
_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",  # e-mail
        rf"{_START}\d{{4}}[-/._]\d{{1,2}}[-/._]\d{{1,2}}{_END}",  # 2024-05-17
        rf"{_START}\d{{1,2}}[-/._]\d{{1,2}}[-/._](?:\d{{4}}|\d{{2}}){_END}",  # 5/17/24
        rf"{_START}(?:\d\d? \d\d? {_YEAR}|{_YEAR} \d\d \d\d){_END}",  # 17 05 2024
        rf"(?i:{_START}{_DAY}[-\s/._]{{0,3}}(?:of\s)?{_MONTH}[-\s/._,]{{0,3}}{_YEAR}{_END})",  # 17 May 2024
        rf"(?i:{_START}{_MONTH}[-\s/._]{{0,3}}(?:the\s)?{_DAY}[-\s/._,]{{1,3}}{_YEAR}{_END})",  # May 17, 2024
        rf"(?i:{_START}{_YEAR}[-\s/._,]{{0,3}}{_MONTH}[-\s/._]{{0,3}}{_DAY}{_END})",  # 2024-May-17
        rf"(?i:{_START}{_MONTH},?[-\s/]{{0,3}}(?:of\s)?{_YEAR}{_END})",  # May 2024
        rf"{_START}(?:0?[1-9]|1[0-2])/{_YEAR}{_END}",  # 05/2024
        rf"(?i:{_START}{_DAY}([-/._]?){_MONTH}\1['’]?\d\d{_END})",  # 17-MAY-24
        rf"(?i:{_START}{_MONTH}([-/._]){_DAY}\1['’]?\d\d{_END})",  # May-17-24
        rf"{_START}{_CAPITAL_MONTH}\s{{1,3}}(?:the\s)?{_DAY}(?:,?\s['’]\d\d)?{_END}",  # May 17, '24
        rf"{_START}{_DAY}\s{{1,3}}(?:of\s)?{_CAPITAL_MONTH}(?:,?\s['’]\d\d)?{_END}",  # 17th of May
        r"(?<!\d)\d{4}年\d{1,2}月\d{1,2}日",
        r"(?<![\w.])\+?\(?\d{3}\)?[ .-]\d{3}[ .-]?\d{4}\b",  # telephone
        rf"{_START}[^\W\d_]{{0,8}}\d{{6,64}}[^\W_]{{0,8}}{_END}",  # record and accession numbers
        rf"\b(?:[Dd]rs?|[Mm]rs?|[Mm]s|[Pp]rof|[Dd]octor|[Pp]rofessor)\b\.?\s{{1,3}}{_NAME}"
        rf"(?:\s{{1,3}}(?:[A-Z]\.\s?)?{_NAME})?",  # Dr. Jane B. Doe
    )
)
_GROUPS: Final = re.compile(
    rf"{_START}\d{{1,8}}(?:-\d{{1,8}}){{1,5}}{_END}|{_START}\d{{2,8}}(?: \d{{2,8}}){{1,5}}{_END}"
)
"""Numbers in groups of digits: record and telephone numbers, but also levels, sizes and counts."""
_YEARS: Final = re.compile(rf"{_YEAR}[- ]{_YEAR}")
FEWEST_DIGITS: Final = 7
_SEPARATORS: Final = frozenset("-/._ ")
_MOST_PARTS: Final = 6
_FEWEST_KNOWN_DIGITS: Final = 4
"""Digits of a separated id; fewer are adjacent by chance."""
_WORD: Final = re.compile(r"[^\W_]+")
_BETWEEN: Final = re.compile(r"[\s,^.-]{1,3}")


class HeaderWords:
    """Words of names and ids in DICOM headers as salted digests: no value leaves the reading process."""

    def __init__(self) -> None:
        self._salt = secrets.token_hex(16)

    def read(self, files: Iterable[Path]) -> frozenset[str]:
        """Digests of the words in the headers of DICOM files; other and unreadable files give none."""
        from radweave.io.dicom import identity_keys

        digests: set[str] = set()
        for path in files:
            members = sorted(path.iterdir())[:1] if path.is_dir() else [path]
            for member in members:
                if member.is_file() and _is_dicom(member):
                    digests |= identity_keys(member, self._salt)
        return frozenset(digests)

    def digest(self, word: str) -> str:
        return word_key(word, self._salt)


def _is_dicom(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


class Scrubber:
    """Replaces identifying text in one study after the other, and counts replacements.

    Args:
        listed: names from the user's list.
    """

    def __init__(self, listed: Iterable[str] = ()) -> None:
        self._listed = frozenset(word for name in listed for word in spellings(name))
        self._headers = HeaderWords()
        self.count = 0

    def study(self, ids: Iterable[str], files: Iterable[Path]) -> StudyScrubber:
        """A scrubber for the texts of a study, with its ids and the DICOM headers of its images."""
        own = {word for identifier in ids for word in number_spellings(identifier) if any(c.isdigit() for c in word)}
        return StudyScrubber(self, self._listed | own, self._headers.read(files))

    def digest(self, word: str) -> str:
        return self._headers.digest(word)


class StudyScrubber:
    """Scrubber of one study, made by ``Scrubber.study``."""

    def __init__(self, scrubber: Scrubber, words: frozenset[str], digests: frozenset[str]) -> None:
        self._scrubber, self._taken, self._digests = scrubber, words, digests

    def __call__(self, text: str) -> str:
        for pattern in _PATTERNS:
            text = self._replace(pattern, text)
        text = self._replace(_GROUPS, text)
        return self._without_names(self._without_parted_ids(text))

    def _replace(self, pattern: re.Pattern[str], text: str) -> str:
        def mark(match: re.Match[str]) -> str:
            if pattern is _GROUPS and not (_is_long(match[0]) or self._names(re.sub("[- ]", "", match[0]))):
                return match[0]
            self._scrubber.count += 1
            return MARK

        return pattern.sub(mark, text)

    def _without_parted_ids(self, text: str) -> str:
        words = list(_WORD.finditer(text))
        pieces, end, number = [], 0, 0
        while number < len(words):
            last = self._end_of_id(text, words, number)
            if last > number:
                self._scrubber.count += 1
                pieces += [text[end : words[number].start()], MARK]
                end = words[last].end()
            number = last + 1
        return "".join([*pieces, text[end:]])

    def _end_of_id(self, text: str, words: list[re.Match[str]], first: int) -> int:
        """Index of the last word of an id that begins at ``first``; ``first`` without a separated id."""
        prefix, digits, last = words[first][0], sum(map(str.isdigit, words[first][0])), first
        for number in range(first + 1, min(first + _MOST_PARTS, len(words))):
            between = text[words[number - 1].end() : words[number].start()]
            if between not in _SEPARATORS:
                break
            prefix, digits = prefix + words[number][0], digits + sum(map(str.isdigit, words[number][0]))
            if digits >= _FEWEST_KNOWN_DIGITS and words[number][0][-1].isdigit() and self._names(prefix.casefold()):
                last = number
        return last

    def _without_names(self, text: str) -> str:
        words = list(_WORD.finditer(text))
        named = [self._names(match[0].casefold()) for match in words]
        pieces, end = [], 0
        for number, match in enumerate(words):
            if named[number] and (len(match[0]) >= SHORTEST or self._short_name(text, words, named, number)):
                self._scrubber.count += 1
                pieces += [text[end : match.start()], MARK]
                end = match.end()
        return "".join([*pieces, text[end:]])

    def _short_name(self, text: str, words: list[re.Match[str]], named: list[bool], number: int) -> bool:
        """True if a matching word of two letters is used as a name: ``Li``, and ``An`` in ``An Do``."""
        word = words[number][0]
        if not word[0].isupper() and word[0].islower():
            return False
        if word.casefold() not in SHORT_WORDS:
            return True
        return any(
            0 <= one < len(words) - 1 and named[one] and named[one + 1] and words[one + 1][0][0].isupper()
            and words[one][0][0].isupper() and _BETWEEN.fullmatch(text, words[one].end(), words[one + 1].start())
            for one in (number - 1, number)
        )  # fmt: skip

    def _names(self, word: str) -> bool:
        if len(word) < SHORTEST_NAME:
            return False
        written = {word} if word.isascii() else {word, *plain_spellings(word)}
        return not written.isdisjoint(self._taken) or (
            bool(self._digests) and any(self._scrubber.digest(one) in self._digests for one in written)
        )


def bears_pattern(text: str) -> bool:
    """True if a text contains a date, a personal number, an address or a name after a title."""
    return any(pattern.search(text) for pattern in _PATTERNS) or any(_is_long(one[0]) for one in _GROUPS.finditer(text))


def _is_long(number: str) -> bool:
    groups = re.split("[- ]", number)
    if len(groups) == 2 and (" " in number or min(map(len, groups)) < SHORTEST):  # T4-5, 12 345, 10-1000
        return False
    return sum(map(len, groups)) >= FEWEST_DIGITS and not _YEARS.fullmatch(number)


def read_names(path: Path) -> list[str]:
    """Names from a text file, one a line.

    Raises:
        InputError: if it is missing, too large or no UTF-8 text.
    """
    try:
        if path.stat().st_size > LARGEST_LIST_BYTES:
            raise InputError("the list of names is too large", file=path, expected="at most 64 MB")
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise InputError(f"the list of names cannot be read: {error.strerror}", file=path) from None
    except UnicodeDecodeError:
        raise InputError("the list of names is not UTF-8 text", file=path) from None
