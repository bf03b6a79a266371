"""The work list: studies with the headers of their images, priority, and who has them in hand.

Headers are read from the files and held in memory only. Where patients are hidden (``Settings.hide_patients``), a study
and its files have numbers for names, a patient a pseudonym, and no other identifying header leaves the server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal

import sqlalchemy as sa

from radweave.io.dicom_fields import BODY_PARTS, MODALITIES
from radweave.workstation import locks, store
from radweave.workstation.database import PRIORITIES, ROUTINE, files, patients, studies
from radweave.workstation.database import locks as locks_table
from radweave.workstation.drafts import EDITABLE
from radweave.workstation.identity import Identity
from radweave.workstation.station import Station
from radweave.workstation.users import User

HEADERS: Final = (
    "patient_name", "patient_id", "patient_sex", "patient_age", "accession_number", "modality", "body_part_examined",
    "study_date", "study_description",
)  # fmt: skip
IDENTIFYING: Final = ("patient_name", "patient_id", "accession_number", "study_date", "study_description")
"""Headers that are not shown where patients are hidden; ages of 90 years and more are shown as 90."""
KNOWN_TERMS: Final = {"modality": MODALITIES, "body_part_examined": BODY_PARTS}
"""Terms of the standard in headers that are free text; others are not shown where patients are hidden."""
Sort = Literal[
    "created", "changed", "name", "state", "priority", "holder", "patient_name", "patient_id", "patient_sex",
    "patient_age", "accession_number", "modality", "body_part_examined", "study_date", "study_description",
]  # fmt: skip
State = Literal["waiting", "drafting", "drafted", "edited", "signed", "refused", "rejected"]
Priority = Literal["low", "routine", "high", "stat"]
Holder = Literal["own", "others", "nobody"]
SEARCHED: Final = ("patient_name", "patient_id", "accession_number")
MOST_SORTED: Final = 1_000
"""Most studies, the newest, whose headers are read to sort or search by them."""
_OLDEST_SHOWN: Final = "090Y"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters of the work list; None filters nothing.

    ``search`` is part of a study's name, of its patient's name or id, or of its accession number; ``since`` and
    ``until`` are days of the study date (YYYYMMDD).
    """

    state: State | None = None
    search: str | None = None
    priority: Priority | None = None
    holder: Holder | None = None
    modality: str | None = None
    body_part: str | None = None
    since: str | None = None
    until: str | None = None

    def conditions(self, user: User, idle_s: float) -> list[sa.ColumnElement[bool]]:
        """Filters of the database."""
        columns = {studies.c.state: self.state, studies.c.priority: self.priority}
        conditions = [column == value for column, value in columns.items() if value is not None]
        return conditions if self.holder is None else [*conditions, _held(self.holder, user, idle_s)]

    @property
    def reads_headers(self) -> bool:
        return any((self.search, self.modality, self.body_part, self.since, self.until))

    def fits(self, row: dict[str, Any]) -> bool:
        """True if the headers of a row fit."""
        headers = row["headers"]
        words, day = (self.search or "").casefold(), headers["study_date"]
        if not any(words in text.casefold() for text in (row["name"], *(headers[name] for name in SEARCHED))):
            return False
        equal = (("modality", self.modality), ("body_part_examined", self.body_part))
        if any(value and headers[name].casefold() != value.casefold() for name, value in equal):
            return False
        return (not self.since or self.since <= day) and (not self.until or "" < day <= self.until)


def _held(by: Holder, user: User, idle_s: float) -> sa.ColumnElement[bool]:
    """Condition of studies that ``user``, another reader or nobody has in hand."""
    held = sa.exists().where(locks_table.c.study_id == studies.c.id, locks.is_active(idle_s))
    if by == "nobody":
        return ~held
    is_own = locks_table.c.user_id == user.id
    return held.where(is_own if by == "own" else ~is_own)


def page(
    station: Station, connection: sa.Connection, user: User, wanted: Wanted, *, offset: int, limit: int, sort: Sort,
    descending: bool,
) -> tuple[int, list[dict[str, Any]]]:  # fmt: skip
    """Number of matching studies, and a page of them as JSON values with ``headers`` and ``holder``.

    Headers, priority and holder sort and match among the newest ``MOST_SORTED`` studies. Studies of one priority are in
    the order of their dates, the oldest first.
    """
    conditions = wanted.conditions(user, station.settings.idle_s)
    if sort == "created" and descending and not wanted.reads_headers:
        total, rows = store.work_list(connection, user, *conditions, offset=offset, limit=limit)
        return total, _described(station, connection, user, rows)
    _, rows = store.work_list(connection, user, *conditions, offset=0, limit=MOST_SORTED)
    rows = [row for row in _described(station, connection, user, rows) if wanted.fits(row)]
    if sort == "priority":
        rows.sort(key=_day)
    rows.sort(key=_KEYS.get(sort, lambda row: _text(row, sort)), reverse=descending)
    return len(rows), rows[offset : offset + limit]


def following(
    station: Station, connection: sa.Connection, user: User, skipped: Collection[str], limit: int
) -> list[dict[str, Any]]:
    """The next studies to read: the most urgent first, of those the oldest, none that another reader has in hand."""
    is_free = ~_held("others", user, station.settings.idle_s)
    is_open = (studies.c.state.in_(EDITABLE), studies.c.id.not_in(list(skipped)), is_free)
    _, rows = store.work_list(connection, user, *is_open, offset=0, limit=MOST_SORTED)
    rows = _described(station, connection, user, rows)
    return sorted(rows, key=lambda row: (-_rank(row), _day(row)))[:limit]


