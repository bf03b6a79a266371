"""A study's draft, or its signed report, as the record that writers of other systems' formats write from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from radweave.base.errors import InputError
from radweave.base.study import LabelState
from radweave.explain.maps import shown
from radweave.hospital.finished import Finding, FinishedReport, Flagged, Picture, Section, Signature
from radweave.hospital.identity import read_identities
from radweave.hospital.make import writable
from radweave.hospital.model import model_from
from radweave.serve import drafts, store
from radweave.serve.schema import drafts as drafts_table
from radweave.serve.schema import signoffs, users

ORGANIZATION = "not stated"


def stored_report(connection: sa.Connection, study: sa.Row[Any], version: int) -> tuple[FinishedReport, list[Path]]:
    """A version of a study's draft, and the files it is about; ``with_images`` reads these, outside of a transaction.

    It bears a signature where this version is the one that was signed.

    Raises:
        InputError: if there is no such version.
    """
    draft, given = drafts.read(connection, study.id, version), drafts.read_evidence(connection, study.id)
    assert given is not None, "a draft has its evidence"
    made = connection.execute(
        sa.select(drafts_table.c.created).where(drafts_table.c.study_id == study.id, drafts_table.c.version == version)
    ).scalar_one()
    report = FinishedReport(
        study_id=study.name,
        text=writable(draft["text"]),
        sections=_sections(draft["sentences"]),
        findings=tuple(_finding(row) for row in given["findings"]),
        flagged=tuple(Flagged(writable(row["text"]), row["verdict"]) for row in draft["sentences"] if row["flagged"]),
        warnings=tuple(given["warnings"]),
        model=model_from(given["model"]),
        written=made.replace(microsecond=0).astimezone(),
        signature=_signature(connection, study.id, version),
    )
    return report, [Path(path) for path in store.uploaded(connection, study.id)]


def with_images(report: FinishedReport, files: Sequence[Path]) -> FinishedReport:
    """The report with whose images they are, and the radiographs as pictures.

    Raises:
        InputError: as ``read_identities``.
    """
    sources, warnings = read_identities(files)
    return replace(report, sources=sources, warnings=(*report.warnings, *warnings), pictures=tuple(_pictures(files)))


def _pictures(files: Sequence[Path]) -> list[Picture]:
    from radweave.data.reading.images import read_radiograph

    pictures = []
    for number, file in enumerate((file for file in files if file.is_file()), start=1):
        try:
            radiograph = read_radiograph(file)
        except InputError:  # a scan, whose slices would fill the page
            continue
        pictures.append(Picture(f"View {number}, {radiograph.view.value.lower()}", shown(radiograph.pixels)))
    return pictures


def _sections(sentences: Sequence[dict[str, Any]]) -> tuple[Section, ...]:
    made = []
    for kind in drafts.SECTIONS:
        text = writable(" ".join(row["text"] for row in sentences if row["section"] == kind))
        if text:
            made.append(Section(kind, text))
    return tuple(made)


def _finding(row: dict[str, Any]) -> Finding:
    return Finding(row["name"], row["probability"], row["threshold"], LabelState(row["said"]), row["flag"])


def _signature(connection: sa.Connection, study: str, version: int) -> Signature | None:
    asked = sa.select(users.c.name, signoffs.c.time).join(users, users.c.id == signoffs.c.user_id)
    row = connection.execute(asked.where(signoffs.c.study_id == study, signoffs.c.version == version)).first()
    return None if row is None else Signature(row.name, ORGANIZATION, row.time)
