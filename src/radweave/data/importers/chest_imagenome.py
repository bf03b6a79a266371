"""Chest ImaGenome: findings of MIMIC-CXR reports, each at the regions of the radiograph that its sentence names.

    silver_dataset/scene_graph/<dicom_id>_SceneGraph.json   or all of them in scene_graph.zip
    silver_dataset/splits/{train,valid,test}.csv            subject_id, study_id, dicom_id
    silver_dataset/splits/images_to_avoid.csv               images of the patients of the gold set: never trained on
    files/p10/p10233088/s54276838/<dicom_id>.jpg            of MIMIC-CXR-JPG, below the source or ``options.images``
    mimic-cxr-2.0.0-metadata.csv[.gz]                       Rows and Columns, if it lies with the images

Ids are those of a MIMIC-CXR import. The text is the sentences of the graph in the order of the report. The label set
``chest-imagenome`` has the findings that a sentence states or denies; the stated one wins. A stated finding becomes a
box for each of its sentence's regions that has none of the others in it. Regions were found by a detector, so that a
box says where to look rather than where the finding ends.

Source: Wu et al., "Chest ImaGenome Dataset for Clinical Reasoning", NeurIPS Datasets and Benchmarks 2021.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.study import FindingBox, LabelState, Split, View
from radweave.data.importers.mimic_cxr import mimic_folder, mimic_image
from radweave.data.importers.source import (
    OTHER_SPLIT,
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    box_of_pixels,
    split_of,
    splits_by_patient,
)
from radweave.data.tables import find_table, read_table
from radweave.data.targets import Sections
from radweave.io.images import read_radiograph

LABEL_SET = "chest-imagenome"
FINDINGS = frozenset({"anatomicalfinding", "disease", "tubesandlines", "device"})
"""Categories of the graph that are findings; others state severity, texture, technique and the like."""
_LARGEST_GRAPH_BYTES = 16 << 20
_WITHIN = 0.9
"""A region is within another if so much of its area is."""

ReadGraph = Callable[[str], Any]
Size = Callable[[str, Path], tuple[float, float] | None]
Corners = tuple[float, float, float, float]


@dataclass(slots=True)
class _StudyImages:
    patient: str
    splits: set[Split | None] = field(default_factory=set)
    images: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Graph:
    """A scene graph: sentences by their number, states of findings, and stated findings with sentence and regions."""

    sentences: dict[int, str] = field(default_factory=dict)
    states: dict[str, LabelState] = field(default_factory=dict)
    placed: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    regions: dict[str, Corners] = field(default_factory=dict)


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the folder of the data set, or its silver part.

    Raises:
        InputError: if the graphs or the lists of the split are missing, or a column is.
    """
    silver = source / "silver_dataset" if (source / "silver_dataset").is_dir() else source
    tables = [path for part in ("train", "valid", "test") if (path := find_table(silver / "splits", f"{part}.csv"))]
    if not tables:
        raise InputError("no Chest ImaGenome here", file=source, expected="silver_dataset/splits/train.csv")
    read_graph, graphs = _graph_reader(silver)
    avoided = find_table(silver / "splits", "images_to_avoid.csv")
    gold = {row["dicom_id"] for _, row in read_table(avoided, needs=("dicom_id",))} if avoided else set()
    rows: dict[str, _StudyImages] = {}
    for table in tables:
        split = split_of(table.name.split(".")[0])
        for line, row in read_table(table, needs=("subject_id", "study_id", "dicom_id")):
            own = rows.setdefault(row["study_id"], _StudyImages(row["subject_id"]))
            if own.patient != row["subject_id"]:
                raise InputError("one study of two patients", file=table, line=line, field="subject_id")
            own.splits.add(split)
            own.images.append(row["dicom_id"])
    patients = splits_by_patient((own.patient, split) for own in rows.values() for split in own.splits)
    root = options.images or source
    metadata = find_table(root, "*metadata.csv")
    size = _size_reader(metadata)

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for study, own in sorted(rows.items()):
            if "train" in own.splits and len(patients[own.patient]) > 1:
                problems.leave_out_study(f"s{study}", OTHER_SPLIT)
            elif "train" in own.splits and gold.intersection(own.images):
                problems.leave_out_study(f"s{study}", "a training study of the gold set")
            else:
                yield _raw_study(study, own, root, read_graph, size, problems)

    return Source(
        "chest-imagenome",
        studies,
        root,
        (*tables, *([graphs] if graphs else []), *([metadata] if metadata else [])),
        "the lists of silver_dataset/splits",
        licence="PhysioNet Credentialed Health Data License 1.5.0",
        notes=(
            "the text is the sentences of the scene graph, not the report",
            "boxes are regions that a detector found, and findings were read by rules",
            "patients are MIMIC-CXR's: a model that was trained on it may know them",
        ),
        needs_split=True,
    )


