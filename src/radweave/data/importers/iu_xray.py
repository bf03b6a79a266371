"""IU X-Ray (Open-i): chest radiographs with reports of Indiana University.

One study per patient number, so a study's id is also its patient's: ``CXR1000``.

Source: Demner-Fushman et al., "Preparing a collection of radiology examinations for distribution and retrieval",
JAMIA 23(2), 2016. Split: R2Gen (Chen et al., EMNLP 2020): 2,069 / 296 / 590 studies with findings and two images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radweave.data.importers.source import (
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    split_of,
    text_or_none,
    view_of,
)
from radweave.errors import InputError
from radweave.storage import read_json, read_jsonl
from radweave.types import LabelState, View

NAME = "iu-xray"
LICENCE = "CC BY-NC-ND 4.0 (http://creativecommons.org/licenses/by-nc-nd/4.0/)"
R2GEN_SPLIT = "R2Gen's published split (2,069 / 296 / 590 studies of the whole collection)"

_STATES = {1: LabelState.POSITIVE, 0: LabelState.NEGATIVE, -1: LabelState.UNCERTAIN, None: LabelState.BLANK}
_LABEL_SETS = {"chexpert14": "labels_chexpert14_auto", "nih14": "labels_nih14_manual"}
# "normal" says that none of the others is positive; it is no class of the label set.
_NO_CLASS = frozenset({"normal"})


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open a folder with ``manifest.jsonl`` and ``images``.

    Raises:
        InputError: if the source is in none of these forms.
    """
    manifest = source / "manifest.jsonl" if source.is_dir() else source
    if manifest.suffix == ".jsonl" and manifest.is_file():
        return _manifest_source(manifest, options)
    raise InputError("no IU X-Ray data here", file=source, expected="a folder with manifest.jsonl")


def _manifest_source(manifest: Path, options: ImportOptions) -> Source:
    folder = options.images or manifest.parent
    notes_file = manifest.parent / "quality_notes.json"
    mislabelled = _mislabelled_laterals(notes_file)
    files = (manifest, notes_file) if notes_file.is_file() else (manifest,)

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for number, row in read_jsonl(manifest):
            yield _manifest_study(row, folder, mislabelled, f"{manifest.name}, line {number}")

    notes = (
        "images are stretched copies; readers undo it from original_size_wh",
        *(("views corrected where the quality notes name a wrong label",) if mislabelled else ()),
    )
    return Source(NAME, studies, files, R2GEN_SPLIT, licence=LICENCE, notes=notes, needs_split=True)


def _manifest_study(row: dict[str, Any], folder: Path, mislabelled: frozenset[str], place: str) -> RawStudy:
    images = row.get("images") or []
    sizes = row.get("original_size_wh") or [None] * len(images)
    views = row.get("views") or [None] * len(images)
    positions = row.get("dicom_view_position") or [None] * len(images)
    if not isinstance(row.get("id"), str) or not len(images) == len(sizes) == len(views) == len(positions):
        raise InputError("not a study: 'id', 'images', 'views' and 'original_size_wh' do not fit", file=place)
    raw_images = tuple(
        RawImage(
            file=folder / path,
            inside=path,
            view=View.FRONTAL if _image_id(path) in mislabelled else _view(view, position),
            original_size_wh=(size[0], size[1]) if size else None,
        )
        for path, size, view, position in zip(images, sizes, views, positions, strict=True)
    )
    labels = {
        name: {finding: _STATES[value] for finding, value in row[key].items() if finding not in _NO_CLASS}
        for name, key in _LABEL_SETS.items()
        if row.get(key)
    }
    return RawStudy(
        study_id=row["id"],
        patient_id=row["id"],
        split=split_of(row.get("r2gen_split")),
        images=raw_images,
        findings=text_or_none(row.get("findings")),
        impression=text_or_none(row.get("impression")),
        indication=text_or_none(row.get("indication")),
        comparison=text_or_none(row.get("comparison")),
        labels=labels,
    )


def _view(projection: str | None, position: str | None) -> View:
    """The collection's own word decides; the DICOM position only tells PA from AP.

    The headers call more than a thousand lateral images PA.
    """
    view, header = view_of(projection), view_of(position)
    return header if view is View.FRONTAL and header.is_frontal else view


def _image_id(path: str) -> str:
    return path.rsplit("/", 1)[-1].split(".", 1)[0]


def _mislabelled_laterals(notes_file: Path) -> frozenset[str]:
    """Images the source calls lateral and a reader saw to be frontal."""
    if not notes_file.is_file():
        return frozenset()
    return frozenset(read_json(notes_file).get("wrong_view_label", {}).get("images", ()))
