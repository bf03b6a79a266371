"""Queries to an archive over either protocol: its studies, the series of a study, and objects as files.

Answers are untrusted: an invalid value counts as not stated, and an invalid UID drops the row. Objects are stored
unread and parsed later, in the sandboxed process that reads all files.
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
from radweave.io.dicom import read_header

Count = Callable[[str, int], None]
Row = TypeVar("Row")
MOST_BYTES: Final = 2 << 30
"""Bytes of all objects of one answer."""
ROW_BYTES: Final = 1 << 14
"""Bytes of each study or series in an answer, after decompression."""
CONNECT_S: Final = 3.0
"""Time limit of each step of opening a connection, and of releasing it."""
FREE_BYTES: Final = 1 << 30
"""Free disk space below which nothing is stored."""
WILDCARDS: Final = frozenset("*?\\")
"""Signs that make a key match other patients too (PS3.4 C.2.2.2.4)."""
_LOOK_S: Final = 0.1
_UID: Final = re.compile(r"[0-9]+(\.[0-9]+)+")
_DATE: Final = re.compile(r"(\d{4})\.?(\d{2})\.?(\d{2})")
_TIME: Final = re.compile(r"(\d{2}):?(\d{2})?:?(\d{2})?(\.\d{1,6})?")


class NotAnsweredError(Exception):
    """The archive is unreachable, refuses, or gives an unreadable answer. ``str`` is for users and quotes no value."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of one query: its ``deadline`` on the monotonic clock, the ``most`` rows, and a check for a stop."""

    deadline: float
    most: int
    is_stopped: Callable[[], bool] = bool

    @property
    def over(self) -> str | None:
        """The reason why the query has ended; None while it may go on."""
        if time.monotonic() >= self.deadline:
            return "the archive did not answer in time"
        return "the server stops" if self.is_stopped() else None

    @property
    def left_s(self) -> float:
        """Remaining seconds.

        Raises:
            NotAnsweredError: if there are none.
        """
        self.refuse_late()
        return max(_LOOK_S, self.deadline - time.monotonic())

    def refuse_late(self) -> None:
        """Raise ``NotAnsweredError`` once the query has ended."""
        if (why := self.over) is not None:
            raise NotAnsweredError(why)


@contextmanager
def close_at_deadline(limits: QueryLimits) -> Iterator[Callable[[socket.socket], None]]:
    """Register the connections of a query; close them when it ends, even during a blocking read.

    The timeout of a read alone does not stop a peer that sends single bytes.
    """
    held: list[socket.socket] = []
    ended = threading.Event()

    def take(connection: socket.socket) -> None:
        # A second descriptor of the same connection stays valid where its owner closes or encrypts the first.
        held.append(socket.socket(fileno=os.dup(connection.fileno())))

    def cut() -> None:
        for connection in held:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            if limits.over is not None:
                cut()

    watching = threading.Thread(target=watch, name="cut-late", daemon=True)
    watching.start()
    try:
        yield take
    finally:
        ended.set()
        watching.join()
        cut()
        for connection in held:
            connection.close()


@dataclass(frozen=True, slots=True)
class FoundStudy:
    """A study in an archive's answer; "" and None stand for values that are not stated."""

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
    """A series in an archive's answer."""

    uid: str = field(repr=False)
    modality: str
    body_part: str
    instances: int | None = None


class Archive(Protocol):
    """An archive that answers queries; each call is a query of its own and may raise ``NotAnsweredError``."""

    def studies(self, keys: Mapping[str, str], limits: QueryLimits) -> list[FoundStudy]:
        """Studies that match these values (keyword -> value)."""

    def series(self, study: str, limits: QueryLimits) -> list[FoundSeries]:
        """The series of a study."""

    def fetch(self, study: str, series: str, folder: Path, limits: QueryLimits) -> int:
        """Store the objects of a series in ``folder``; return their number."""


