"""Published forms of IU X-Ray, read to the same study ids.

- Open-i's own XML files (a folder, or the archive ``ecgen-radiology.tgz``) with PNG or DICOM images;
- the Kaggle copy: ``indiana_reports.csv`` and ``indiana_projections.csv``;
- R2Gen's ``annotation.json``;
- ReXrank's JSON (validation and test split only).

Only Kaggle and ReXrank have the projections, only R2Gen and ReXrank the split; R2Gen has the findings alone, and the
Kaggle copy lacks the studies without images.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.study import Split, View
from radweave.data.importers.archives import parse_xml, tar_texts
from radweave.data.importers.source import SECTIONS, Problems, RawImage, RawStudy, split_of, text_or_none, view_of
from radweave.data.tables import read_table
from radweave.data.targets import Sections

_STUDY = re.compile(r"CXR\d+")
# "CXR1_1_IM-0001-3001.png" (Open-i) and "1_IM-0001-3001.dcm.png" (Kaggle) are the same image.
_IMAGE = re.compile(r"^(?:CXR)?(\d+)_(?:\d+_)?(IM-[\d-]+)")
_SUFFIXES = (".dcm.png", ".png", ".dcm.jpg", ".jpg", ".jpeg", ".dcm")
# Spreadsheet errors in place of texts that began like a formula.
_SPREADSHEET_ERRORS = frozenset({"#NAME?", "#VALUE!", "#REF!", "#N/A"})

ImageKey = tuple[str, str]


def image_key(name: str) -> ImageKey | None:
    """Patient number and image number from a file name or an image id of any of the forms."""
    match = _IMAGE.match(name.rsplit("/", 1)[-1])
    return (match[1], match[2]) if match else None


def canonical_id(text: str, place: str) -> str:
    """``CXR1000`` from ``CXR1000_IM-0003`` and the like.

    Raises:
        InputError: if the text does not begin so.
    """
    match = _STUDY.match(text)
    if match is None:
        raise InputError("not an IU X-Ray study id", file=place, expected="CXR and a number")
    return match[0]


@dataclass(slots=True)
class ImageFolder:
    """The image files below a folder by patient and image number, in any naming scheme."""

    root: Path
    files: dict[ImageKey, Path] = field(default_factory=dict)
    by_number: dict[str, list[ImageKey]] = field(default_factory=dict)

    @classmethod
    def scan(cls, root: Path) -> ImageFolder:
        """Index a folder; of several forms of one image, PNG has precedence over JPEG over DICOM."""
        best: dict[ImageKey, tuple[int, str, Path]] = {}
        for folder_name, subfolders, names in os.walk(root):
            subfolders.sort()
            for name in names:
                key, path = image_key(name), Path(folder_name, name)
                rank = next((r for r, suffix in enumerate(_SUFFIXES) if name.lower().endswith(suffix)), None)
                if key is None or rank is None:
                    continue
                candidate = (rank, path.relative_to(root).as_posix(), path)
                best[key] = min(best.get(key, candidate), candidate)
        folder = cls(root)
        for key, (_, _, path) in sorted(best.items()):
            folder.files[key] = path
            folder.by_number.setdefault(key[0], []).append(key)
        return folder

    def image(self, name: str, view: View) -> RawImage:
        """The image of an id or file name; for a missing file, its expected path."""
        key = image_key(name)
        path = self.files.get(key) if key else None
        return RawImage(file=path or self.root / name, inside=f"images/{path.name if path else name}", view=view)

    def of_study(self, study_id: str, views: Mapping[ImageKey, View]) -> list[RawImage]:
        """All images of a study, by image number."""
        keys = self.by_number.get(study_id.removeprefix("CXR"), [])
        return [
            RawImage(self.files[key], f"images/{self.files[key].name}", views.get(key, View.UNKNOWN)) for key in keys
        ]


def read_projections(table: Path) -> dict[str, list[tuple[str, View]]]:
    """Kaggle's ``indiana_projections.csv``: study id -> file names and views, in the table's order."""
    projections: dict[str, list[tuple[str, View]]] = {}
    for _, row in read_table(table, needs=("uid", "filename", "projection")):
        projections.setdefault(f"CXR{row['uid']}", []).append((row["filename"], view_of(row["projection"])))
    return projections


def views_by_key(projections: Mapping[str, list[tuple[str, View]]]) -> dict[ImageKey, View]:
    keyed = ((image_key(name), view) for images in projections.values() for name, view in images)
    return {key: view for key, view in keyed if key is not None}


def read_annotation(path: Path) -> dict[str, tuple[Split | None, str, list[str]]]:
    """R2Gen's file: study id -> split, findings, image paths.

    Raises:
        InputError: if it is not of that form, or a study comes twice.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(entries, list) for entries in content.values()):
        raise InputError("not an R2Gen annotation file", file=path, expected="lists under train, val and test")
    studies: dict[str, tuple[Split | None, str, list[str]]] = {}
    for name, entries in content.items():
        for entry in entries:
            try:
                study_id = canonical_id(entry["id"], path.name)
                # The key of the test split is blank in a common copy.
                split = split_of(name) or split_of(entry.get("split")) or "test"
                value = (split, str(entry["report"]), [str(image) for image in entry["image_path"]])
            except (KeyError, TypeError):
                raise InputError("an entry lacks 'id', 'report' or 'image_path'", file=path, field=name) from None
            if study_id in studies:
                raise InputError("a study comes twice", file=path, field=name, got=study_id)
            studies[study_id] = value
    return studies


