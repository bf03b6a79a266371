"""Build the finished report of a draft with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from radweave.core.evidence import ViewEvidence
from radweave.core.study import Report, draft_sections
from radweave.data.targets import parse_sections
from radweave.engine.restore import Run
from radweave.inference.explain import subject_of
from radweave.inference.explain.support import FLAGGED, Support, find_support, unchecked_note
from radweave.inference.pictures import Picture as ReadPicture
from radweave.inference.pictures import covered_by_map, view_of
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.workstation.box_objects import on_images
from radweave.workstation.finished import (
    Finding,
    FinishedReport,
    Flagged,
    Picture,
    Section,
    SectionKind,
    StatedPlace,
    model_facts,
    model_from,
    writable,
)
from radweave.workstation.identity import read_identities
from radweave.workstation.map_objects import heat_maps
from radweave.workstation.result import places_of

NAMELESS = "some of the images are no DICOM files and say nothing of whose they are"


def finished_report(
    run: Run, predictor: Predictor, report: Report, views: Sequence[tuple[Path, ReadPicture]]
) -> FinishedReport:
    """The record of a draft about the ``views`` that ``Predictor.read_views`` gave.

    Raises:
        InputError: for an identifying DICOM value that cannot be used.
    """
    report = replace(report, text=writable(report.text))
    sources, warnings = read_identities([path for path, _ in views])
    if sources and any(not path.is_dir() for path, _ in views) and len(sources) < len(views):
        warnings = (*warnings, NAMELESS)
    subjects = [
        subject_of(number, picture, view_of(picture), predictor) for number, (_, picture) in enumerate(views, 1)
    ]
    support = find_support(report, get_labeler(run.experiment.data.label_set))
    findings = _findings(support)
    shown: list[ViewEvidence] = [
        {"image": number, "covers": covered_by_map(picture, image_size=predictor.image_size, ct=predictor.ct)}
        for number, (_, picture) in enumerate(views)
    ]
    named = [(subject.title, picture) for subject, (_, picture) in zip(subjects, views, strict=True)]
    places = [
        StatedPlace.of("".join(part for part, _ in line.parts), place)
        for line in support.sentences
        for place in places_of(line, shown, predictor.modality) or ()
    ]
    return FinishedReport(
        study_id=report.study_id,
        text=report.text,
        sections=sections_of(report.text, run.card.dataset.target),
        findings=findings,
        flagged=tuple(
            Flagged("".join(part for part, _ in line.parts), line.words)
            for line in support.sentences
            if line.verdict in FLAGGED
        ),
        warnings=(*report.warnings, *warnings, *unchecked_note([line.not_checked for line in support.sentences])),
        model=model_from(model_facts(run.card)),
        written=datetime.now().astimezone().replace(microsecond=0),
        sources=sources,
        pictures=tuple(Picture(panel.title, panel.grey) for subject in subjects for panel in subject.panels()),
        maps=heat_maps({**report.evidence, "views": shown}, named, findings),
        places=on_images(places, [picture for _, picture in views], [path for path, _ in views], sources),
    )


def sections_of(text: str, target: str) -> tuple[Section, ...]:
    """Sections of a draft by its headings, or one section of the run's target.

    A draft with words outside its sections stays whole, so that no word is lost.
    """
    if target == "both":
        parts = draft_sections(text, target)
        kinds: tuple[SectionKind, ...] = ("findings", "impression")
        return tuple(Section(kind, parts[kind]) for kind in kinds if kind in parts)
    parsed = parse_sections(text)
    findings, impression = parsed.findings or "", parsed.impression or ""
    headings = 2
    if findings and impression and len(f"{findings} {impression}".split()) + headings == len(text.split()):
        return (Section("findings", findings), Section("impression", impression))
    whole = text.strip()
    return (Section("impression" if target == "impression" else "findings", whole),) if whole else ()


def _findings(support: Support) -> tuple[Finding, ...]:
    rows = [Finding(row.name, row.probability, row.threshold, row.state, row.flag) for row in support.findings]
    return tuple(sorted(rows, key=lambda row: -1.0 if row.probability is None else row.probability, reverse=True))
