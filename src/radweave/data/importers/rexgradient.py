"""ReXGradient-160K: one JSON file per split, with PNG images.

    metadata/{train,valid,test}_metadata_view_position.json   study -> PatientID, StudyInstanceUid, StudyDate,
                                                              Indication, Comparison, Findings, Impression,
                                                              ImagePath and ImageViewPosition (lists)
    deid_png/<patient>/<accession>/studies/.../instances/<image>.png   ImagePath has ../deid_png/ before it

The prior of a study is the patient's study before it by StudyDate.

Source: Zhang et al., "ReXGradient-160K", arXiv:2505.00228.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.study import Split
from radweave.data.importers.mimic_cxr import study_moment
from radweave.data.importers.source import (
    OTHER_SPLIT,
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    splits_by_patient,
    stated_or_none,
    view_of,
)
from radweave.data.targets import Sections

_PARTS: Mapping[str, Split] = {"train": "train", "valid": "val", "test": "test"}
_FORM = "{}_metadata_view_position.json"


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the download, or its folder ``metadata``.

    Raises:
        InputError: if no metadata file is there, or one has another form.
    """
    folder = next(
        (f for f in (source, source / "metadata") if any((f / _FORM.format(p)).is_file() for p in _PARTS)), None
    )
    if folder is None:
        raise InputError("no ReXGradient metadata here", file=source, expected=_FORM.format("metadata/train"))
    files = {split: path for part, split in _PARTS.items() if (path := folder / _FORM.format(part)).is_file()}
    entries = [(study, entry, split) for split, path in files.items() for study, entry in _read(path).items()]
    entries.sort(key=lambda row: (str(row[1].get("PatientID")), _time(row[1]) or "", row[0]))
    patients = splits_by_patient((str(entry.get("PatientID")), split) for _, entry, split in entries)
    root = options.images or (source if (source / "deid_png").is_dir() else folder.parent)

    def studies(problems: Problems) -> Iterator[RawStudy]:
        used: set[str] = set()
        for study, entry, split in entries:
            if study in used:
                problems.leave_out_study(study, "a study of this id is there already")
            elif split == "train" and len(patients[str(entry.get("PatientID"))]) > 1:
                problems.leave_out_study(study, OTHER_SPLIT)
            else:
                used.add(study)
                yield from _raw_study(study, entry, split, root, problems)

    return Source(
        "rexgradient",
        studies,
        root,
        tuple(files.values()),
        "the published train, valid and test files",
        licence="as its page states (access on request)",
        has_priors=True,
    )


def _read(path: Path) -> dict[str, dict[str, Any]]:
    content = read_json(path)
    if not isinstance(content, dict) or not content or not all(isinstance(entry, dict) for entry in content.values()):
        raise InputError("not a ReXGradient file", file=path, expected="one object, study -> entry")
    return content


def _time(entry: Mapping[str, Any]) -> str | None:
    return study_moment(str(entry.get("StudyDate") or ""), "")


def _raw_study(
    study: str, entry: Mapping[str, Any], split: Split, root: Path, problems: Problems
) -> Iterator[RawStudy]:
    patient, paths = entry.get("PatientID"), entry.get("ImagePath")
    if not isinstance(patient, (str, int)) or str(patient) == "":
        problems.leave_out_study(study, "no PatientID")
        return
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        problems.leave_out_study(study, "ImagePath is no list of paths")
        return
    stated = entry.get("ImageViewPosition")
    views = stated if isinstance(stated, list) and len(stated) == len(paths) else [None] * len(paths)
    texts = {name: entry.get(name) for name in ("Findings", "Impression", "Indication", "Comparison")}
    wrong = [name for name, text in texts.items() if text is not None and not isinstance(text, str)]
    if wrong:
        problems.leave_out_study(study, f"{wrong[0]} is no text")
        return
    images = []
    for path, view in zip(paths, views, strict=True):
        inside = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("..", "/")))
        images.append(
            RawImage(root / inside, f"images/{'/'.join(inside.parts[1:]) or inside}", view_of(str(view or "")))
        )
    yield RawStudy(
        study_id=study.replace("/", "_"),
        patient_id=str(patient),
        split=split,
        images=tuple(images),
        sections=Sections(*(stated_or_none(text) for text in texts.values())),
        study_time=_time(entry),
    )
