"""What is asked of an archive, whichever way: which studies there are, what lies in one, and its objects as files.

Answers come from outside: a value that is none of its kind is taken as not stated, and a UID that is none drops the
answer. Objects are laid down unread; they are parsed later, in the limited process that reads all files.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import threading
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from radweave.core.errors import InputError
from radweave.io.dicom import read_dicom

Count = Callable[[str, int], None]
Row = TypeVar("Row")
MOST_BYTES: Final = 2 << 30
"""Of all objects of one answer."""
ROW_BYTES: Final = 1 << 14
"""Of each study or series that an answer may name; unpacked, for a short answer may unpack to a long one."""
CONNECT_S: Final = 3.0
"""For each step until a connection stands, and for its polite end. In between it is cut where it must end."""
FREE_BYTES: Final = 1 << 30
"""Of a disk that is left free."""
WILDCARDS: Final = frozenset("*?\\")
"""A key that holds one of these asks for other patients too (PS3.4 C.2.2.2.4)."""
_LOOK_S: Final = 0.1
_UID: Final = re.compile(r"[0-9]+(\.[0-9]+)+")
_DATE: Final = re.compile(r"(\d{4})\.?(\d{2})\.?(\d{2})")
_TIME: Final = re.compile(r"(\d{2}):?(\d{2})?:?(\d{2})?(\.\d{1,6})?")


class NotAnsweredError(Exception):
    """The archive is away, refuses, or answers what cannot be read. ``str`` is for users and names no value of it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How long an answer may take (``deadline``, of the monotonic clock), how many it may have, and who may end it."""

    deadline: float
    most: int
    is_stopped: Callable[[], bool] = bool

    @property
    def over(self) -> str | None:
        """Why no more may come of it; None as long as it may."""
        if time.monotonic() >= self.deadline:
            return "the archive did not answer in time"
        return "the server stops" if self.is_stopped() else None

    @property
    def left_s(self) -> float:
        """Seconds that are left.

        Raises:
            NotAnsweredError: if none is.
        """
        self.refuse_late()
        return max(_LOOK_S, self.deadline - time.monotonic())

    def refuse_late(self) -> None:
        """See ``left_s``."""
        if (why := self.over) is not None:
            raise NotAnsweredError(why)


@contextmanager
def cut_late(asked: Asked) -> Iterator[Callable[[socket.socket], None]]:
    """Take the connections of a question, and cut them when it must end, whoever waits for them.

    A read has a limit of its own, which a peer that drips never reaches.
    """
    held: list[socket.socket] = []
    ended = threading.Event()

    def take(connection: socket.socket) -> None:
        # A second descriptor of the same connection stays valid where its owner closes or encrypts the first.
        held.append(socket.socket(fileno=os.dup(connection.fileno())))

    def cut() -> None:
        for one in held:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            if asked.over is not None:
                cut()

    watching = threading.Thread(target=watch, name="cut-late", daemon=True)
    watching.start()
    try:
        yield take
    finally:
        ended.set()
        watching.join()
        cut()
        for one in held:
            one.close()


@dataclass(frozen=True, slots=True)
class FoundStudy:
    """A study that the archive named, with what it said of it; "" and None where it said nothing."""

    study_instance_uid: str = field(repr=False)
    patient_id: str = field(repr=False)
    issuer_of_patient_id: str = field(repr=False)
    patient_name: str = field(repr=False)
    patient_birth_date: str = field(repr=False)
    patient_sex: str = field(repr=False)
    study_date: str = field(repr=False)
    study_time: str = field(repr=False)
    instances: int | None


@dataclass(frozen=True, slots=True)
class FoundSeries:
    """A series of a study that the archive named."""

    uid: str = field(repr=False)
    modality: str
    body_part: str
    instances: int | None = None


class Archive(Protocol):
    """An archive that can be asked; each call is a question of its own. All raise ``NotAnsweredError``."""

    def studies(self, keys: Mapping[str, str], asked: Asked) -> list[FoundStudy]:
        """The studies that have these values (keyword -> value)."""

    def series(self, study: str, asked: Asked) -> list[FoundSeries]:
        """The series of a study."""

    def fetch(self, study: str, series: str, folder: Path, asked: Asked) -> int:
        """Lay the objects of a series into ``folder``; how many came."""


STUDY_KEYS: Final = (
    "StudyInstanceUID", "PatientID", "IssuerOfPatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyDate",
    "StudyTime", "NumberOfStudyRelatedInstances",
)  # fmt: skip
SERIES_KEYS: Final = ("SeriesInstanceUID", "Modality", "BodyPartExamined", "NumberOfSeriesRelatedInstances")


def found_study(said: Mapping[str, str]) -> FoundStudy | None:
    """A study of what an answer says (keyword -> text); None where it names none."""
    uid = said.get("StudyInstanceUID", "").strip()
    if not is_uid(uid):
        return None
    date, born = (_DATE.fullmatch(said.get(name, "").strip()) for name in ("StudyDate", "PatientBirthDate"))
    clock = _TIME.fullmatch(said.get("StudyTime", "").strip())
    return FoundStudy(
        study_instance_uid=uid,
        patient_id=said.get("PatientID", "").strip(),
        issuer_of_patient_id=said.get("IssuerOfPatientID", "").strip(),
        patient_name=_readable(said.get("PatientName", "").strip()),
        patient_birth_date="".join(born.groups()) if born else "",
        patient_sex=said.get("PatientSex", "").strip(),
        study_date="".join(date.groups()) if date else "",
        study_time="".join(part or "" for part in clock.groups()) if clock else "",
        instances=_number(said.get("NumberOfStudyRelatedInstances", "")),
    )


def found_series(said: Mapping[str, str]) -> FoundSeries | None:
    """A series of what an answer says; None where it names none."""
    uid = said.get("SeriesInstanceUID", "").strip()
    if not is_uid(uid):
        return None
    instances = _number(said.get("NumberOfSeriesRelatedInstances", ""))
    return FoundSeries(uid, said.get("Modality", "").strip(), said.get("BodyPartExamined", "").strip(), instances)


def readable(rows: Iterable[Any], read: Callable[[Any], Row | None], count: Count) -> list[Row]:
    """What the rows of an answer say; a row that says nothing, or cannot be read in any way, is counted."""
    found: list[Row] = []
    for row in rows:
        one = None
        with suppress(Exception):  # what an archive says may fail in any way
            one = read(row)
        if one is None:
            count("archive_rows_unreadable", 1)
        else:
            found.append(one)
    return found


def _readable(name: str) -> str:
    """A name; "" for one with signs that its character set does not have, which says nothing."""
    return "" if "\ufffd" in name or any(unicodedata.category(sign) in ("Cc", "Cs", "Cn") for sign in name) else name


def _number(text: str) -> int | None:
    number = text.strip()
    return int(number) if number.isascii() and number.isdigit() and len(number) < 9 else None


def refuse_full(folder: Path) -> None:
    """Refuse to fill the disk.

    Raises:
        OSError: if little is left.
    """
    if shutil.disk_usage(folder).free < FREE_BYTES:
        raise OSError(errno.ENOSPC, "little is left of the disk")


def is_uid(text: str) -> bool:
    """Whether it is one, and so may stand in a path of a URL."""
    return len(text) <= 64 and _UID.fullmatch(text) is not None


# Which images of a CT study are its scan: an archive has the scan in several series, and scouts beside it.


CT: Final = "CT"
_SCOUT: Final = "LOCALIZER"
"""Image Type, value 3 (PS3.3 C.8.2.1.1.1)."""


def scan_of(files: Sequence[Path]) -> list[Path]:
    """The slices of the CT series that has most of them, in the order given; all files where none is such a slice.

    Of series with equally many it is always the same one.
    """
    series: defaultdict[str, list[Path]] = defaultdict(list)
    for file in files:
        try:
            header = read_dicom(file, pixels=False).header
        except InputError:
            continue
        if header.modality == CT and _SCOUT not in header.image_types and header.series_key is not None:
            series[header.series_key].append(file)
    if not series:
        return list(files)
    return max(series.items(), key=lambda pair: (len(pair[1]), pair[0]))[1]
