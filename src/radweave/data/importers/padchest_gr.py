"""PadChest-GR: sentences of findings, each with labels, of frontal radiographs.

    grounded_reports_20240819.json   list of StudyID, ImageID, findings: sentence_en, sentence_es, abnormal, labels,
                                     locations, boxes, progression
    master_table.csv                 StudyID, PatientID, split, StudyDate_DICOM, ... (a row per label)
    Padchest_GR_files/[PadChest_GR/]<ImageID>

The report is the English sentences in their order. The label set ``padchest-gr`` has the labels of abnormal sentences
as positive; the others are not stated. Each box of a sentence becomes one of the image, for each of its labels.

Source: de Castro et al., "PadChest-GR", NEJM AI 2025, arXiv:2411.05085.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.study import FindingBox, LabelState, Split, View
from radweave.data.importers.mimic_cxr import study_moment
from radweave.data.importers.source import (
    OTHER_SPLIT,
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    split_of,
    splits_by_patient,
)
from radweave.data.tables import find_table, read_table
from radweave.data.targets import Sections

LABEL_SET = "padchest-gr"
_FOLDERS = ("Padchest_GR_files/PadChest_GR", "Padchest_GR_files", "PadChest_GR", "images", "")


@dataclass(frozen=True, slots=True)
class _StudyRow:
    patient: str
    split: Split | None
    time: str | None


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the folder with the grounded reports and the master table.

    Raises:
        InputError: if one of them is missing, or has another form.
    """
    reports = next(iter(sorted(source.glob("grounded_reports*.json"))), None)
    table = find_table(source, "master_table.csv")
    if reports is None or table is None:
        missing = "grounded_reports_20240819.json" if reports is None else "master_table.csv (unpack its archive)"
        raise InputError("no PadChest-GR here", file=source, expected=missing)
    content = read_json(reports)
    if not isinstance(content, list):
        got = type(content).__name__
        raise InputError("not grounded reports", file=reports, got=got, expected="a list of studies")
    rows = {
        row["StudyID"]: _StudyRow(
            row["PatientID"], split_of(row["split"]), study_moment(row.get("StudyDate_DICOM", ""), "")
        )
        for _, row in read_table(table, needs=("StudyID", "PatientID", "split"))
    }
    patients = splits_by_patient((row.patient, row.split) for row in rows.values())
    root = options.images or source

    def order(entry: Any) -> tuple[str, str, str]:
        study = str(entry.get("StudyID")) if isinstance(entry, dict) else ""
        row = rows.get(study)
        return ("", "", study) if row is None else (row.patient, row.time or "", study)

    entries = sorted(content, key=order)

    def studies(problems: Problems) -> Iterator[RawStudy]:
        used: set[str] = set()
        for entry in entries:
            study = entry.get("StudyID") if isinstance(entry, dict) else None
            if not isinstance(study, str) or not study:
                problems.leave_out_study("unknown", "an entry without StudyID")
            elif study not in rows or not rows[study].patient:
                problems.leave_out_study(study, "not in the master table")
            elif study in used:
                problems.leave_out_study(study, "a study of this id is there already")
            elif rows[study].split == "train" and len(patients[rows[study].patient]) > 1:
                problems.leave_out_study(study, OTHER_SPLIT)
            else:
                used.add(study)
                yield from _raw_study(study, entry, rows[study], root, problems)

    return Source(
        "padchest-gr",
        studies,
        root,
        (reports, table),
        f"column 'split' of {table.name}",
        licence="BIMCV Research Use Agreement",
        notes=("the report is the English sentences of the findings; boxes are those of the first reader",),
        needs_split=True,
        has_priors=True,
    )


def _raw_study(
    study: str, entry: Mapping[str, Any], row: _StudyRow, root: Path, problems: Problems
) -> Iterator[RawStudy]:
    image, findings = entry.get("ImageID"), entry.get("findings")
    if not isinstance(findings, list) or not all(isinstance(finding, dict) for finding in findings):
        problems.leave_out_study(study, "findings are no list")
        return
    sentences, labels = [], {}
    boxes: list[FindingBox] = []
    for finding in findings:
        text, named = finding.get("sentence_en"), finding.get("labels") or []
        if not isinstance(text, str) or not isinstance(named, list) or not all(isinstance(n, str) for n in named):
            problems.leave_out_study(study, "a finding without a sentence, or with labels that are no texts")
            return
        if text.strip():
            sentences.append(text.strip())
        drawn = finding.get("boxes") or []
        for box in drawn if isinstance(drawn, list) else [drawn]:
            for label in dict.fromkeys(named):
                boxes += problems.checked_box(study, label, box, text.strip())
        if finding.get("abnormal") is True:
            labels.update(dict.fromkeys(named, LabelState.POSITIVE))
    yield RawStudy(
        study_id=study,
        patient_id=row.patient,
        split=row.split,
        images=(_image(root, image, tuple(boxes)),) if isinstance(image, str) and image else (),
        sections=Sections(findings=" ".join(sentences) or None),
        study_time=row.time,
        labels={LABEL_SET: labels},
    )


def _image(root: Path, name: str, boxes: tuple[FindingBox, ...]) -> RawImage:
    places = [root / folder / name for folder in _FOLDERS]
    file = next((path for path in places if path.is_file()), places[0])
    return RawImage(file, f"images/{name}", View.FRONTAL, boxes=boxes)
