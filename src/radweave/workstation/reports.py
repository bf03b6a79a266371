"""Drafts and signed reports as records for export, and the table of a reader study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.core.escaping import csv_line
from radweave.core.evidence import DraftEvidence
from radweave.core.study import LabelState
from radweave.inference.explain.maps import shown
from radweave.inference.explain.support import unchecked_note, verdict_words
from radweave.workstation import drafts, outbox, store
from radweave.workstation.box_objects import on_images
from radweave.workstation.database import evidence, signoffs, studies, users
from radweave.workstation.drafts import drafted_version
from radweave.workstation.finished import (
    Addendum,
    Finding,
    FinishedReport,
    Flagged,
    HeatMap,
    Picture,
    Section,
    Signature,
    StatedPlace,
    model_from,
    person_name,
)
from radweave.workstation.identity import read_identities
from radweave.workstation.map_objects import heat_maps

if TYPE_CHECKING:
    from radweave.io.images import Radiograph
    from radweave.io.volumes import Volume

ORGANIZATION = "not stated"
_SHOWN_HU = (-1000, 400)
"""Lungs and soft tissue on one page."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A version of a draft, with the files of the study and the evidence, but without pixels."""

    report: FinishedReport
    files: list[Path]
    evidence: DraftEvidence


def stored_report(connection: sa.Connection, study: sa.Row[Any], version: int, *, event: str | None = None) -> Stored:
    """A version of a study's draft; ``with_images`` reads its images, outside of a transaction.

    Args:
        event: as in the outbox: ``drafted`` has no signature, ``signed`` no addenda, ``addendum 1`` the first of them,
            ``rejected`` is the notice in its place. None includes all.

    Raises:
        InputError: if there is no such version.
        AlteredError: if it differs from the signed report.
        ConflictError: if the study was rejected; for a notice, if it was not.
    """
    if event != "drafted":
        drafts.check_signed(connection, study.id)
    is_rejected = connection.execute(sa.select(studies.c.state).where(studies.c.id == study.id)).scalar() == "rejected"
    if (event == "rejected") != is_rejected and event != "drafted":
        reason = "the draft was rejected: it is no report" if is_rejected else "the draft is not rejected"
        raise drafts.ConflictError(reason, field="state")
    draft, draft_evidence = drafts.read(connection, study.id, version), drafts.read_evidence(connection, study.id)
    assert draft_evidence is not None, "a draft has its evidence"
    report = FinishedReport(
        study_id=study.name,
        text=draft["text"],
        sections=_sections(draft["sentences"]),
        findings=tuple(_finding(row) for row in draft_evidence["findings"]),
        flagged=tuple(
            Flagged(row["text"], verdict_words(row["verdict"], row["checked"], row["not_checked"]))
            for row in draft["sentences"]
            if row["flagged"]
        ),
        warnings=(*draft_evidence["warnings"], *unchecked_note([row["not_checked"] for row in draft["sentences"]])),
        model=model_from(draft_evidence["model"]),
        written=datetime.fromisoformat(draft["created"]).replace(microsecond=0).astimezone(),
        places=tuple(
            StatedPlace.of(row["text"], place)
            for row in draft["sentences"]
            for place in row["details"].get("places") or ()
        ),
    )
    if event == "rejected":
        report = _notice(connection, study.id, report)
    elif event != "drafted":
        signed = drafts.signature_row(connection, study.id)
        signature = None
        if signed is not None and signed.version == version:
            signature = _signature_of(signed.name, signed.time)
        if signature is None and event is not None:
            raise drafts.ConflictError("is not the version that was signed", field="version", got=version)
        added = [] if signature is None else drafts.addenda_of(connection, study.id)
        most = len(added) if event is None else int(event.removeprefix("addendum ")) if event != "signed" else 0
        shown = tuple(Addendum(row.text, _signature_of(row.name, row.time)) for row in added[:most])
        report = replace(report, signature=signature, addenda=shown)
    return Stored(report, [Path(path) for path in store.uploaded(connection, study.id)], draft_evidence["evidence"])


