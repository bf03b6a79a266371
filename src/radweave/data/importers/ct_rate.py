"""CT-RATE, and RadGenome-ChestCT on top of it: chest CT volumes with reports.

    radiology_text_reports/{train,validation}_reports.csv     VolumeName, ClinicalInformation_EN, Technique_EN,
                                                              Findings_EN, Impressions_EN
    metadata/{train,validation}_metadata.csv                  VolumeName, XYSpacing, ZSpacing, StudyDate, ...
    metadata/no_chest_{train,valid}.txt                       volumes that show another part of the body
    multi_abnormality_labels/{train,valid}_predicted_labels.csv   VolumeName and the 18 abnormalities
    {train,valid}[_fixed]/train_1/train_1_a/train_1_a_1.nii.gz    patient, scan, reconstruction
    ts_seg/ts_total/{train,valid}_fixed/train_1/train_1_a/train_1_a_1.nii.gz   segmentations of the same names, not read

RadGenome-ChestCT adds ``radgenome_files/{train,validation}_region_report.csv`` (Volumename, Anatomy, Sentence) and
keeps its volumes under ``{train,valid}_preprocessed``. Tables and volumes are found below the source by their names.

One study per volume, as the set counts; the reconstructions of a scan share report and split. The prior is the
patient's earlier scan by StudyDate, never by its letter.

Sources: Hamamci et al., "CT-RATE", arXiv:2403.17834; Zhang et al., "RadGenome-Chest CT", arXiv:2404.16754.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from radweave.core.errors import InputError
from radweave.core.study import LabelState, Split, View
from radweave.data.importers.mimic_cxr import study_moment
from radweave.data.importers.source import (
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    split_of,
    states_of,
    text_or_none,
)
from radweave.data.tables import read_table
from radweave.data.targets import Sections

_VOLUME = re.compile(r"^((train|valid)_\d+)_[a-z]+_\d+$")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
# The corrected volumes before the first release, those before RadGenome's resampled copies.
_FOLDER_RANK = ("_fixed", "")
# Folders of segmentations, whose files have the names of the volumes.
_SEGMENTATIONS = ("mask", "seg")
_SUFFIX = ".nii.gz"


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the folder that holds the tables (the download itself, or its folder ``dataset``).

    Raises:
        InputError: if there is neither a report table nor a region table, or a column is missing.
    """
    if not source.is_dir():
        raise InputError("not a folder", file=source)
    tables = {path.name: path for path in sorted(source.rglob("*.csv"))}
    reports = [tables[n] for part in ("train", "validation", "valid") if (n := f"{part}_reports.csv") in tables]
    regions = [tables[n] for part in ("train", "validation") if (n := f"{part}_region_report.csv") in tables]
    if not (reports or regions):
        raise InputError("no report table here", file=source, expected="train_reports.csv or train_region_report.csv")
    metadata = [tables[n] for part in ("train", "validation") if (n := f"{part}_metadata.csv") in tables]
    labels = [tables[n] for part in ("train", "valid") if (n := f"{part}_predicted_labels.csv") in tables]
    elsewhere = sorted(source.rglob("no_chest_*.txt"))
    texts, region_texts = _read_texts(reports), _read_regions(regions)
    geometry, states = _read_metadata(metadata), _read_labels(labels)
    not_chest = {line.rsplit("/", 1)[-1] for path in elsewhere for line in path.read_text("utf-8").split()}
    root = options.images or source
    volumes = _find_volumes(root, radgenome=bool(regions))
    names = sorted({*texts, *region_texts}, key=lambda name: _order(name, geometry))

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for name in names:
            stem = name.removesuffix(_SUFFIX)
            match = _VOLUME.match(stem)
            if match is None:
                problems.leave_out_study(name, "not a volume name of CT-RATE")
            elif name in not_chest or stem in not_chest:
                problems.leave_out_study(stem, "not a chest scan, by the set's own list")
            else:
                yield _raw_study(
                    stem,
                    match,
                    texts.get(name, Sections()),
                    region_texts.get(name),
                    geometry.get(name),
                    states.get(name),
                    volumes,
                )

    return Source(
        "radgenome-chestct" if regions else "ct-rate",
        studies,
        root,
        (*reports, *regions, *metadata, *labels, *elsewhere),
        "the published train and validation parts; 'valid-as-test' makes the latter the test split",
        modality="ct",
        licence="CC BY-NC-SA 4.0",
        notes=("labels were read from the reports by the publishers' classifier",) if labels else (),
        has_priors=True,
    )


