"""Take out of report texts what names a person: what the headers and ids of the study say, a list, and usual patterns.

Each is replaced by ``___``, the mark that MIMIC-CXR uses, so that ``drop_deid_marks`` and ``drop_deid_sentences`` know
it. A name that stands in no list, in no header and after no title stays: this is a help, not a de-identification.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from radweave.base.errors import InputError

MARK: Final = "___"
SHORTEST = 3
"""Characters of the shortest word that a list, an id or a header takes out; initials stay."""

LARGEST_LIST_BYTES = 64 << 20

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?|JAN|FEB|MAR|APR|MAY|JUNE?|JULY?|AUG|SEPT?|OCT|NOV|DEC)\.?"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_NAME = r"[A-Z][\w'’-]{1,40}"
# Every repetition is bounded, and none begins inside a word, so that no text takes more than linear time.
_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",  # e-mail
        r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b",  # 2024-05-17
        r"\b\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})\b",  # 5/17/24
        rf"\b{_MONTH}\s{{1,3}}{_DAY}\b(?:,?\s{{1,3}}\d{{4}}\b)?",  # May 17, 2024
        rf"\b{_DAY}\s{{1,3}}{_MONTH},?(?:\s{{1,3}}\d{{4}}\b)?(?!\w)",  # 17 May 2024
        r"(?<![\w.])\+?\(?\d{3}\)?[ .-]\d{3}[ .-]?\d{4}\b",  # telephone
        r"\b[A-Z]{0,3}\d{6,}\b",  # record and accession numbers
        rf"\b(?:[Dd]rs?|[Mm]rs?|[Mm]s|[Pp]rof|[Dd]octor|[Pp]rofessor)\b\.?\s{{1,3}}{_NAME}"
        rf"(?:\s{{1,3}}(?:[A-Z]\.\s?)?{_NAME})?",  # Dr. Jane B. Doe
    )
)
_WORD: Final = re.compile(r"[^\W_]+")


class HeaderWords:
    """Words of names and ids in DICOM headers, known by salted digests alone: no value leaves the reading process."""

    def __init__(self) -> None:
        self._salt = secrets.token_hex(16)

    def read(self, files: Iterable[Path]) -> frozenset[str]:
        """Digests of the words in the headers of those files that are DICOM; what cannot be read gives none."""
        from radweave.data.reading.dicom import identity_keys

        found: set[str] = set()
        for path in files:
            members = sorted(path.iterdir())[:1] if path.is_dir() else [path]
            for member in members:
                if member.is_file() and _is_dicom(member):
                    found |= identity_keys(member, self._salt)
        return frozenset(found)

    def digest(self, word: str) -> str:
        from radweave.data.reading.dicom_words import word_key

        return word_key(word, self._salt)


def _is_dicom(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


class Scrubber:
    """Replaces what names a person in the texts of one study after the other, and counts it.

    Args:
        listed: names from the user's list.
    """

    def __init__(self, listed: Iterable[str] = ()) -> None:
        self._listed = frozenset(word for name in listed for word in _words(name))
        self._headers = HeaderWords()
        self.count = 0

    def study(self, ids: Iterable[str], files: Iterable[Path]) -> StudyScrubber:
        """A scrubber for the texts of a study, which also knows its ids and the DICOM headers of its images."""
        own = {word for identifier in ids for word in _words(identifier) if any(c.isdigit() for c in word)}
        return StudyScrubber(self, self._listed | own, self._headers.read(files))

    def digest(self, word: str) -> str:
        return self._headers.digest(word)


class StudyScrubber:
    """See ``Scrubber.study``."""

    def __init__(self, scrubber: Scrubber, words: frozenset[str], digests: frozenset[str]) -> None:
        self._scrubber, self._taken, self._digests = scrubber, words, digests

    def __call__(self, text: str) -> str:
        for pattern in _PATTERNS:
            text = self._replace(pattern, text)
        return self._replace(_WORD, text)

    def _replace(self, pattern: re.Pattern[str], text: str) -> str:
        def mark(match: re.Match[str]) -> str:
            if pattern is _WORD and not self._names(match[0].casefold()):
                return match[0]
            self._scrubber.count += 1
            return MARK

        return pattern.sub(mark, text)

    def _names(self, word: str) -> bool:
        if len(word) < SHORTEST:
            return False
        return word in self._taken or (bool(self._digests) and self._scrubber.digest(word) in self._digests)


def _words(text: str) -> list[str]:
    return [word for word in (match.casefold() for match in _WORD.findall(text)) if len(word) >= SHORTEST]


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