def to_send(connection: sa.Connection, study: sa.Row[Any], row: sa.Row[Any]) -> Stored:
    """The report of an outbox row, with the preceding version that its target has.

    Raises:
        InputError: as ``stored_report``.
    """
    stored, before = (
        stored_report(connection, study, row.version, event=row.event), outbox.predecessor(connection, row)
    )  # fmt: skip
    if before is None:
        return stored
    report = replace(stored.report, predecessor=to_send(connection, study, before).report)
    return replace(stored, report=report)


def _notice(connection: sa.Connection, study: str, draft: FinishedReport) -> FinishedReport:
    """A notice that a draft was rejected, with the reason, in place of the report."""
    reason = connection.execute(sa.select(studies.c.reason).where(studies.c.id == study)).scalar()
    entry = drafts.rejection(connection, study)
    assert entry is not None, "a rejected study was rejected"
    name = connection.execute(sa.select(users.c.name).where(users.c.id == entry.user_id)).scalar_one()
    text = f"The draft of this study was rejected by a reader and is no report. Reason: {reason}"
    return replace(
        draft, text=text, sections=(Section("impression", text),), findings=(), flagged=(), places=(),
        rejected=_signature_of(name, entry.time),
    )  # fmt: skip


def with_images(stored: Stored, *, maps: bool = False) -> FinishedReport:
    """The report with the identities of its images, boxes on them, pictures, and maps if ``maps``.

    Raises:
        InputError: as ``read_identities``.
    """
    report, files = stored.report, stored.files
    sources, warnings = read_identities(files)
    pictures = [_read(file) for file in files]

    def on_files(one: FinishedReport) -> FinishedReport:
        """The report and its predecessors about the files."""
        return replace(
            one,
            sources=sources,
            warnings=(*one.warnings, *warnings),
            places=on_images(one.places, pictures, files, sources),
            predecessor=None if one.predecessor is None else on_files(one.predecessor),
        )

    return replace(on_files(report), pictures=tuple(_pictures(pictures)), maps=_maps(stored, pictures) if maps else ())


def _maps(stored: Stored, pictures: Sequence[Radiograph | Volume | None]) -> tuple[HeatMap, ...]:
    """Maps over their images; none if the images do not match."""
    named: list[tuple[str, Radiograph | Volume]] = []
    for number, view in enumerate(stored.evidence.get("views") or (), start=1):
        place = view.get("image")
        picture = pictures[place] if isinstance(place, int) and 0 <= place < len(pictures) else None
        if picture is None:
            return ()
        named.append((f"View {number}, {view['view']}", picture))
    return heat_maps(stored.evidence, named, stored.report.findings)


def _read(file: Path) -> Radiograph | Volume | None:
    """The image of a file or folder; None for one that cannot be read."""
    from radweave.inference.pictures import read_scan
    from radweave.io.images import read_radiograph

    for read in (read_scan,) if file.is_dir() else (read_radiograph, read_scan):
        with suppress(InputError):
            return read(file)
    return None


def _pictures(read: Sequence[Radiograph | Volume | None]) -> Iterator[Picture]:
    """Pictures of radiographs, and three slices of scans."""
    from radweave.data.ct import CtPreprocessing
    from radweave.inference.explain import scan_subject
    from radweave.io.images import Radiograph

    for number, picture in enumerate(read, start=1):
        if isinstance(picture, Radiograph):
            yield Picture(f"View {number}, {picture.view.value.lower()}", shown(picture.pixels))
        elif picture is not None:
            with suppress(InputError):
                subject = scan_subject(picture, CtPreprocessing(window_hu=_SHOWN_HU))
                yield from (Picture(panel.title, panel.grey) for panel in subject.panels())


def _sections(sentences: Sequence[dict[str, Any]]) -> tuple[Section, ...]:
    texts = {kind: " ".join(row["text"] for row in sentences if row["section"] == kind) for kind in drafts.SECTIONS}
    return tuple(Section(kind, text) for kind, text in texts.items())


