"""The manifest of a data set, read once by a command, however often it is asked.

Whoever opens a data set that another part of the command holds gets the same reading, which goes with the last of them.
A manifest that changes is read anew. One that would take more than about a gigabyte in memory is streamed each time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from sys import intern
from typing import Any, Final
from weakref import WeakValueDictionary

from pydantic import ValidationError

from radweave.base.config import first_problem
from radweave.base.errors import InputError
from radweave.base.hashes import sha256_file
from radweave.base.json_files import parse_jsonl
from radweave.base.study import LabelState, Record, Study

MAX_KEPT_BYTES: Final = 340 << 20
"""Largest manifest that is kept. 30,000 studies took 2.4 to 2.8 times the bytes of their lines: a gigabyte at most."""
SETTLED_NS: Final = 50_000_000
"""A file changed so lately may change again without another time of change: clocks of file systems tick slowly."""

_Identity = tuple[int, ...]


class Manifest:
    """``manifest.jsonl`` of one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: _Identity | None = None
        self._fingerprint: str | None = None
        self._studies: tuple[Study, ...] | None = None

    def fingerprint(self) -> str:
        """SHA-256 of the manifest as it is on disk now."""
        self._forget_changed()
        if self._fingerprint is None:
            identity = self._identity_now()
            found = sha256_file(self.path)
            if not self._keeps(identity):
                return found
            self._fingerprint = found
        return self._fingerprint

    def studies(self) -> Iterable[Study]:
        """Every study, checked.

        Raises:
            InputError: for a line that is not JSON or does not fit the schema, or an id that comes twice.
        """
        self._forget_changed()
        if self._studies is not None:
            return self._studies
        identity = self._identity_now()
        if identity is None or identity[2] > MAX_KEPT_BYTES:
            return self._read(None)
        digest = hashlib.sha256()
        studies = tuple(_lighter(self._read(digest)))
        if self._keeps(identity):
            self._studies, self._fingerprint = studies, digest.hexdigest()
        return studies

    def _read(self, digest: hashlib._Hash | None) -> Iterator[Study]:
        if not self.path.is_file():
            raise InputError("file is missing", file=self.path)
        seen: set[str] = set()
        with self.path.open("rb") as file:
            for number, row in parse_jsonl(_hashed(file, digest), self.path):
                try:
                    study = Study.model_validate(row)
                except ValidationError as error:
                    raise InputError(first_problem(error), file=self.path, line=number) from None
                if study.study_id in seen:
                    raise InputError("study id comes twice", file=self.path, line=number, field="study_id")
                seen.add(study.study_id)
                yield study

    def _forget_changed(self) -> None:
        now = self._identity_now()
        if now != self._identity:
            self._fingerprint = self._studies = None
            self._identity = now

    def _keeps(self, before: _Identity | None) -> bool:
        """Whether what was read since ``before`` is of a file that did not change meanwhile, nor a moment ago."""
        return before is not None and before == self._identity_now() and time.time_ns() - before[4] > SETTLED_NS

    def _identity_now(self) -> _Identity | None:
        """What changes with the content: nobody can set the time of change back."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


_open: WeakValueDictionary[Path, Manifest] = WeakValueDictionary()


def manifest_at(path: Path) -> Manifest:
    """The reading of this file that others hold, or a new one."""
    place = path.absolute()
    manifest = _open.get(place)
    if manifest is None:
        manifest = _open[place] = Manifest(path)
    return manifest


def _hashed(lines: Iterable[bytes], digest: hashlib._Hash | None) -> Iterator[bytes]:
    for line in lines:
        if digest is not None:
            digest.update(line)
        yield line


def _lighter(studies: Iterable[Study]) -> Iterator[Study]:
    """The same studies; what is equal in many of them is one object, which saves a third of their memory."""
    sets: dict[frozenset[str], set[str]] = {}
    for study in studies:
        for record in (study, *study.images):
            _share_fields_set(record, sets)
        for named in (*study.labels.values(), *study.truth):
            _intern_names(named)
        yield study


def _share_fields_set(record: Record, sets: dict[frozenset[str], set[str]]) -> None:
    fields = record.model_fields_set
    object.__setattr__(record, "__pydantic_fields_set__", sets.setdefault(frozenset(fields), fields))


def _intern_names(named: dict[str, Any] | dict[str, LabelState]) -> None:
    known = {intern(name): value for name, value in named.items()}
    named.clear()
    named.update(known)