def _read_texts(tables: list[Path]) -> dict[str, Sections]:
    texts: dict[str, Sections] = {}
    for table in tables:
        for _, row in read_table(table, needs=("VolumeName", "Findings_EN", "Impressions_EN")):
            texts[row["VolumeName"]] = Sections(
                findings=text_or_none(row["Findings_EN"]),
                impression=text_or_none(row["Impressions_EN"]),
                indication=text_or_none(row.get("ClinicalInformation_EN")),
                technique=text_or_none(row.get("Technique_EN")),
            )
    return texts


def _read_regions(tables: list[Path]) -> dict[str, dict[str, list[str]]]:
    """Volume -> region -> sentences, in file order; sentences without a region have an empty name."""
    regions: dict[str, dict[str, list[str]]] = {}
    for table in tables:
        for _, row in read_table(table, needs=("Volumename", "Anatomy", "Sentence")):
            sentence = text_or_none(row["Sentence"])
            if sentence is not None:
                of_volume = regions.setdefault(row["Volumename"], {})
                of_volume.setdefault(text_or_none(row["Anatomy"]) or "", []).append(sentence.strip())
    return regions


def _read_metadata(tables: list[Path]) -> dict[str, tuple[tuple[float, ...] | None, str | None]]:
    """Volume -> spacing (z, y, x) in mm, moment of the study."""
    geometry: dict[str, tuple[tuple[float, ...] | None, str | None]] = {}
    for table in tables:
        for _, row in read_table(table, needs=("VolumeName",)):
            numbers = _NUMBER.findall(row.get("XYSpacing", "")) + _NUMBER.findall(row.get("ZSpacing", ""))
            values = [float(number) for number in numbers]
            usable = len(values) == 3 and all(value > 0 and math.isfinite(value) for value in values)
            # XYSpacing is DICOM's Pixel Spacing: row spacing (y) first, PS3.3 10.7.1.3.
            spacing = (values[2], values[0], values[1]) if usable else None
            geometry[row["VolumeName"]] = spacing, study_moment(row.get("StudyDate", ""), row.get("StudyTime", ""))
    return geometry


def _read_labels(tables: list[Path]) -> dict[str, dict[str, LabelState]]:
    return {
        row["VolumeName"]: states_of(row, frozenset({"VolumeName", ""}), table, line)
        for table in tables
        for line, row in read_table(table, needs=("VolumeName",))
    }


def _order(name: str, geometry: dict[str, tuple[tuple[float, ...] | None, str | None]]) -> tuple[str, str, str]:
    match = _VOLUME.match(name.removesuffix(_SUFFIX))
    return (match[1] if match else "", geometry.get(name, (None, None))[1] or "", name)


def _find_volumes(root: Path, *, radgenome: bool) -> dict[str, Path]:
    """File name -> path; of a volume in several folders, the corrected or the preprocessed one."""
    ranks = ("_preprocessed", *_FOLDER_RANK) if radgenome else (*_FOLDER_RANK, "_preprocessed")
    best: dict[str, tuple[int, str, Path]] = {}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not any(mark in name.lower() for mark in _SEGMENTATIONS))
        top = Path(folder).relative_to(root).as_posix()
        rank = next((r for r, mark in enumerate(ranks) if mark and f"{mark}/" in f"{top}/"), ranks.index(""))
        for name in names:
            if name.endswith(_SUFFIX):
                candidate = (rank, top, Path(folder, name))
                best[name] = min(best.get(name, candidate), candidate)
    return {name: path for name, (_, _, path) in best.items()}


def _raw_study(
    stem: str,
    match: re.Match[str],
    sections: Sections,
    regions: dict[str, list[str]] | None,
    geometry: tuple[tuple[float, ...] | None, str | None] | None,
    states: dict[str, LabelState] | None,
    volumes: dict[str, Path],
) -> RawStudy:
    name = f"{stem}{_SUFFIX}"
    spacing, moment = geometry or (None, None)
    file = volumes.get(name)
    sentences = [sentence for part in (regions or {}).values() for sentence in part]
    split: Split | None = split_of(match[2])
    return RawStudy(
        study_id=stem,
        patient_id=match[1],
        split=split,
        images=(RawImage(file, f"images/{name}", View.AXIAL, "ct", spacing_mm=spacing),) if file else (),
        sections=replace(sections, findings=sections.findings or " ".join(sentences) or None),
        study_time=moment,
        labels={"ct18": states} if states else {},
        regions={region: " ".join(part) for region, part in (regions or {}).items() if region},
    )