def _finding(row: dict[str, Any]) -> Finding:
    return Finding(row["name"], row["probability"], row["threshold"], LabelState(row["said"]), row["flag"])


def _signature_of(name: str, time: datetime) -> Signature:
    return Signature(person_name(name), ORGANIZATION, time)


# Reader study: time, changes and accepted sentences of signed studies. Studies appear by their number only.


@dataclass(frozen=True, slots=True)
class SignedStudy:
    """A signed study. ``seconds`` is the reading time.

    ``words_changed`` is the edit distance between the model's draft and the signed text; ``sentences_accepted`` are
    signed as drafted; ``sentences_flagged`` had to be looked at.
    """

    study: str
    reader: str
    signed: str
    seconds: float
    versions: int
    words_changed: int
    words_drafted: int
    sentences_drafted: int
    sentences_accepted: int
    sentences_signed: int
    sentences_flagged: int
    method: str
    weights: str


def signed_studies(connection: sa.Connection) -> list[SignedStudy]:
    """All signed studies in the order of signing.

    Raises:
        AlteredError: if one differs from the signed report.
    """
    query = sa.select(signoffs, users.c.name, evidence.c.model).join(users).join(
        evidence, evidence.c.study_id == signoffs.c.study_id
    )  # fmt: skip
    return [_row(connection, row) for row in connection.execute(query.order_by(signoffs.c.time)).all()]


def _row(connection: sa.Connection, signed: sa.Row[tuple[object, ...]]) -> SignedStudy:
    drafts.check_signed(connection, signed.study_id)
    first = drafted_version(connection, signed.study_id)
    drafted, final = (drafts.rows_of(connection, signed.study_id, version) for version in (first, signed.version))
    return SignedStudy(
        study=signed.study_id,
        reader=signed.name,
        signed=signed.time.isoformat(timespec="seconds"),
        seconds=round(signed.seconds, 1),
        versions=signed.version,
        words_changed=signed.edit_distance_words,
        words_drafted=sum(len(row.text.split()) for row in drafted),
        sentences_drafted=signed.draft_sentences,
        sentences_accepted=signed.accepted_sentences,
        sentences_signed=len(final),
        sentences_flagged=sum(row.flagged for row in drafted),
        method=str(signed.model.get("method")),
        weights=str(signed.model.get("weights") or ""),
    )


def as_csv(rows: Sequence[SignedStudy]) -> str:
    """CSV with a header and one line per study."""
    names = [field.name for field in fields(SignedStudy)]
    return "".join([csv_line(names), *(csv_line([str(getattr(row, name)) for name in names]) for row in rows)])


def as_table(rows: Sequence[SignedStudy]) -> str:
    """Table with a line per reader and one for all."""
    if not rows:
        return "no study was signed yet"
    readers = {name: [row for row in rows if row.reader == name] for name in sorted({row.reader for row in rows})}
    lines = [_HEADS, *(_summary(name, own) for name, own in readers.items())]
    if len(readers) > 1:
        lines.append(_summary("all", rows))
    widths = [max(len(line[place]) for line in lines) for place in range(len(_HEADS))]
    return "\n".join(
        "  ".join(cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (zip(line, widths, strict=True) for line in lines)
    )


_HEADS = ("reader", "studies", "median s", "least s", "most s", "words changed", "per study", "sentences accepted")


def _summary(name: str, rows: Sequence[SignedStudy]) -> tuple[str, ...]:
    seconds = [row.seconds for row in rows]
    changed, words = sum(row.words_changed for row in rows), sum(row.words_drafted for row in rows)
    accepted, drafted = sum(row.sentences_accepted for row in rows), sum(row.sentences_drafted for row in rows)
    times = (median(seconds), min(seconds), max(seconds))
    share = f"{100 * accepted / drafted:.0f} %" if drafted else "none"
    return (
        name, str(len(rows)), *(f"{time:.0f}" for time in times), f"{changed} of {words}",
        f"{changed / len(rows):.1f}", f"{accepted} of {drafted} ({share})",
    )  # fmt: skip