def openi_studies(
    source: Path, images: ImageFolder, views: Mapping[ImageKey, View], problems: Problems
) -> Iterator[RawStudy]:
    """Studies of Open-i's XML files, in order of their numbers within a folder, else in the archive's order."""
    files: Iterator[tuple[str, bytes]]
    if source.is_file():
        files = tar_texts(source, ".xml")
    else:
        paths = sorted(
            source.rglob("*.xml"), key=lambda path: (not path.stem.isdigit(), len(path.stem), path.as_posix())
        )
        files = ((path.name, path.read_bytes()) for path in paths)
    for name, data in files:
        try:
            root = parse_xml(data, name)
            yield _openi_study(root, name, images, views)
        except InputError as error:
            problems.leave_out_study(name, error.reason)


def _openi_study(root: Any, name: str, images: ImageFolder, views: Mapping[ImageKey, View]) -> RawStudy:
    uid = root.find("uId")
    study_id = canonical_id("" if uid is None else uid.get("id", ""), name)
    texts = {element.get("Label", "").upper(): element.text for element in root.iter("AbstractText")}
    ids = [element.get("id", "") for element in root.iter("parentImage")]
    keys = [(image_id, image_key(image_id)) for image_id in ids]
    return RawStudy(
        study_id=study_id,
        patient_id=study_id,
        images=tuple(images.image(i, views.get(key, View.UNKNOWN) if key else View.UNKNOWN) for i, key in keys),
        sections=Sections(**{name: text_or_none(texts.get(name.upper())) for name in SECTIONS[:4]}),
    )


def kaggle_studies(
    reports: Path, projections: Mapping[str, list[tuple[str, View]]], images: ImageFolder
) -> Iterator[RawStudy]:
    """Studies of ``indiana_reports.csv`` with the views of ``indiana_projections.csv``."""
    for _, row in read_table(reports, needs=("uid", *SECTIONS[:4])):
        study_id = f"CXR{row['uid']}"
        yield RawStudy(
            study_id=study_id,
            patient_id=study_id,
            images=tuple(images.image(name, view) for name, view in projections.get(study_id, ())),
            sections=Sections(**{name: _kaggle_text(row[name]) for name in SECTIONS[:4]}),
        )


def _kaggle_text(cell: str) -> str | None:
    return None if cell.strip() in _SPREADSHEET_ERRORS else text_or_none(cell)


def r2gen_studies(
    annotation: Mapping[str, tuple[Split | None, str, list[str]]],
    images: ImageFolder,
    views: Mapping[ImageKey, View],
) -> Iterator[RawStudy]:
    """Studies of R2Gen's file: its own images where they are, else every image of the study's number."""
    for study_id, (split, report, paths) in annotation.items():
        yield RawStudy(
            study_id=study_id,
            patient_id=study_id,
            split=split,
            images=named_or_all(study_id, paths, [View.UNKNOWN] * len(paths), images, views),
            sections=Sections(text_or_none(report)),
        )


def named_or_all(
    study_id: str, paths: list[str], views: list[View], images: ImageFolder, known: Mapping[ImageKey, View]
) -> tuple[RawImage, ...]:
    """Images by R2Gen's and ReXrank's names ``<study>/0.png``; their mapping to the originals is unpublished.

    Without such files, all images of the study are taken.
    """
    for root in (images.root, images.root / "images"):
        if any((root / path).is_file() for path in paths):
            return tuple(RawImage(root / path, f"images/{path}", view) for path, view in zip(paths, views, strict=True))
    all_images = images.of_study(study_id, known)
    return tuple(all_images) or tuple(RawImage(images.root / path, f"images/{path}") for path in paths)