def _rank(row: dict[str, Any]) -> int:
    return PRIORITIES.index(row["priority"]) if row["priority"] in PRIORITIES else PRIORITIES.index(ROUTINE)


def _day(row: dict[str, Any]) -> tuple[str, str]:
    """Study date, else the day on which it came, and the time at which it came."""
    return row["headers"]["study_date"] or row["created"][:10].replace("-", ""), row["created"]


def _text(row: dict[str, Any], column: str) -> str:
    return str(row["headers"][column] if column in HEADERS else row[column]).casefold()


_KEYS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "priority": _rank,
    "holder": lambda row: "" if row["holder"] is None else row["holder"]["user"].casefold(),
}


def _described(
    station: Station, connection: sa.Connection, user: User, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows with their headers and holders, as they may be shown."""
    ids = [row["id"] for row in rows]
    query = sa.select(files).where(files.c.study_id.in_(ids)).order_by(files.c.study_id, files.c.position)
    own: dict[str, list[sa.Row[Any]]] = {}
    for file in connection.execute(query):
        own.setdefault(file.study_id, []).append(file)
    of_studies = sa.select(patients).where(patients.c.study_id.in_(ids))
    people: dict[str, str] = {row.study_id: row.patient for row in connection.execute(of_studies)}
    held = locks.holders(connection, ids, user, idle_s=station.settings.idle_s)
    described = []
    for row in rows:
        its = own.get(row["id"], [])
        headers = shown_headers(station, [Path(file.path) for file in its], people.get(row["id"]))
        if station.settings.hide_patients:
            reason = row["reason"] and _without(row["reason"], [file.name for file in its])
            row = {**row, "name": study_name(station, row["id"], row["name"]), "reason": reason}
        described.append({**row, "headers": headers, "holder": held.get(row["id"])})
    return described


def study_json(station: Station, connection: sa.Connection, study: sa.Row[Any], user: User) -> dict[str, Any]:
    """A study as it is in the work list, and the names of its ``files``."""
    (row,) = _described(station, connection, user, [store.as_json(study)])
    return {**row, "files": file_names(station, store.file_names(connection, study.id))}


# Patients that are hidden.


def shown_headers(station: Station, paths: Sequence[Path], patient: str | None = None) -> dict[str, str]:
    """Headers of a study's files as they may be shown; ``patient`` is the keyed digest of the id, for the pseudonym."""
    headers = headers_json(station.whose(paths))
    if station.settings.hide_patients:
        headers |= dict.fromkeys(IDENTIFYING, "")
        headers["patient_id"] = "" if patient is None else f"Patient {patient[:8].upper()}"
        headers["patient_age"] = _hidden_age(headers["patient_age"])
        headers |= {name: headers[name] if headers[name] in known else "" for name, known in KNOWN_TERMS.items()}
    return headers


def study_name(station: Station, study: str, name: str) -> str:
    """The name of a study as it may be shown: names of files may be those of patients."""
    return f"Study {study[:8]}" if station.settings.hide_patients else name


def file_names(station: Station, names: Sequence[str]) -> list[str]:
    """Names of a study's files as they may be shown."""
    return [file_name(number) for number in range(len(names))] if station.settings.hide_patients else list(names)


def without_files(station: Station, connection: sa.Connection, study: str, texts: Sequence[str]) -> list[str]:
    """Texts as they may be shown: names of the study's files are those of ``file_names``."""
    if not station.settings.hide_patients:
        return list(texts)
    names = store.file_names(connection, study)
    return [_without(text, names) for text in texts]


def _without(text: str, names: Sequence[str]) -> str:
    for number, name in sorted(enumerate(names), key=lambda pair: -len(pair[1])):
        text = text.replace(name, file_name(number))
    return text


def file_name(number: int) -> str:
    """Name of a file, numbered from 0, where patients are hidden."""
    return f"image {number + 1}"


def _hidden_age(age: str) -> str:
    return _OLDEST_SHOWN if age.endswith("Y") and age > _OLDEST_SHOWN else age


def headers_json(identity: Identity | None) -> dict[str, str]:
    """The shown headers; "" where nothing is known. The age is the header's, else that of the dates.

    Without signs that are not seen or reverse a line: they could have another id or date read.
    """
    if identity is None:
        return dict.fromkeys(HEADERS, "")
    shown = {name: _seen(getattr(identity, name)) for name in HEADERS}
    family, _, first_names = shown["patient_name"].split("=")[0].partition("^")
    shown["patient_name"] = ", ".join(
        part for part in (family.strip(), " ".join(first_names.split("^")).strip()) if part
    )
    shown["patient_name"] = " ".join(shown["patient_name"].split())
    shown["patient_age"] = shown["patient_age"] or _age(identity.patient_birth_date, identity.study_date)
    return shown


def _seen(text: str) -> str:
    """The text as one line of its visible signs."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable()).strip()


def _age(born: str, day: str) -> str:
    """Whole years between two dates (YYYYMMDD) in the form of a header's age, as 042Y; "" if one is unknown."""
    try:
        first, last = date.fromisoformat(born), date.fromisoformat(day)
    except ValueError:
        return ""
    years = last.year - first.year - ((last.month, last.day) < (first.month, first.day))
    return f"{years:03d}Y" if 0 <= years <= 150 else ""
