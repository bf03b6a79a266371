"""CheXpert Plus: ``df_chexpert_plus_240401.csv`` with PNG, JPEG or DICOM images.

    path_to_image       train/patient42142/study5/view1_frontal.jpg   (PNG files carry the same path)
    path_to_dcm         the same with .dcm
    frontal_lateral, ap_pa, deid_patient_id, patient_report_date_order, section_*, split
    chexbert_labels/findings_fixed.json (also impression_, report_): one object per line, by path_to_image

The set's own validation part has 200 studies. Papers on reports have lists of their own, which the data set does not
hold: ``split`` names the paper (``PAPER_SPLITS``) and ``annotation`` is the file with its lists, either

    {"train": [{"image_path": ["train/patient42142/study5/view1_frontal.png"]}, ...], "val": [...], "test": [...]}

as the code of MambaXray-VL reads it, or a table with the columns ``path_to_image`` and ``split``.

Images are looked for below the source, its folders ``PNG`` and ``DICOM``, or ``options.images``.

Source: Chambon et al., "CheXpert Plus", arXiv:2405.19538.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, read_jsonl
from radweave.core.study import SPLITS, LabelState, Split, View
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


@dataclass(frozen=True, slots=True)
class PaperSplit:
    """Split of a paper: its source, and the number of training, validation and test studies that it states."""

    source: str
    sizes: tuple[int, int, int]


_BENCH = (40_463, 5_780, 11_562)
PAPER_SPLITS: Mapping[str, PaperSplit] = MappingProxyType(
    {
        "mambaxray": PaperSplit("CXPMRG-Bench (MambaXray-VL; also AM-MRG), arXiv:2410.00379", _BENCH),
        "dast": PaperSplit("Table 2 of DAST, which takes over CXPMRG-Bench's", _BENCH),
    }
)
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
        InputError: if the table or one of its columns is missing, or a paper's split comes without its lists.
    """
    table = source if source.is_file() else next(iter(sorted(source.glob("*chexpert_plus*.csv"))), None)
    if table is None:
        raise InputError("no CheXpert Plus table here", file=source, expected="df_chexpert_plus_240401.csv")
    rows = _gather(table)
    root = options.images or table.parent
    labels, label_files = _read_labels(table.parent)
    provenance = f"column 'split' of {table.name}, which is not the split that papers on reports test on"
    notes = ["study_time is the order of a patient's reports; the set gives no dates"]
    lists = _paper_lists(options)
    if lists is not None and options.annotation is not None:
        provenance = f"{options.split}: {PAPER_SPLITS[options.split].source}, by the lists of {options.annotation.name}"
        label_files.append(options.annotation)
        notes += _compared(lists, rows, PAPER_SPLITS[options.split])
    order = sorted(rows, key=lambda study: (rows[study].patient, rows[study].order or 0, study))

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for study_id in order:
            raw = _raw_study(study_id, rows[study_id], labels, root)
            yield raw if lists is None else replace(raw, split=lists.get(study_id))

    return Source(
        "chexpert-plus",
        studies,
        root,
        (table, *label_files),
        provenance,
        licence="Stanford University Dataset Research Use Agreement",
        notes=tuple(notes),
        needs_split=True,
        has_priors=True,
        named_splits=tuple(PAPER_SPLITS),
    )


def _paper_lists(options: ImportOptions) -> dict[str, Split] | None:
    """Study id -> split by a paper's lists; None if the options name no such split."""
    if options.split not in PAPER_SPLITS:
        if options.annotation is not None:
            expected = " or ".join(f"--split {name}" for name in PAPER_SPLITS)
            raise InputError("whose split is it?", field="split", got=options.split, expected=expected)
        return None
    if options.annotation is None:
        raise InputError(
            f"the lists of '{options.split}' are not part of the data set",
            field="annotation",
            got="none",
            expected="--annotation FILE, JSON with lists under train, val and test or a table of path_to_image, split",
        )
    return _read_lists(options.annotation)


def _read_lists(path: Path) -> dict[str, Split]:
    """Study id -> split.

    Raises:
        InputError: for a file of another form, or a study in two splits.
    """
    lists: dict[str, Split] = {}
    for image, word, place in _listed(path):
        study_id, split = _study_id(image, place), split_of(word)
        if split is None:
            raise InputError("no split", field="split", got=word[:40], expected="train, val or test", **place)
        if lists.setdefault(study_id, split) != split:
            raise InputError(
                "a study is in two splits", field="path_to_image", got=f"{lists[study_id]} and {split}", **place
            )
    if not lists:
        raise InputError("lists no study", file=path)
    return lists


def _listed(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path of an image, word for its split, and place in the file."""
    if path.suffix.lower() != ".json":
        for line, row in read_table(path, needs=("path_to_image", "split")):
            yield row["path_to_image"], row["split"], {"file": path, "line": line}
        return
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(entries, list) for entries in content.values()):
        got = type(content).__name__
        raise InputError("not lists of studies", file=path, got=got, expected="lists under train, val and test")
    for word, entries in content.items():
        for number, entry in enumerate(entries):
            images = entry.get("image_path") if isinstance(entry, dict) else None
            images = [images] if isinstance(images, str) else images
            if not isinstance(images, list) or not images or not all(isinstance(image, str) for image in images):
                got = type(images).__name__
                raise InputError(
                    "not paths of images", file=path, field=f"{word}[{number}].image_path", got=got, expected="a list"
                )
            for image in images:
                yield image, word, {"file": path}


def _study_id(image: str, place: Mapping[str, Any]) -> str:
    parts = PurePosixPath(image).parts
    if len(parts) < 3:
        expected = "train/PATIENT/STUDY/FILE"
        raise InputError(
            "not a CheXpert path", field="path_to_image", got=f"{len(parts)} parts", expected=expected, **place
        )
    return f"{parts[-3]}_{parts[-2]}"


def _compared(lists: Mapping[str, Split], rows: Mapping[str, _StudyRows], paper: PaperSplit) -> list[str]:
    """Sentences on how the lists differ from the paper's and from the table, and on patients in several splits."""
    sizes = Counter(lists.values())
    counts = tuple(sizes[split] for split in SPLITS)
    notes = []
    if counts != paper.sizes:
        numbers = " / ".join(f"{size:,}" for size in paper.sizes)
        notes.append(
            f"the lists have {' / '.join(f'{size:,}' for size in counts)} studies where the paper states {numbers}"
        )
    if unknown := sum(study_id not in rows for study_id in lists):
        notes.append(f"{unknown} listed studies are not in the table")
    splits: dict[str, set[Split]] = {}
    for study_id, split in lists.items():
        if study_id in rows:
            splits.setdefault(rows[study_id].patient, set()).add(split)
    if several := sum(len(of_patient) > 1 for of_patient in splits.values()):
        notes.append(
            f"{several} patients are in more than one split, as the lists have it: 'data check' calls it a leak"
        )
    return notes


def _gather(table: Path) -> dict[str, _StudyRows]:
    rows: dict[str, _StudyRows] = {}
    needs = ("path_to_image", "frontal_lateral", "ap_pa", "deid_patient_id", "patient_report_date_order", "split")
    for line, row in read_table(table, needs=(*needs, "section_findings", "section_impression")):
        parts = PurePosixPath(row["path_to_image"]).parts
        study_id = _study_id(row["path_to_image"], {"file": table, "line": line})
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
