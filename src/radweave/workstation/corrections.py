"""Importer of corrections: what readers signed in a workstation becomes a data set, with the drafts beside it.

    radweave data import corrections RUN.workstation --out DIR

A study is taken if it is signed and its report is as signed. ``corrections.jsonl`` beside the manifest has a pair for
each: the model's draft (null where a reader study hid it), the signed text, the reading time and the reader's number.
Patients are digests keyed with the
secret of the workstation, and times of studies are seconds since the patient's first one: no date is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes
from radweave.core.study import Modality, Split, View
from radweave.data.importers.source import ImportOptions, Problems, RawImage, RawStudy, Source
from radweave.data.targets import Sections
from radweave.workstation import drafts, reader_study, store
from radweave.workstation.database import (
    WITHOUT,
    earlier,
    evidence,
    files,
    log_head,
    patients,
    reading_of,
    signoffs,
    studies,
)

NAME: Final = "corrections"
PAIRS: Final = "corrections.jsonl"
DATASET_STUDY: Final = "its images are in the data set that was served"
ALTERED: Final = "differs from the signed report in the log"
_PARTS: Final[tuple[tuple[float, Split], ...]] = ((0.7, "train"), (0.8, "val"), (1.0, "test"))
_PROVENANCE: Final = (
    "70:10:20 by the keyed digest of the patient's id: a patient stays in a part when more studies are signed"
)
_NOTES: Final = ("images are as they came: their headers may name patients", "addenda are not part of the texts")
_VOLUMES: Final = (".nii", ".nii.gz", ".nrrd", ".mha")
_UPLOAD: Final = re.compile("[0-9a-f]{32}")
_PATIENT: Final = 16
"""Digits of the digest of a patient's id."""
_SECONDS_OF_A_DAY: Final = 86_400


def open_source(source: Path, options: ImportOptions, *, database: str | None = None) -> Source:
    """Open the folder of a workstation.

    Args:
        source: the state folder, which holds the images and, without ``database``, the database.

    Raises:
        InputError: if it is no such folder, or its database is of another version.
    """
    file = source / "workstation.db"
    if database is None and not file.is_file():
        raise InputError("is no workstation's folder", file=source, expected="RUN.workstation, with workstation.db")
    url = database or f"sqlite:///{file.absolute()}"
    with reading_of(url, migrates=False) as connection:
        head = connection.execute(sa.select(log_head)).one()
        modality = _modality(connection)

    def raw_studies(problems: Problems) -> Iterator[RawStudy]:
        with reading_of(url, migrates=False) as connection:
            since = _since_first(connection)
            for row in _signed(connection):
                try:
                    drafts.check_signed(connection, row.id)
                except drafts.AlteredError:
                    problems.leave_out_study(row.id, ALTERED)
                    continue
                if row.dataset_study is not None:
                    problems.leave_out_study(row.id, DATASET_STUDY)
                    continue
                yield _raw_study(connection, row, source / "files", modality, since)

    def pairs() -> Iterable[dict[str, Any]]:
        with reading_of(url, migrates=False) as connection:
            return [_pair(connection, row) for row in _signed(connection)]

    log = f"the workstation's log had {head.number} entries, the last with the hash {head.hash}"
    return Source(
        NAME, raw_studies, source / "files", (), _PROVENANCE, modality=modality,
        notes=(*_NOTES, log), is_known_set=False, has_priors=True, tables={PAIRS: pairs},
    )  # fmt: skip


def _modality(connection: sa.Connection) -> Modality:
    """Modality of the signed studies, by the first of their files: a folder or a volume is a scan."""
    query = sa.select(files.c.path).join(signoffs, signoffs.c.study_id == files.c.study_id).limit(1)
    first = connection.execute(query).scalar()
    return "ct" if first is not None and (first.endswith(_VOLUMES) or not Path(first).suffix) else "xray"


def _signed(connection: sa.Connection) -> list[sa.Row[Any]]:
    """Signed studies with their signatures, those of a patient one after the other in order of time."""
    since = _since_first(connection)
    query = (
        sa.select(studies.c.id, studies.c.dataset_study, signoffs, patients.c.patient, evidence.c.model)
        .join(signoffs, signoffs.c.study_id == studies.c.id)
        .join(evidence, evidence.c.study_id == studies.c.id)
        .join(patients, patients.c.study_id == studies.c.id, isouter=True)
    )
    rows = connection.execute(query).all()
    return sorted(rows, key=lambda row: (row.patient or "", since.get(row.id, 0), row.id))


def _since_first(connection: sa.Connection) -> dict[str, int]:
    """Study -> seconds since the patient's first one that it was compared with."""
    since: dict[str, int] = {}
    for row in connection.execute(sa.select(earlier)):
        seconds = row.days * _SECONDS_OF_A_DAY + row.seconds
        since[row.study_id] = max(since.get(row.study_id, 0), seconds)
    return since


def _raw_study(
    connection: sa.Connection, row: sa.Row[Any], root: Path, modality: Modality, since: dict[str, int]
) -> RawStudy:
    """A signed study: its images, the sections of the signed version, and the part of its patient."""
    patient = row.patient or sha256_bytes(row.id.encode())
    texts = _sections(connection, row.id, row.version)
    images = tuple(
        RawImage(
            root / _below_files(path), f"images/{row.id}/{number:05d}{_suffix(path)}",
            View.AXIAL if modality == "ct" else View.UNKNOWN, modality,
        )
        for number, path in enumerate(store.uploaded(connection, row.id))
    )  # fmt: skip
    return RawStudy(
        study_id=row.id,
        patient_id=patient[:_PATIENT],
        split=_part(patient),
        images=images,
        sections=Sections(**{name: " ".join(rows) or None for name, rows in texts.items()}),
        study_time=f"{since.get(row.id, 0):012d}" if row.patient else None,
    )


def _sections(connection: sa.Connection, study: str, version: int) -> dict[str, list[str]]:
    """Section -> sentences of a version."""
    texts: dict[str, list[str]] = {name: [] for name in drafts.SECTIONS}
    for row in drafts.rows_of(connection, study, version):
        texts[row.section].append(row.text)
    return texts


def _below_files(path: str) -> Path:
    """Path below the folder of files, which may have been moved: it begins with the folder of the upload."""
    parts = Path(path).parts
    uploads = [number for number, part in enumerate(parts) if _UPLOAD.fullmatch(part)]
    return Path(*parts[uploads[-1] if uploads else -1 :])


def _suffix(path: str) -> str:
    return ".nii.gz" if path.endswith(".nii.gz") else Path(path).suffix


def _part(digest: str) -> Split:
    """Part of a patient, by the digest of the id (hexadecimal)."""
    share = int(digest[:8], 16) / (1 << 32)
    return next(name for end, name in _PARTS if share < end)


def _pair(connection: sa.Connection, row: sa.Row[Any]) -> dict[str, Any]:
    """Draft and signed text of a study, with what it took."""
    is_hidden = reader_study.arm_of(connection, row.id) == WITHOUT
    drafted = drafts.text_of(connection, row.id, drafts.drafted_version(connection, row.id))
    signed = [
        {"section": name, "text": text}
        for name, texts in _sections(connection, row.id, row.version).items()
        for text in texts
    ]
    return {
        "study_id": row.id, "draft": None if is_hidden else drafted,
        "signed": drafts.whole_text(signed),
        "seconds": round(row.seconds, 1), "reader": row.user_id, "words_changed": row.edit_distance_words,
        "sentences_drafted": row.draft_sentences, "sentences_accepted": row.accepted_sentences,
        "method": row.model.get("method"), "weights": row.model.get("weights"),
    }  # fmt: skip
