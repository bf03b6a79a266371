"""Ids of the same patient in different spellings, and content hashes of image files.

``P7``, ``p7 ``, ``p007`` and ``0p7`` are one patient, and so is an id in which a Cyrillic letter stands for the Latin
one that it resembles. The comparable form serves comparison only: a data set keeps its ids unchanged.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.storage import sha256_file, sha256_json, write_text
from radweave.data.cache.arrays import in_order, stamp
from radweave.data.dataset import Dataset

_LOOK_ALIKES: Final = str.maketrans(
    # Cyrillic, Greek, Armenian and others, capitals apart where they resemble other letters than the small ones do.
    "АВЕЅСНІЈКМОРԚТУХԜавеѕсԁнһіјкӏморԛтухԝѵΑΒΕΖΗΙΚΜΝΟΡΤΥΧαεικνορτυχօսոհյıɑɡ‐‑‒–—―−",
    "abeschijkmopqtyxwabescdhhijklmopqtyxwvabezhikmnoptyxaeikvoptuxounhjiag-------",
)
"""Letters of other scripts that print like Latin ones, and dashes."""

_FILLERS: Final = "\u115f\u1160\u17b4\u17b5\u3164\uffa0"
"""Invisible letters and symbols."""
_SPREADSHEET: Final = re.compile(r"(?<=[0-9])\.0+$")
"""The decimals that a spreadsheet appends to a number."""
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")


def comparable_id(identifier: str) -> str:
    """A form that is equal for two ids of the same patient; may be equal for two others only by odd numbering.

    Width, case, blanks, invisible characters, accents, look-alike letters, the script of digits, leading zeros, quotes
    around the id and a final ".0" make no difference.
    """
    form, plainer = identifier, _plainer(identifier)
    # A pass may expose more to remove: a blank behind a zero, a quote behind the blank.
    while plainer != form:
        form, plainer = plainer, _plainer(plainer)
    return form


def _plainer(plain: str) -> str:
    """One normalisation pass over an id."""
    if not plain.isascii():
        # Look-alikes are replaced before letters are decomposed and lose their marks.
        plain = _latin(unicodedata.normalize("NFKC", plain)).replace("\u2800", " ")
        plain = unicodedata.normalize("NFKD", plain)
        plain = "".join(_digit(character) for character in plain if not _is_invisible(character))
    plain = "".join(character for character in " ".join(plain.split()) if character.isprintable())
    plain = _latin(plain.casefold()).strip("'\" ")
    plain = _SPREADSHEET.sub("", plain)
    # "0" before a number or before the whole id; an id of zeros alone stays "0".
    return _LEADING_ZEROS.sub("", plain).lstrip("0") or ("0" if plain else "")


def _latin(text: str) -> str:
    """The text with look-alike letters replaced by Latin ones."""
    return text.translate(_LOOK_ALIKES)


def _is_invisible(character: str) -> bool:
    """True for controls, combining marks and fillers."""
    unseen = unicodedata.category(character) in ("Cf", "Cc", "Mn", "Me", "Mc") and not character.isspace()
    return unseen or character in _FILLERS


def _digit(character: str) -> str:
    value = unicodedata.digit(character, None)
    return character if value is None else str(value)


# Hashes of a data set's image files, each file read once.
#
# DATASET/.cache/hashes.json    path -> stamp and hash of each file; a file whose stamp changed is read again


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and hashes of a series folder's files.

    Raises:
        InputError: if there is nothing in it.
        OSError: if it cannot be read.
    """
    if path.is_dir():
        members = {member.name: sha256_file(member) for member in sorted(path.iterdir()) if member.is_file()}
        if not members:
            raise InputError("series folder is empty", file=path)
        return sha256_json(members)
    if path.stat().st_size == 0:
        raise InputError("image file is empty", file=path)
    return sha256_file(path)


def hashes_of(dataset: Dataset, paths: Iterable[str]) -> dict[str, str]:
    """Path inside the data set -> hash of its content; missing and unreadable files are left out.

    A file is read again if its size or times changed; the time of its entry cannot be set back.
    """
    table = dataset.path / ".cache" / "hashes.json"
    known = _read_hashes(table)
    hashes: dict[str, str] = {}
    entries: dict[str, list[Any]] = {}

    def read(path: str) -> tuple[str, list[Any] | None]:
        try:
            full = dataset.image_path(path)
            return path, [stamp(full), content_hash(full)]
        except (InputError, OSError):
            return path, None

    unique_paths = list(dict.fromkeys(paths))
    # Most files are unchanged: a look at their times takes less than a hand-over to a thread.
    changed = [path for path in unique_paths if not _is_current(known.get(path), dataset.path / path)]
    read_anew = {path: entry for path, (_, entry) in in_order(read, changed)}
    for path in unique_paths:
        entry = read_anew[path] if path in read_anew else known[path]
        if entry is not None:
            entries[path] = entry
            hashes[path] = str(entry[1])
    if entries != known:
        # A data set that cannot be written is hashed each time.
        with suppress(InputError, OSError):
            write_text(table, json.dumps(entries, ensure_ascii=True, separators=(",", ":")) + "\n")
    return hashes


def _is_current(entry: Any, path: Path) -> bool:
    """True if a cached entry belongs to the present file."""
    return isinstance(entry, list) and len(entry) == 2 and entry[0] != "" and entry[0] == stamp(path)


def _read_hashes(table: Path) -> dict[str, Any]:
    try:
        known = read_json(table)
    except (InputError, OSError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
