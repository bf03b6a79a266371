"""VinDr-CXR: frontal radiographs with boxes of 22 findings and 6 diagnoses by radiologists, without reports.

    annotations/annotations_train.csv    image_id, rad_id, class_name, x_min, y_min, x_max, y_max (a row per box)
    annotations/annotations_test.csv     the same by consensus, without rad_id
    annotations/image_labels_train.csv   image_id, rad_id and a column of 0 and 1 per class; image_labels_test.csv
    train/<image_id>.dicom, test/<image_id>.dicom   below the source or ``options.images``

Three readers marked each training image. The label set ``vindr-cxr`` is positive for a class that most of them state,
uncertain for one that fewer state, else negative. Boxes of a class that the set has as positive are taken; those of
several readers that overlap (intersection over union of 1/2) become their mean. Boxes are in pixels of the DICOM file,
so that converted images do not fit them. Patients are not stated: every image counts as one.

Source: Nguyen et al., "VinDr-CXR", Sci Data 9:429, 2022, doi:10.1038/s41597-022-01498-w.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from radweave.core.errors import InputError
from radweave.core.study import FindingBox, LabelState, Split, View
from radweave.data.boxes import overlap
from radweave.data.importers.source import ImportOptions, Problems, RawImage, RawStudy, Source, box_of_pixels
from radweave.data.tables import find_table, read_table
from radweave.io.dicom import read_header

LABEL_SET = "vindr-cxr"
_CORNERS = ("x_min", "y_min", "x_max", "y_max")
_SAME = 0.5
"""Intersection over union from which boxes of two readers are one."""
_SPLITS: tuple[Split, ...] = ("train", "test")

Corners = tuple[float, ...]


@dataclass(slots=True)
class _ImageRows:
    """The rows of an image: votes of each reader by class, and rows of boxes by class."""

    split: Split
    readers: list[Mapping[str, bool]] = field(default_factory=list)
    boxes: dict[str, list[Mapping[str, str]]] = field(default_factory=dict)

    def states(self) -> dict[str, LabelState]:
        names = dict.fromkeys(name for votes in self.readers for name in votes)
        return {name: self._state(sum(votes.get(name, False) for votes in self.readers)) for name in names}

    def _state(self, votes: int) -> LabelState:
        if 2 * votes > len(self.readers):
            return LabelState.POSITIVE
        return LabelState.UNCERTAIN if votes else LabelState.NEGATIVE


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the folder of the data set.

    Raises:
        InputError: if there are no labels of images, or a table lacks a column or states what is no label.
    """
    folder = source / "annotations" if (source / "annotations").is_dir() else source
    rows: dict[str, _ImageRows] = {}
    tables = []
    for split in _SPLITS:
        labels, boxes = (find_table(folder, f"{name}_{split}.csv") for name in ("image_labels", "annotations"))
        if labels is None:
            continue
        tables += [labels, *([boxes] if boxes else [])]
        _read_labels(labels, split, rows)
        for line, row in read_table(boxes, needs=("image_id", "class_name", *_CORNERS)) if boxes else ():
            if row["image_id"] not in rows:
                raise InputError("an image without labels", file=boxes, line=line, field="image_id")
            if row["x_min"].strip():  # a row of "No finding" has no box
                rows[row["image_id"]].boxes.setdefault(row["class_name"].strip(), []).append(row)
    if not tables:
        raise InputError("no VinDr-CXR here", file=source, expected="annotations/image_labels_train.csv")
    root = options.images or source

    @cache
    def size(file: Path) -> tuple[float, float] | None:
        try:
            header = read_header(file)
        except InputError:
            return None
        return (float(header.columns), float(header.rows)) if header.columns and header.rows else None

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for name, own in sorted(rows.items()):
            names = [f"{own.split}/{name}{suffix}" for suffix in (".dicom", ".dcm")]
            inside = next((each for each in names if (root / each).is_file()), names[0])
            states = own.states()
            boxes = tuple(_boxes(name, own, states, size(root / inside), problems)) if own.boxes else ()
            image = RawImage(root / inside, f"images/{inside}", View.FRONTAL, boxes=boxes)
            yield RawStudy(name, name, own.split, (image,), labels={LABEL_SET: states})

    return Source(
        "vindr-cxr",
        studies,
        root,
        tuple(tables),
        "the folders train and test; there is no validation part",
        licence="PhysioNet Credentialed Health Data License 1.5.0",
        notes=("there are no reports (--keep image-only)", "patients are not stated: every image counts as one"),
        needs_split=True,
    )


def _read_labels(table: Path, split: Split, rows: dict[str, _ImageRows]) -> None:
    """Read the votes of readers into ``rows``.

    Raises:
        InputError: for a cell that is neither 0 nor 1, or an image of two splits.
    """
    for line, row in read_table(table, needs=("image_id",)):
        votes = {}
        for name, cell in row.items():
            if name.lower() in ("image_id", "rad_id"):
                continue
            if cell.strip() not in ("0", "1", "0.0", "1.0", ""):
                raise InputError("not a label", file=table, line=line, field=name, got=cell[:20], expected="0 or 1")
            votes[name] = cell.strip() in ("1", "1.0")
        own = rows.setdefault(row["image_id"], _ImageRows(split))
        if own.split != split:
            raise InputError("an image of two splits", file=table, line=line, field="image_id")
        own.readers.append(votes)


def _boxes(
    name: str,
    own: _ImageRows,
    states: Mapping[str, LabelState],
    size: tuple[float, float] | None,
    problems: Problems,
) -> Iterator[FindingBox]:
    if size is None:
        problems.leave_out_box(name, "the size of the image is not known")
        return
    for finding, rows in own.boxes.items():
        if states.get(finding) is not LabelState.POSITIVE:
            problems.leave_out_box(name, "a finding that most readers do not state")
            continue
        drawn = []
        for row in rows:
            try:
                drawn.append(tuple(float(row[corner]) for corner in _CORNERS))
            except ValueError:
                problems.leave_out_box(name, f"no numbers in {', '.join(_CORNERS)}")
        # A box without area is no box, and the record says so.
        empty = [box for box in drawn if box[0] >= box[2] or box[1] >= box[3]]
        for corners in [*empty, *merged([box for box in drawn if box not in empty])]:
            yield from problems.checked_box(name, finding, box_of_pixels(corners, size), None)


def merged(boxes: Sequence[Corners]) -> list[Corners]:
    """Boxes (x0, y0, x1, y1) with the mean in place of those that overlap, the largest first in each group."""
    groups: list[list[Corners]] = []
    for box in sorted(boxes, key=lambda box: (box[2] - box[0]) * (box[3] - box[1]), reverse=True):
        group = next((group for group in groups if overlap(group[0], box) >= _SAME), None)
        if group is None:
            groups.append([box])
        else:
            group.append(box)
    return [tuple(map(float, np.mean(group, axis=0))) for group in groups]
