"""A study's draft, or its signed report, as the record that writers of other systems' formats write from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from radweave.base.errors import InputError
from radweave.base.study import LabelState
from radweave.explain.maps import shown
from radweave.explain.support import unchecked_note, verdict_words
from radweave.hospital.finished import Finding, FinishedReport, Flagged, HeatMap, Picture, Section, Signature
from radweave.hospital.heat import heat_maps
from radweave.hospital.identity import read_identities
from radweave.hospital.model import model_from
from radweave.hospital.signs import person_name
from radweave.serve import drafts, store
from radweave.serve.schema import drafts as drafts_table
from radweave.serve.schema import signoffs, users

if TYPE_CHECKING:
    from radweave.data.reading.images import Radiograph
    from radweave.data.reading.volumes import Volume

ORGANIZATION = "not stated"
_SHOWN_HU = (-1000, 400)
"""Lungs and soft tissue on one page."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A version of a study's draft, the files it is about, and the model's evidence: all but the images."""

    report: FinishedReport
    files: list[Path]
    evidence: Mapping[str, Any]


def stored_report(
    connection: sa.Connection, study: sa.Row[Any], version: int, *, signed: bool = True, draft_kept: bool = False
) -> Stored:
    """A version of a study's draft; ``with_images`` reads its images, outside of a transaction.

    Args:
        signed: whether it bears its signature, where this version is the one that was signed.
        draft_kept: whether the archive that it is for has the model's own draft.

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
        text=draft["text"],
        sections=_sections(draft["sentences"]),
        findings=tuple(_finding(row) for row in given["findings"]),
        flagged=tuple(
            Flagged(row["text"], verdict_words(row["verdict"], row["checked"], row["not_checked"]))
            for row in draft["sentences"]
            if row["flagged"]
        ),
        warnings=(*given["warnings"], *unchecked_note([row["not_checked"] for row in draft["sentences"]])),
        model=model_from(given["model"]),
        written=made.replace(microsecond=0).astimezone(),
        signature=_signature(connection, study.id, version) if signed else None,
        draft=stored_report(connection, study, drafts.drafted_version(connection, study.id), signed=False).report
        if draft_kept
        else None,
    )
    return Stored(report, [Path(path) for path in store.uploaded(connection, study.id)], given["evidence"])


def with_images(stored: Stored, *, maps: bool = False) -> FinishedReport:
    """The report with whose images they are, the radiographs as pictures, and the maps if they are asked for.

    Raises:
        InputError: as ``read_identities``.
    """
    report, files = stored.report, stored.files
    sources, warnings = read_identities(files)
    draft = report.draft
    if draft is not None:
        draft = replace(draft, sources=sources, warnings=(*draft.warnings, *warnings))
    return replace(
        report,
        sources=sources,
        warnings=(*report.warnings, *warnings),
        pictures=tuple(_pictures(files)),
        maps=_maps(stored) if maps else (),
        draft=draft,
    )


def _maps(stored: Stored) -> tuple[HeatMap, ...]:
    """The maps over the images that they are about; none of a study whose images cannot be laid below them."""
    from radweave.data.reading.images import read_radiograph
    from radweave.generate.pictures import read_scan

    named: list[tuple[str, Radiograph | Volume]] = []
    for number, view in enumerate(stored.evidence.get("views") or (), start=1):
        place = view.get("image")
        if not isinstance(place, int) or not 0 <= place < len(stored.files):
            return ()
        is_scan = len(view.get("covers") or ()) == 3
        file = stored.files[place]
        named.append((f"View {number}, {view['view']}", read_scan(file) if is_scan else read_radiograph(file)))
    return heat_maps(stored.evidence, named, stored.report.findings)


def _pictures(files: Sequence[Path]) -> list[Picture]:
    """Radiographs, and of scans three slices; what cannot be read as either has none."""
    pictures: list[Picture] = []
    for number, file in enumerate(files, start=1):
        for read in (_slices,) if file.is_dir() else (_radiograph, _slices):
            with suppress(InputError):
                pictures += read(number, file)
                break
    return pictures


def _radiograph(number: int, file: Path) -> list[Picture]:
    from radweave.data.reading.images import read_radiograph

    radiograph = read_radiograph(file)
    return [Picture(f"View {number}, {radiograph.view.value.lower()}", shown(radiograph.pixels))]


def _slices(number: int, file: Path) -> list[Picture]:
    from radweave.data.ct import CtPreprocessing
    from radweave.explain import scan_subject
    from radweave.generate.pictures import read_scan

    subject = scan_subject(read_scan(file), CtPreprocessing(window_hu=_SHOWN_HU))
    return [Picture(panel.title, panel.grey) for panel in subject.panels()]


def _sections(sentences: Sequence[dict[str, Any]]) -> tuple[Section, ...]:
    texts = {kind: " ".join(row["text"] for row in sentences if row["section"] == kind) for kind in drafts.SECTIONS}
    return tuple(Section(kind, text) for kind, text in texts.items())


def _finding(row: dict[str, Any]) -> Finding:
    return Finding(row["name"], row["probability"], row["threshold"], LabelState(row["said"]), row["flag"])


def _signature(connection: sa.Connection, study: str, version: int) -> Signature | None:
    asked = sa.select(users.c.name, signoffs.c.time).join(users, users.c.id == signoffs.c.user_id)
    row = connection.execute(asked.where(signoffs.c.study_id == study, signoffs.c.version == version)).first()
    return None if row is None else Signature(person_name(row.name), ORGANIZATION, row.time)
