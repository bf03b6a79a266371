"""Plain folder: a CSV or JSON-lines table with paths and texts, and radiographs or volumes.

Columns, by any of these names: ``image`` / ``images`` / ``path`` / ``file`` (needed), one of ``findings`` /
``impression`` / ``report`` / ``text`` (needed unless studies without text are kept), ``study_id`` / ``study`` / ``id``,
``patient_id`` / ``subject_id``, ``split``, ``view`` / ``views``, ``indication``, ``comparison``, ``technique``,
``study_time``. Several views of a study are several rows with the same study id, or one cell with a separator
(``|`` by default); in JSON lines, a list. A ``report`` with headings such as "Findings:" is split into sections; one
without is the target as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError, printable
from radweave.core.json_files import read_jsonl
from radweave.core.study import Modality, View
from radweave.data.importers.build import SOURCE_SPLIT, VALID_AS_TEST
from radweave.data.importers.source import (
    SECTIONS,
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    split_of,
    text_or_none,
    view_of,
)
from radweave.data.tables import encoding_note, read_table
from radweave.data.targets import Sections, has_headings, parse_sections, sections_for

NAMES: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "images", "image_path", "path", "file", "filename", "file_name", "volume"),
    "report": ("report", "text", "caption"),
    "findings": ("findings",),
    "impression": ("impression", "impressions"),
    "indication": ("indication", "history"),
    "comparison": ("comparison",),
    "technique": ("technique",),
    "study_id": ("study_id", "study", "id", "uid"),
    "patient_id": ("patient_id", "subject_id", "patient"),
    "split": ("split",),
    "view": ("view", "views", "view_position", "viewposition", "projection"),
    "study_time": ("study_time",),
}
_SCALARS = tuple(name for name in NAMES if name not in ("image", "view", "study_id"))
_VOLUME_SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd")
UNKNOWN_SPLIT = "unknown split (train, val or test; or --split 7:1:2)"
_LONGEST_WORD, _MOST_NAMED = 24, 20
_SUFFIXES = (".csv", ".jsonl", ".tsv")
_TABLE_NAMES = ("manifest.jsonl", "reports.csv", "metadata.csv", "data.csv", "reports.jsonl")


@dataclass(slots=True)
class _Gathered:
    """The rows of one study: its first line, its values, its image cells with views."""

    line: int
    values: dict[str, str | None]
    images: list[tuple[str, str | None]] = field(default_factory=list)


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open a table, or a folder that holds one.

    Raises:
        InputError: without exactly one table, for a missing column, or an id of two different studies.
    """
    table = _find_table(source)
    root = options.images or table.parent
    read = _gather(table, options)
    gathered, columns = read.studies, read.columns
    modality: Modality = "ct" if _is_volume_set(root, gathered) else "xray"

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for line, reason in read.bad:
            problems.leave_out_study(f"line {line}", reason)
        for study_id in order:
            rows = gathered[study_id]
            split = rows.values.get("split")
            if split is not None and split_of(split) is None:
                # A row that is shifted by a column has a name or a date there.
                is_word = len(split) <= _LONGEST_WORD and split.isalnum() and not options.scrub
                problems.leave_out_study(study_id, UNKNOWN_SPLIT, got=split if is_word else None)
                continue
            yield _raw_study(study_id, rows, root, modality)

    order = list(gathered)
    notes = [note for note in (encoding_note(table),) if note]
    if others := len(_tables(source)) - 1:
        notes.append(f"{table.name} is the table; others in the folder are not read: {others}")
    if "study_time" in columns:
        order.sort(key=lambda study: (_patient(study, gathered[study]), gathered[study].values.get("study_time") or ""))
        notes.append("priors follow the column 'study_time', compared as text")
    if "patient_id" not in columns:
        notes.append("no patient column: every study counts as a patient of its own, so patient leaks cannot be seen")
    if "split" not in columns and options.split in SOURCE_SPLIT:
        notes.append("no split column: studies have no split; a ratio such as 7:1:2 makes one")
    if unread := [name for name in read.names if name not in columns.values()]:
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        notes.append(f"columns that are not read: {', '.join(map(printable, unread[:_MOST_NAMED]))}{more}")
    provenance = f"column '{columns['split']}' of {table.name}" if "split" in columns else "none"
    return Source(
        "folder",
        studies,
        root,
        (table,),
        provenance,
        modality=modality,
        notes=tuple(notes),
        is_known_set=False,
        has_priors="study_time" in columns,
    )


