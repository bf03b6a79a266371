"""The work list with what the headers of the images say. Headers are read from the files and held in memory only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal

import sqlalchemy as sa

from radweave.workstation import store
from radweave.workstation.database import files
from radweave.workstation.identity import Identity
from radweave.workstation.station import Station
from radweave.workstation.users import User

HEADERS: Final = (
    "patient_name", "patient_id", "patient_sex", "patient_age", "accession_number", "modality", "body_part_examined",
    "study_date", "study_description",
)  # fmt: skip
Sort = Literal[
    "created", "changed", "name", "state", "patient_name", "patient_id", "patient_sex", "patient_age",
    "accession_number", "modality", "body_part_examined", "study_date", "study_description",
]  # fmt: skip
SEARCHED: Final = ("patient_name", "patient_id", "accession_number")
MOST_SORTED: Final = 1_000
"""Most studies, the newest, whose headers are read to sort or search by them."""


def page(
    station: Station, connection: sa.Connection, user: User, *, state: str | None, search: str | None, offset: int,
    limit: int, sort: Sort, descending: bool,
) -> tuple[int, list[dict[str, Any]]]:  # fmt: skip
    """Number of matching studies, and a page of them as JSON values with ``headers``.

    ``search`` is part of a study's name, of its patient's name or id, or of its accession number. Headers sort and
    match among the newest ``MOST_SORTED`` studies.
    """
    if sort == "created" and descending and not search:
        total, rows = store.work_list(connection, user, state=state, search=None, offset=offset, limit=limit)
        return total, _with_headers(station, connection, rows)
    _, rows = store.work_list(connection, user, state=state, search=None, offset=0, limit=MOST_SORTED)
    rows = _with_headers(station, connection, rows)
    if search:
        rows = [row for row in rows if _matches(row, search.casefold())]
    rows.sort(
        key=lambda row: str(row["headers"][sort] if sort in HEADERS else row[sort]).casefold(), reverse=descending
    )
    return len(rows), rows[offset : offset + limit]


def _matches(row: dict[str, Any], words: str) -> bool:
    return any(words in text.casefold() for text in (row["name"], *(row["headers"][name] for name in SEARCHED)))


def _with_headers(station: Station, connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    query = sa.select(files.c.study_id, files.c.path).where(files.c.study_id.in_([row["id"] for row in rows]))
    paths: dict[str, list[Path]] = {}
    for study, path in connection.execute(query.order_by(files.c.study_id, files.c.position)):
        paths.setdefault(study, []).append(Path(path))
    return [{**row, "headers": headers_json(station.whose(paths.get(row["id"], [])))} for row in rows]


def headers_json(identity: Identity | None) -> dict[str, str]:
    """The shown headers; "" where nothing is known. The age is the header's, else that of the dates."""
    if identity is None:
        return dict.fromkeys(HEADERS, "")
    shown = {name: getattr(identity, name).strip() for name in HEADERS}
    family, _, first_names = shown["patient_name"].split("=")[0].partition("^")
    shown["patient_name"] = ", ".join(
        part for part in (family.strip(), " ".join(first_names.split("^")).strip()) if part
    )
    shown["patient_name"] = " ".join(shown["patient_name"].split())
    shown["patient_age"] = shown["patient_age"] or _age(identity.patient_birth_date, identity.study_date)
    return shown


def _age(born: str, day: str) -> str:
    """Whole years between two dates (YYYYMMDD) in the form of a header's age, as 042Y; "" if one is unknown."""
    try:
        first, last = date.fromisoformat(born), date.fromisoformat(day)
    except ValueError:
        return ""
    years = last.year - first.year - ((last.month, last.day) < (first.month, first.day))
    return f"{years:03d}Y" if 0 <= years <= 150 else ""
