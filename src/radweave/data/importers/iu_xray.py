"""IU X-Ray (Open-i): chest radiographs with reports of Indiana University.

One study per patient number, so a study's id is also its patient's: ``CXR1000``.

Source: Demner-Fushman et al., "Preparing a collection of radiology examinations for distribution and retrieval",
JAMIA 23(2), 2016. Split: R2Gen (Chen et al., EMNLP 2020): 2,069 / 296 / 590 studies with findings and two images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, read_jsonl
from radweave.core.study import Split, View
from radweave.data.importers import rexrank
from radweave.data.importers.iu_formats import (
    ImageFolder,
    kaggle_studies,
    openi_studies,
    r2gen_studies,
    read_annotation,
    read_projections,
    views_by_key,
)
from radweave.data.importers.source import (
    SECTIONS,
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
from radweave.data.targets import Sections

NAME = "iu-xray"
PROJECTIONS = "indiana_projections.csv"
LICENCE = "CC BY-NC-ND 4.0 (http://creativecommons.org/licenses/by-nc-nd/4.0/)"
R2GEN_SPLIT = "R2Gen's published split (2,069 / 296 / 590 studies of the whole collection)"

_LABEL_SETS = {"chexpert14": "labels_chexpert14_auto", "nih14": "labels_nih14_manual"}
# "normal" means that no other class is positive; it is no class of the label set.
_NO_CLASS = frozenset({"normal"})


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open IU X-Ray in any of its published forms; a folder may hold only one of them.

    A file ``indiana_projections.csv`` beside the source gives the views; ``options.annotation`` (an R2Gen file)
    gives the split where the source has none.

    Raises:
        InputError: if the source is in none of these forms, or in several.
    """
    kind, path = _detect(source)
    if kind == "manifest":
        return _manifest_source(path, options)
    if kind == "rexrank":
        return rexrank.open_source(path, options)
    images = ImageFolder.scan(options.images or (path if path.is_dir() else path.parent))
    table = (path if path.is_dir() else path.parent) / PROJECTIONS
    projections = read_projections(table) if table.is_file() else {}
    views = views_by_key(projections)
    files = [table] if projections else []
    if kind == "openi":
        studies = partial(openi_studies, path, images, views)
        files += [path] if path.is_file() else []
    elif kind == "kaggle":
        if not projections:
            raise InputError("file is missing; it says which images belong to a report", file=table)
        files.append(path)
        studies = partial(_without_problems, lambda: kaggle_studies(path, projections, images))
    else:
        annotation = read_annotation(path)
        files.append(path)
        studies = partial(_without_problems, lambda: r2gen_studies(annotation, images, views))
    split_known = kind == "r2gen"
    if options.annotation is not None and not split_known:
        splits = {study_id: entry[0] for study_id, entry in read_annotation(options.annotation).items()}
        files.append(options.annotation)
        studies, split_known = partial(_with_splits, studies, splits), True
    return Source(
        NAME,
        studies,
        images.root,
        tuple(files),
        R2GEN_SPLIT if split_known else "none",
        licence=LICENCE,
        notes=_notes(kind, split_known, bool(views)),
        needs_split=split_known,
    )


def _notes(kind: str, split_known: bool, views_known: bool) -> tuple[str, ...]:
    notes = []
    if not split_known:
        notes.append("this form states no split; give an R2Gen annotation file, or a ratio such as 7:1:2")
    if not views_known:
        notes.append(f"views are not known; {PROJECTIONS} beside the source would tell them")
    if kind == "r2gen":
        notes.append("the file holds the findings alone: no impression, indication or comparison")
    if kind == "kaggle":
        notes.append("texts that a spreadsheet program had turned into an error are missing")
    return tuple(notes)


def _without_problems(studies: Callable[[], Iterator[RawStudy]], problems: Problems) -> Iterator[RawStudy]:
    return studies()


def _with_splits(
    studies: Callable[[Problems], Iterator[RawStudy]], splits: Mapping[str, Split | None], problems: Problems
) -> Iterator[RawStudy]:
    for study in studies(problems):
        yield replace(study, split=splits.get(study.study_id))


def _detect(source: Path) -> tuple[str, Path]:
    """The form of a file or folder, and the file or folder in that form.

    Raises:
        InputError: for none, or several in one folder.
    """
    if source.is_file():
        if source.suffix == ".jsonl":
            return "manifest", source
        if source.suffix == ".csv":
            return "kaggle", source
        if source.suffix == ".json":
            return ("r2gen" if _is_annotation(source) else "rexrank"), source
        return "openi", source
    if (source / "manifest.jsonl").is_file():
        return "manifest", source / "manifest.jsonl"
    forms: list[tuple[str, Path]] = []
    forms += [("openi", path) for path in sorted(source.glob("*.tgz"))]
    forms += [("kaggle", path) for path in sorted(source.glob("*reports.csv"))]
    jsons = sorted(source.glob("*.json"))
    forms += [("r2gen", path) for path in jsons if "annotation" in path.name]
    if any("rexrank" in path.name.lower() for path in jsons):
        forms.append(("rexrank", source))
    if not forms and next(source.rglob("*.xml"), None) is not None:
        forms.append(("openi", source))
    if len(forms) != 1:
        raise InputError(
            "no IU X-Ray data here, or in several forms; give the path of one",
            file=source,
            got=", ".join(path.name for _, path in forms) or "none of them",
            expected="manifest.jsonl, Open-i XML or .tgz, indiana_reports.csv, annotation.json or ReXrank JSON",
        )
    return forms[0]


def _is_annotation(path: Path) -> bool:
    content = read_json(path)
    return isinstance(content, dict) and any(isinstance(value, list) for value in content.values())


def _manifest_source(manifest: Path, options: ImportOptions) -> Source:
    folder = options.images or manifest.parent
    notes_file = manifest.parent / "quality_notes.json"
    files = (manifest, notes_file) if notes_file.is_file() else (manifest,)
    notes = read_json(notes_file) if notes_file.is_file() else {}
    # Frontal images that the source labels lateral.
    mislabelled = frozenset(notes.get("wrong_view_label", {}).get("images", ()))

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for number, row in read_jsonl(manifest):
            try:
                yield _manifest_study(row, folder, mislabelled, f"{manifest.name}, line {number}")
            except (InputError, TypeError, AttributeError, LookupError):
                problems.leave_out_study(f"line {number}", "not an IU X-Ray entry")

    notes = (
        "images are stretched copies; readers undo it from original_size_wh",
        *(("views corrected where the quality notes name a wrong label",) if mislabelled else ()),
    )
    return Source(NAME, studies, folder, files, R2GEN_SPLIT, licence=LICENCE, notes=notes, needs_split=True)


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
            view=View.FRONTAL if Path(path).name.split(".", 1)[0] in mislabelled else _view(view, position),
            original_size_wh=(size[0], size[1]) if size else None,
        )
        for path, size, view, position in zip(images, sizes, views, positions, strict=True)
    )
    labels = {name: states_of(row[key], _NO_CLASS, place, None) for name, key in _LABEL_SETS.items() if row.get(key)}
    return RawStudy(
        study_id=row["id"],
        patient_id=row["id"],
        split=split_of(row.get("r2gen_split")),
        images=raw_images,
        sections=Sections(**{name: text_or_none(row.get(name)) for name in SECTIONS[:4]}),
        labels=labels,
    )


def _view(projection: str | None, position: str | None) -> View:
    """View by the collection's label; the DICOM position only separates PA from AP.

    The headers label more than a thousand lateral images PA.
    """
    view, header = view_of(projection), view_of(position)
    return header if view is View.FRONTAL and header.is_frontal else view