def _reads_split(options: ImportOptions) -> bool:
    """True if the split is that of the table."""
    return options.split in (*SOURCE_SPLIT, VALID_AS_TEST)


def _tables(source: Path) -> list[Path]:
    """The tables of a folder."""
    return [source] if source.is_file() else sorted(path for suffix in _SUFFIXES for path in source.glob(f"*{suffix}"))


def _find_table(source: Path) -> Path:
    tables = _tables(source)
    tables = [path for path in tables if path.name in _TABLE_NAMES] or tables
    tables = [path for path in tables if path.suffix != ".tsv"] or tables
    if len(tables) != 1:
        names = ", ".join(path.name for path in tables) or "none"
        raise InputError(
            "cannot tell which table holds the reports; give its path", file=source, got=names, expected="one table"
        )
    return tables[0]


def _rows(table: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if table.suffix.lower() == ".jsonl":
        yield from read_jsonl(table)
    elif table.suffix.lower() in _SUFFIXES:
        yield from read_table(table, delimiter=None)
    else:
        raise InputError("not a table", file=table, got=table.suffix or "no suffix", expected=".csv, .tsv or .jsonl")


def _columns(names: Iterable[str]) -> dict[str, str]:
    """Column -> its name in the table, the first in ``NAMES`` if there are several."""
    by_lower = {re.sub(r"[\s-]+", "_", name.strip().lower()): name for name in reversed(list(names))}
    return {
        column: by_lower[alias] for column, aliases in NAMES.items() for alias in reversed(aliases) if alias in by_lower
    }


def _require(table: Path, names: Collection[str], columns: Mapping[str, str], options: ImportOptions) -> None:
    """Raise InputError if there is no image column, or none for the target's text."""
    if options.target == "regions":
        expected = "another target: a table has no texts by region"
        raise InputError(
            "cannot be the target of a table", file=table, field="target", got="regions", expected=expected
        )
    for needed in ("image", *sections_for(options.target)):
        if needed in columns or (needed == "image" and options.keeps_without_image):
            continue
        if needed != "image" and ("report" in columns or options.keeps_without_text):
            continue
        known = NAMES[needed] if needed == "image" else (*NAMES[needed], *NAMES["report"])
        other = next((name for name in SECTIONS if name in columns), None) if needed != "image" else None
        hint = f"; or --target {other}, which the table has" if other else ""
        raise InputError(
            # A table without a head has a patient in its first row.
            "column is missing", file=table, field=needed, got=f"{len(names)} others",
            expected=f"one of {', '.join(known)}{hint}",
        )  # fmt: skip


@dataclass(slots=True)
class _Table:
    """Contents of a table: studies by id in order of first appearance, all names, known columns, invalid rows."""

    studies: dict[str, _Gathered] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    bad: list[tuple[int, str]] = field(default_factory=list)


def _gather(table: Path, options: ImportOptions) -> _Table:
    """All rows of a table, grouped by study."""
    gathered = _Table()
    is_csv = table.suffix.lower() != ".jsonl"
    for line, row in _rows(table):
        columns = gathered.columns if is_csv and gathered.columns else _columns(row)
        if is_csv:
            _require(table, row, columns, options)
        gathered.columns |= columns
        gathered.names |= dict.fromkeys(row)
        try:
            images = _image_cells(row, columns, options.separator)
            values = {name: _cell(row.get(columns[name])) for name in _SCALARS if name in columns}
            if not _reads_split(options):
                values.pop("split", None)
            study_id = _study_id(row, columns, images)
        except BadRowError as bad:
            gathered.bad.append((line, str(bad)))
            continue
        if study_id not in gathered.studies:
            gathered.studies[study_id] = _Gathered(line, values, images)
        else:
            _add_row(table, line, gathered.studies[study_id], values, images)
    if not gathered.studies and not gathered.bad:
        raise InputError("the table holds no row", file=table)
    _require(table, gathered.names, gathered.columns, options)
    return gathered


class BadRowError(ValueError):
    """An invalid row; the message is the reason that counts it."""


def _cell(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadRowError("a cell that should be text is not")
    return text_or_none(str(value))


def _list_cell(value: Any, separator: str) -> list[str | None]:
    if isinstance(value, list):
        return [_cell(item) for item in value]
    text = _cell(value)
    return [part.strip() or None for part in text.split(separator)] if text else []


def _image_cells(row: Mapping[str, Any], columns: Mapping[str, str], separator: str) -> list[tuple[str, str | None]]:
    paths = _list_cell(row.get(columns.get("image", "")), separator)
    views = _list_cell(row.get(columns.get("view", "")), separator)
    if len(views) not in (0, len(paths)):
        raise BadRowError("number of views and of images differ")
    views = views or [None] * len(paths)
    return [(path, view) for path, view in zip(paths, views, strict=True) if path]


def _study_id(row: Mapping[str, Any], columns: Mapping[str, str], images: list[tuple[str, str | None]]) -> str:
    """The id of the table, or the first image's path without suffixes if it has none."""
    if "study_id" in columns:
        study_id = _cell(row.get(columns["study_id"]))
        if study_id is None:
            raise BadRowError("no study id")
        return study_id.strip()
    if not images:
        raise BadRowError("no study id and no image")
    folder, _, name = images[0][0].replace("\\", "/").strip("/").rpartition("/")
    stem = name.split(".", 1)[0] or name
    return "_".join(part for part in (*folder.split("/"), stem) if part not in ("", ".", ".."))


def _add_row(
    table: Path, line: int, study: _Gathered, values: dict[str, str | None], images: list[tuple[str, str | None]]
) -> None:
    """Add another view to a study.

    Raises:
        InputError: if the row gives the study another text, patient or split, or the same image again.
    """
    for name, value in values.items():
        if value is not None and study.values.get(name) not in (None, value):
            raise InputError(
                f"duplicate study id: the row differs in '{name}' from line {study.line}", file=table, line=line
            )
        study.values[name] = study.values.get(name) or value
    known = {path for path, _ in study.images}
    if not images or any(path in known for path, _ in images):
        raise InputError(f"duplicate study id: the row repeats line {study.line}", file=table, line=line)
    study.images.extend(images)


def _is_volume(root: Path, path: str) -> bool:
    """True if a path names a volume file, or a folder inside ``root`` with the slices of a series."""
    if path.lower().endswith(_VOLUME_SUFFIXES):
        return True
    try:
        full, top = (root / path).resolve(), root.resolve()
        return full != top and full.is_relative_to(top) and full.is_dir()
    except (OSError, ValueError, RuntimeError):
        # A name too long, with a NUL byte, or a link that leads to itself; counted when the image is looked at.
        return False


def _is_volume_set(root: Path, gathered: Mapping[str, _Gathered]) -> bool:
    """True if the images are volumes.

    Raises:
        InputError: if some are and some are not.
    """
    kinds = {_is_volume(root, path) for rows in gathered.values() for path, _ in rows.images}
    if len(kinds) == 2:
        raise InputError("radiographs and volumes in one table; import them into two data sets", file=root)
    return True in kinds


def _raw_study(study_id: str, rows: _Gathered, root: Path, modality: Modality) -> RawStudy:
    images = tuple(
        RawImage(
            file=root / path,
            inside=_inside(root, path),
            view=View.AXIAL if modality == "ct" else view_of(view),
            modality=modality,
        )
        for path, view in rows.images
    )
    return RawStudy(
        study_id=study_id,
        patient_id=_patient(study_id, rows),
        split=split_of(rows.values.get("split")),
        images=images,
        study_time=rows.values.get("study_time"),
        report=rows.values.get("report"),
        sections=_sections(rows),
    )


def _patient(study_id: str, rows: _Gathered) -> str:
    return (rows.values.get("patient_id") or study_id).strip()


def _sections(rows: _Gathered) -> Sections:
    """The sections of the table; without findings and impression, a report with headings fills the missing ones."""
    texts = {name: rows.values.get(name) for name in SECTIONS}
    report = rows.values.get("report")
    if report is not None and not (texts["findings"] or texts["impression"]) and has_headings(report):
        parsed = parse_sections(report)
        texts = {name: text or getattr(parsed, name) for name, text in texts.items()}
    return Sections(**texts)


def _inside(root: Path, path: str) -> str:
    """An image's path in the data set: its path relative to the source."""
    try:
        relative = (root / path).relative_to(root).as_posix()
    except ValueError:
        relative = path
    return f"images/{relative}"