def _graph_reader(silver: Path) -> tuple[ReadGraph, Path | None]:
    """A reader of scene graphs by image, from the folder or the archive, and the archive. No such graph is None.

    Raises:
        InputError: if there is neither.
    """
    folder, archive = silver / "scene_graph", silver / "scene_graph.zip"
    if folder.is_dir():

        def from_folder(image: str) -> Any:
            path = folder / f"{image}_SceneGraph.json"
            return read_json(path) if path.is_file() and path.stat().st_size <= _LARGEST_GRAPH_BYTES else None

        return from_folder, None
    if not archive.is_file():
        raise InputError("no scene graphs here", file=silver, expected="scene_graph.zip, or the folder scene_graph")
    try:
        graphs = zipfile.ZipFile(archive)
        names = {Path(name).name: name for name in graphs.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError) as error:
        raise InputError(f"not a readable archive: {type(error).__name__}", file=archive) from None

    def from_archive(image: str) -> Any:
        name = names.get(f"{image}_SceneGraph.json")
        if name is None:
            return None
        with graphs.open(name) as member:
            data = member.read(_LARGEST_GRAPH_BYTES + 1)
        return json.loads(data) if len(data) <= _LARGEST_GRAPH_BYTES else None

    return from_archive, archive


def _size_reader(metadata: Path | None) -> Size:
    """Width and height of an image, of the table or else of its pixels; None for one that cannot be read."""
    known: dict[str, tuple[float, float]] = {}
    for _, row in read_table(metadata, needs=("dicom_id",)) if metadata else ():
        if row.get("Rows", "").isdigit() and row.get("Columns", "").isdigit():
            known[row["dicom_id"]] = float(row["Columns"]), float(row["Rows"])

    @cache
    def decoded(path: Path) -> tuple[float, float] | None:
        try:
            height, width = read_radiograph(path, doubts=False).pixels.shape
        except InputError:
            return None
        return float(width), float(height)

    return lambda image, path: known.get(image) or decoded(path)


def _raw_study(
    study: str, own: _StudyImages, root: Path, read_graph: ReadGraph, size: Size, problems: Problems
) -> RawStudy:
    images: list[RawImage] = []
    sentences: dict[int, str] = {}
    states: dict[str, LabelState] = {}
    for dicom_id in own.images:
        file = mimic_image(root, mimic_folder(own.patient, study), dicom_id, View.FRONTAL)
        try:
            graph = _parse(read_graph(dicom_id))
        except (InputError, OSError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile):
            problems.leave_out_image(f"s{study}", dicom_id, "its scene graph cannot be read")
            continue
        sentences |= graph.sentences
        states |= {name: state for name, state in graph.states.items() if states.get(name) is not LabelState.POSITIVE}
        boxes = tuple(_boxes(f"s{study}", graph, size(dicom_id, file.file), problems)) if graph.placed else ()
        images.append(replace(file, boxes=boxes))
    return RawStudy(
        study_id=f"s{study}",
        patient_id=f"p{own.patient}",
        split=next(iter(own.splits)) if len(own.splits) == 1 else None,
        images=tuple(images),
        sections=Sections(findings=" ".join(sentences[number] for number in sorted(sentences)) or None),
        labels={LABEL_SET: states} if states else {},
    )


def _parse(content: Any) -> _Graph:
    """Read what is of use in a scene graph.

    Raises:
        TypeError, ValueError: for content that has another form; None, an image without a graph, has none.
    """
    if not isinstance(content, dict):
        raise TypeError("no scene graph")
    graph = _Graph()
    for item in content.get("objects") or ():
        corners = [item.get(f"original_{corner}") for corner in ("x1", "y1", "x2", "y2")]
        if all(isinstance(value, (int, float)) for value in corners):
            graph.regions[str(item["bbox_name"])] = (corners[0], corners[1], corners[2], corners[3])
    for item in content.get("attributes") or ():
        rows = zip(item["phrases"], item["phrase_IDs"], item["attributes"], strict=True)
        for phrase, number, labels in rows:
            sentence = " ".join(str(phrase).split())
            graph.sentences[int(str(number).rpartition("|")[2])] = sentence
            for label in labels:
                category, _, rest = str(label).partition("|")
                stated, _, finding = rest.partition("|")
                if category not in FINDINGS or not finding:
                    continue
                if stated == "yes":
                    graph.states[finding] = LabelState.POSITIVE
                    graph.placed.setdefault((finding, sentence), []).append(str(item["bbox_name"]))
                else:
                    graph.states.setdefault(finding, LabelState.NEGATIVE)
    return graph


def _boxes(study: str, graph: _Graph, size: tuple[float, float] | None, problems: Problems) -> Iterator[FindingBox]:
    """The boxes of an image: of each stated finding its regions that hold none of its others."""
    if size is None:
        problems.leave_out_box(study, "the size of the image is not known")
        return
    for (finding, sentence), names in graph.placed.items():
        regions = {name: graph.regions[name] for name in dict.fromkeys(names) if name in graph.regions}
        for name in _innermost(regions):
            yield from problems.checked_box(study, finding, box_of_pixels(regions[name], size), sentence)


def _innermost(regions: Mapping[str, Corners]) -> list[str]:
    """Names of the regions that no other one lies within."""
    return [
        name
        for name, outer in regions.items()
        if not any(_covered(inner, outer) >= _WITHIN > _covered(outer, inner) for inner in regions.values())
    ]


def _covered(inner: Corners, outer: Corners) -> float:
    """Share of the area of ``inner`` that lies in ``outer``; 0 for a region without area."""
    width, height = (min(inner[i + 2], outer[i + 2]) - max(inner[i], outer[i]) for i in (0, 1))
    area = (inner[2] - inner[0]) * (inner[3] - inner[1])
    return max(width, 0) * max(height, 0) / area if area > 0 else 0.0