STUDY_KEYS: Final = (
    "StudyInstanceUID", "PatientID", "IssuerOfPatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyDate",
    "StudyTime", "NumberOfStudyRelatedInstances",
)  # fmt: skip
SERIES_KEYS: Final = ("SeriesInstanceUID", "Modality", "BodyPartExamined", "NumberOfSeriesRelatedInstances")


def found_study(answer: Mapping[str, str]) -> FoundStudy | None:
    """The study of one row of an answer (keyword -> text); None without a valid UID."""
    uid = answer.get("StudyInstanceUID", "").strip()
    if not is_uid(uid):
        return None
    date, born = (_DATE.fullmatch(answer.get(name, "").strip()) for name in ("StudyDate", "PatientBirthDate"))
    clock = _TIME.fullmatch(answer.get("StudyTime", "").strip())
    return FoundStudy(
        study_instance_uid=uid,
        patient_id=answer.get("PatientID", "").strip(),
        issuer_of_patient_id=answer.get("IssuerOfPatientID", "").strip(),
        patient_name=_readable(answer.get("PatientName", "").strip()),
        patient_birth_date="".join(born.groups()) if born else "",
        patient_sex=answer.get("PatientSex", "").strip(),
        study_date="".join(date.groups()) if date else "",
        study_time="".join(part or "" for part in clock.groups()) if clock else "",
        instances=_number(answer.get("NumberOfStudyRelatedInstances", "")),
    )


def found_series(answer: Mapping[str, str]) -> FoundSeries | None:
    """The series of one row of an answer; None without a valid UID."""
    uid = answer.get("SeriesInstanceUID", "").strip()
    if not is_uid(uid):
        return None
    instances = _number(answer.get("NumberOfSeriesRelatedInstances", ""))
    return FoundSeries(uid, answer.get("Modality", "").strip(), answer.get("BodyPartExamined", "").strip(), instances)


def readable(rows: Iterable[Any], read: Callable[[Any], Row | None], count: Count) -> list[Row]:
    """Parsed rows of an answer; rows that cannot be parsed are counted."""
    records: list[Row] = []
    for row in rows:
        record = None
        with suppress(Exception):  # untrusted input may fail in any way
            record = read(row)
        if record is None:
            count("archive_rows_unreadable", 1)
        else:
            records.append(record)
    return records


def _readable(name: str) -> str:
    """The name; "" if it holds characters outside its character set."""
    return "" if "\ufffd" in name or any(unicodedata.category(sign) in ("Cc", "Cs", "Cn") for sign in name) else name


def _number(text: str) -> int | None:
    number = text.strip()
    return int(number) if number.isascii() and number.isdigit() and len(number) < 9 else None


def refuse_full(folder: Path) -> None:
    """Refuse to fill the disk.

    Raises:
        OSError: if less than ``FREE_BYTES`` are free.
    """
    if shutil.disk_usage(folder).free < FREE_BYTES:
        raise OSError(errno.ENOSPC, "little is left of the disk")


def is_uid(text: str) -> bool:
    """True for a valid UID, which may then stand in a path of a URL."""
    return len(text) <= 64 and _UID.fullmatch(text) is not None


# The scan of a CT study: its largest series without the scouts.

CT: Final = "CT"
_SCOUT: Final = "LOCALIZER"
"""Image Type, value 3 (PS3.3 C.8.2.1.1.1)."""


def scan_of(files: Sequence[Path]) -> list[Path]:
    """Slices of the largest CT series, in the order given; all files if there is no CT slice.

    Ties are broken by the series key.
    """
    series: defaultdict[str, list[Path]] = defaultdict(list)
    for file in files:
        try:
            header = read_header(file)
        except InputError:
            continue
        if header.modality == CT and _SCOUT not in header.image_types and header.series_key is not None:
            series[header.series_key].append(file)
    if not series:
        return list(files)
    return max(series.items(), key=lambda pair: (len(pair[1]), pair[0]))[1]
