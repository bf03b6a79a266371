"""CheXpert Plus: ``df_chexpert_plus_240401.csv`` with PNG, JPEG or DICOM images.

    path_to_image       train/patient42142/study5/view1_frontal.jpg   (PNG files carry the same path)
    path_to_dcm         the same with .dcm
    frontal_lateral, ap_pa, deid_patient_id, patient_report_date_order, section_*, split
    chexbert_labels/findings_fixed.json (also impression_, report_): one object per line, by path_to_image

Images are looked for below the source, its folders ``PNG`` and ``DICOM``, or ``options.images``.

Source: Chambon et al., "CheXpert Plus", arXiv:2405.19538.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from radweave.core.errors import InputError
from radweave.core.json_files import read_jsonl
from radweave.core.study import LabelState, View
from radweave.data.importers.source import (
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    split_of,
    states_of,
    text_or_none,
    view_of,
)
from radweave.data.tables import read_table
from radweave.data.targets import Sections

_SECTIONS = {
    "findings": ("section_findings",),
    "impression": ("section_impression",),
    "indication": ("section_clinical_history", "section_history"),
    "comparison": ("section_comparison",),
    "technique": ("section_technique",),
}
_FOLDERS = ("", "PNG", "DICOM", "images", "CheXpert-v1.0")


@dataclass(slots=True)
class _StudyRows:
    """The table rows of one study: patient, position in the patient's order of reports, sections and views."""

    patient: str
    folder: str
    split: str
    order: int | None
    sections: Sections
    images: list[tuple[str, str, View]] = field(default_factory=list)


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the table, or the folder that holds it.

    Raises:
        InputError: if the table or one of its columns is missing.
    """
    table = source if source.is_file() else next(iter(sorted(source.glob("*chexpert_plus*.csv"))), None)
    if table is None:
        raise InputError("no CheXpert Plus table here", file=source, expected="df_chexpert_plus_240401.csv")
    rows = _gather(table)
    root = options.images or table.parent
    labels, label_files = _read_labels(table.parent)
    order = sorted(rows, key=lambda study: (rows[study].patient, rows[study].order or 0, study))

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for study_id in order:
            yield _raw_study(study_id, rows[study_id], labels, root)

    return Source(
        "chexpert-plus",
        studies,
        root,
        (table, *label_files),
        f"column 'split' of {table.name}; its validation part has 200 studies and is what papers test on",
        licence="Stanford University Dataset Research Use Agreement",
        notes=("study_time is the order of a patient's reports; the set gives no dates",),
        needs_split=True,
        has_priors=True,
    )


def _gather(table: Path) -> dict[str, _StudyRows]:
    rows: dict[str, _StudyRows] = {}
    needs = ("path_to_image", "frontal_lateral", "ap_pa", "deid_patient_id", "patient_report_date_order", "split")
    for line, row in read_table(table, needs=(*needs, "section_findings", "section_impression")):
        parts = PurePosixPath(row["path_to_image"]).parts
        if len(parts) < 3:
            raise InputError("not a CheXpert path", file=table, line=line, field="path_to_image")
        study_id = f"{parts[-3]}_{parts[-2]}"
        if study_id not in rows:
            texts = {
                section: next((row[name] for name in names if text_or_none(row.get(name))), None)
                for section, names in _SECTIONS.items()
            }
            number = row["patient_report_date_order"].split(".", 1)[0]
            order = int(number) if number.isdigit() else None
            rows[study_id] = _StudyRows(
                row["deid_patient_id"] or parts[-3], parts[0], row["split"], order, Sections(**texts)
            )
        dicom = row.get("path_to_dcm") or f"{row['path_to_image'].rsplit('.', 1)[0]}.dcm"
        rows[study_id].images.append((row["path_to_image"], dicom, _view(row)))
    return rows


def _view(row: dict[str, str]) -> View:
    position = view_of(row["ap_pa"])
    return position if position.is_frontal else view_of(row["frontal_lateral"])


def _read_labels(folder: Path) -> tuple[dict[str, dict[str, LabelState]], list[Path]]:
    """CheXbert's labels by image path, of the findings, else of the impression, else of the whole report."""
    for name in ("findings_fixed.json", "impression_fixed.json", "report_fixed.json"):
        path = folder / "chexbert_labels" / name
        if path.is_file():
            labels = {
                str(row.get("path_to_image")): states_of(row, frozenset({"path_to_image"}), path, line)
                for line, row in read_jsonl(path)
            }
            return labels, [path]
    return {}, []


def _raw_study(study_id: str, rows: _StudyRows, labels: dict[str, dict[str, LabelState]], root: Path) -> RawStudy:
    states = next((labels[path] for path, _, _ in rows.images if path in labels), None)
    return RawStudy(
        study_id=study_id,
        patient_id=rows.patient,
        split=split_of(rows.split) or split_of(rows.folder),
        images=tuple(_image(root, path, dicom, view) for path, dicom, view in rows.images),
        sections=rows.sections,
        study_time=None if rows.order is None else f"{rows.order:06d}",
        labels={} if states is None else {"chexpert14": states},
    )


def _image(root: Path, path: str, dicom: str, view: View) -> RawImage:
    stem = path.rsplit(".", 1)[0]
    names = (f"{stem}.png", path, dicom)
    existing = [
        (root / folder / name, name) for name in names for folder in _FOLDERS if (root / folder / name).is_file()
    ]
    file, name = existing[0] if existing else (root / path, path)
    return RawImage(file, f"images/{name}", view)
