"""The part ``place`` of a run: its targets, its calibration on validation, its files. ``stages`` trains it.

RUN/place/place.json          classes, counts, calibration
RUN/place/weights.safetensors
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from radweave.core.batch import Batch, VisionEncoder
from radweave.core.config import checked
from radweave.core.errors import InputError, UnusableModelError
from radweave.core.evidence import DraftEvidence, FindingPlace, PlaceBox
from radweave.core.json_files import read_json_object, write_json
from radweave.core.ontology import CLASSES, NO_FINDING
from radweave.core.storage import write_folder
from radweave.core.study import LabelState, Record, Study
from radweave.data.boxes import Window, box_from_window, box_in_window, box_of_corners, corners, is_box, overlap
from radweave.data.cache.images import PixelCache
from radweave.data.examples import PreparedSplit
from radweave.drafting.calibration import PlattCalibration
from radweave.labels import Labeler
from radweave.labels.places import HOMES, LUNG_ZONES, SIDES, Located, PlaceLabeler, get_place_labeler, merge_places
from radweave.methods.model import ReportModel, device_of
from radweave.nn.connector import ViewTokens, encode_views
from radweave.nn.heads import binary_targets
from radweave.nn.place import PlaceHead, PlaceLogits, PlaceTargets, boxes_of_map

Floats = NDArray[np.float64]
FOLDER: Final = "place"
FACTS, WEIGHTS = "place.json", "weights.safetensors"
PLACES: Final[tuple[str, ...]] = (*SIDES, *LUNG_ZONES)
"""The places that the head tells apart: sides of the chest, and zones of a lung (lobes in CT)."""
FEWEST: Final = 10
"""Training studies with a place, or with a box, from which on a class has that of its own."""
LEAST_OVERLAP: Final = 0.3
"""Intersection over union from which a box is right, where their threshold is chosen."""
THRESHOLDS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)


class PlaceFacts(Record):
    """``place.json``: sizes of the head and what it was trained on.

    ``sides``, ``zones`` and ``boxes`` have the number of training studies with one, by class. ``slope`` and ``offset``
    turn the logits of sides and of zones to probabilities, by ``studies`` validation studies; a box has a cell of at
    least ``threshold``. ``dataset`` is the fingerprint of the data set with its boxes, None in parts from before it was
    kept.
    """

    version: int = 1
    classes: tuple[str, ...]
    dim: int = Field(ge=1, le=65_536)
    axes: int = Field(ge=2, le=3)
    hidden: int = Field(ge=1, le=4096)
    sides: dict[str, int]
    zones: dict[str, int]
    boxes: dict[str, int]
    slope: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)
    studies: int = Field(default=0, ge=0)
    threshold: float = Field(default=0.5, ge=0, le=1)
    dataset: str | None = None


@dataclass(frozen=True)
class PlacePart:
    """The head of a run with its facts."""

    head: PlaceHead
    facts: PlaceFacts

    @cached_property
    def reader(self) -> PlaceLabeler:
        """The reader of places in sentences, for the classes of the head."""
        return get_place_labeler(next(name for name, known in CLASSES.items() if known == self.facts.classes))

    def to(self, model: ReportModel) -> PlacePart:
        """The part on the device of a model.

        Raises:
            InputError: for another encoder than the part was trained on.
        """
        encoder = model.encoder
        assert isinstance(encoder, VisionEncoder)
        if encoder.dim != self.facts.dim:
            raise InputError("is of another encoder", field=FOLDER, got=self.facts.dim, expected=encoder.dim)
        self.head.to(device_of(model))
        return self

    @torch.no_grad()
    def __call__(self, encoder: nn.Module, batch: Batch) -> list[Mapping[str, FindingPlace]]:
        """The place of each class in each study, if it is there; boxes are in shares of the model's input.

        Raises:
            UnusableModelError: if a value is not finite.
        """
        views = encode_views(encoder, batch)
        logits = self.head.eval()(views)
        if not all(bool(value.isfinite().all()) for value in (logits.maps, logits.places, logits.boxes)):
            raise UnusableModelError("what the model sees is not finite: its weights or its precision cannot be used")
        return [self._of(logits, views, row) for row in range(len(batch))]

    def _of(self, logits: PlaceLogits, views: ViewTokens, row: int) -> dict[str, FindingPlace]:
        facts = self.facts
        odds = logits.places[row].double().cpu().numpy()
        side, zone = (
            1 / (1 + np.exp(-(slope * odds + offset))) for slope, offset in zip(facts.slope, facts.offset, strict=True)
        )
        located = {}
        for number, name in enumerate(facts.classes):
            sides = dict(zip(SIDES, side[number, : len(SIDES)].tolist(), strict=True))
            zones = dict(zip(LUNG_ZONES, zone[number, len(SIDES) :].tolist(), strict=True))
            located[name] = FindingPlace(
                sides if facts.sides.get(name, 0) >= FEWEST else {},
                zones if facts.zones.get(name, 0) >= FEWEST else {},
                tuple(
                    {"view": view, "box": list(box_of_corners(*halves(box)))}
                    for view, box, _ in self.boxes(logits, views, row, number, facts.threshold)
                ),
            )
        return located

    def boxes(
        self, logits: PlaceLogits, views: ViewTokens, row: int, number: int, least: float
    ) -> list[tuple[int, list[float], float]]:
        """View, corners in array order and probability of each box of a class in a study; the likeliest first."""
        learned = self.facts.boxes.get(self.facts.classes[number], 0) >= FEWEST
        boxes = []
        for view in torch.nonzero(views.view_mask[row]).flatten().tolist():
            corners = logits.boxes[row, view, :, number].cpu() if learned else None
            made = boxes_of_map(logits.maps[row, view, :, number].cpu(), corners, views.grid, least)
            boxes += [(view, box, score) for box, score in made]
        return sorted(boxes, key=lambda box: -box[2])


def boxes_on_images(boxes: Iterable[PlaceBox], window: Callable[[int], Window]) -> Iterator[PlaceBox]:
    """Boxes in shares of the model's input as boxes in shares of the images.

    Those beside the images, and those that are empty once they are rounded, are left out.
    """
    for box in boxes:
        placed = box_from_window(box["box"], window(box["view"]))
        rounded = [round(value, 4) for value in placed or ()]
        if is_box(rounded, len(box["box"]) // 2):
            yield {"view": box["view"], "box": rounded}


def halves(box: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Low and high corner."""
    return box[: len(box) // 2], box[len(box) // 2 :]


# Targets: boxes of the studies' images, sides and zones of their reports.


@dataclass(frozen=True, slots=True)
class StudyTargets:
    """Targets of one study: places (K, P), NaN where the report does not say, and boxes (view, class, corners)."""

    places: Floats
    boxes: tuple[tuple[float, ...], ...]


def targets_of(
    studies: Iterable[Study], prepared: PreparedSplit, cache: PixelCache, labeler: Labeler, reader: PlaceLabeler
) -> dict[str, StudyTargets]:
    """Targets of the prepared studies, by id. Boxes of labels that name no class are left out."""
    examples = {example.study_id: example for example in prepared.examples}
    class_of = _ClassOfLabel(labeler)
    targets = {}
    for study in studies:
        example = examples.get(study.study_id)
        if example is None:
            continue
        views = {row: view for view, row in enumerate(example.rows)}
        boxes = []
        for ref in study.images:
            view = views.get(cache.rows.get(ref.path, -1))
            if view is None or not ref.boxes or example.window is None:
                continue
            window = example.window(view)
            for box in ref.boxes:
                inside, number = box_in_window(box.box, window), class_of(box.label)
                if inside is not None and number is not None:
                    low, high = corners(inside)
                    boxes.append((view, number, *low, *high))
        located = reader.label([example.report or ""])[0]
        places = np.stack([place_targets(name, located[name]) for name in labeler.classes])
        targets[study.study_id] = StudyTargets(places, tuple(boxes))
    return targets


def reference_boxes(
    studies: Iterable[Study], prepared: PreparedSplit, cache: PixelCache, labeler: Labeler
) -> dict[str, list[dict[str, Any]]]:
    """Boxes on the first image that the model reads of each prepared study, under the names of their classes, by id.

    Empty for a data set without any box.
    """
    first = {example.study_id: example.rows[0] for example in prepared.examples}
    class_of, marked = _ClassOfLabel(labeler), {}
    for study in studies:
        if study.study_id not in first:
            continue
        refs = (ref for ref in study.images if cache.rows.get(ref.path) == first[study.study_id])
        marked[study.study_id] = [
            {"label": labeler.classes[number], "box": list(box.box)}
            for ref in refs
            for box in ref.boxes
            if (number := class_of(box.label)) is not None
        ]
    return marked if any(marked.values()) else {}


def drafted_boxes(evidence: DraftEvidence) -> list[dict[str, Any]]:
    """Boxes of a draft's findings on the first image that the model reads, each once."""
    boxes = {
        (place["finding"], *box["box"])
        for row in evidence.get("sentences", ())
        for place in row.get("places", ())
        for box in place["boxes"]
        if box["view"] == 0
    }
    return [{"label": name, "box": box} for name, *box in sorted(boxes)]


def place_targets(name: str, located: Sequence[Located]) -> Floats:
    """Targets (P,) of a class by what a report says: 1 and 0 where it names a side, or a zone of the lungs."""
    places = merge_places(place for one in located for place in one.places)
    sides = {place.side for place in places} - {None}
    zones = {place.zone for place in places} & {*LUNG_ZONES} if name not in HOMES else set()
    of_sides = [float(side in sides) if sides else np.nan for side in SIDES]
    return np.array([*of_sides, *(float(zone in zones) if zones else np.nan for zone in LUNG_ZONES)])


class _ClassOfLabel:
    """The class that the label of a box names, each label read once; None for no class or several.

    "Nodule/Mass" names one class, although rules read an alternative as uncertain.
    """

    def __init__(self, labeler: Labeler) -> None:
        self.labeler = labeler
        self.known: dict[str, int | None] = {name: number for number, name in enumerate(labeler.classes)}

    def __call__(self, label: str) -> int | None:
        if label not in self.known:
            read = self.labeler.label([label])[0]
            named = [
                number
                for number, name in enumerate(self.labeler.classes)
                if name != NO_FINDING and read[name].state in (LabelState.POSITIVE, LabelState.UNCERTAIN)
            ]
            self.known[label] = named[0] if len(named) == 1 else None
        return self.known[label]


def batch_targets(batch: Batch, targets: Mapping[str, StudyTargets]) -> PlaceTargets:
    """Targets of a batch, on its device."""
    assert batch.class_labels is not None
    states, known = binary_targets(batch.class_labels, "ignore")
    own = [targets[study_id] for study_id in batch.study_ids]
    rows = [(row, *box) for row, one in enumerate(own) for box in one.boxes]
    places = torch.from_numpy(np.stack([one.places for one in own])).float()
    boxes = torch.tensor(rows, dtype=torch.float32).view(len(rows), len(rows[0]) if rows else 3)
    device = batch.class_labels.device
    return PlaceTargets(states.masked_fill(~known, torch.nan), places.to(device), boxes.to(device))


# Calibration on validation.


@torch.no_grad()
def calibrated(
    part: PlacePart, encoder: nn.Module, batches: Iterable[Batch], targets: Mapping[str, StudyTargets]
) -> PlacePart:
    """The part with curves of sides and zones, and with the threshold of boxes of the highest F1 at an IoU of .3.

    All by validation studies: curves by those that have the class and say where.
    """
    head, facts = part.head.eval(), part.facts
    odds, stated = [], []
    scored: list[tuple[float, bool]] = []
    marked = 0
    for batch in batches:
        batch = batch.to(next(head.parameters()).device)
        views = encode_views(encoder, batch)
        logits = head(views)
        odds.append(logits.places.double().cpu().numpy())
        stated.append(np.stack([targets[study_id].places for study_id in batch.study_ids]))
        for row, study_id in enumerate(batch.study_ids):
            boxes = targets[study_id].boxes
            for number in {int(box[1]) for box in boxes}:
                wanted = [(int(box[0]), box[2:]) for box in boxes if box[1] == number]
                marked += len(wanted)
                scored += _scored(part.boxes(logits, views, row, number, min(THRESHOLDS)), wanted)
    curves = []
    for own in (slice(0, len(SIDES)), slice(len(SIDES), None)):
        values, truth = (np.concatenate(each)[:, :, own].ravel() for each in (odds, stated))
        known = ~np.isnan(truth)
        curves.append(PlattCalibration.fit(values[known, None], truth[known, None]) if known.any() else None)
    threshold = max(THRESHOLDS, key=lambda least: _box_f1(scored, marked, least)) if marked else facts.threshold
    return PlacePart(
        head,
        facts.model_copy(
            update={
                "slope": tuple(1.0 if curve is None else float(curve.slope[0]) for curve in curves),
                "offset": tuple(0.0 if curve is None else float(curve.offset[0]) for curve in curves),
                "studies": len(np.concatenate(odds)),
                "threshold": threshold,
            }
        ),
    )


def _scored(
    drawn: Sequence[tuple[int, list[float], float]], wanted: Sequence[tuple[int, tuple[float, ...]]]
) -> list[tuple[float, bool]]:
    """Probability of each box, and True if it takes a marked one at an IoU of .3."""
    free, scored = list(wanted), []
    for view, box, score in drawn:
        overlaps = [overlap(box, other) if view == own else 0.0 for own, other in free]
        best = int(np.argmax(overlaps)) if overlaps else -1
        hit = best >= 0 and overlaps[best] >= LEAST_OVERLAP
        if hit:
            del free[best]
        scored.append((score, hit))
    return scored


def _box_f1(scored: Sequence[tuple[float, bool]], marked: int, least: float) -> float:
    chosen = [hit for score, hit in scored if score >= least]
    return 2 * sum(chosen) / max(len(chosen) + marked, 1)


# The part in a run folder.


def save_place(part: PlacePart, folder: Path) -> None:
    """Write the folder, whole or not at all."""
    from safetensors.torch import save_file

    with write_folder(folder, overwrite=True) as partial:
        state = {name: value.detach().cpu().contiguous() for name, value in part.head.state_dict().items()}
        save_file(state, str(partial / WEIGHTS))
        write_json(partial / FACTS, part.facts.model_dump(mode="json"))


def dataset_of_place(folder: Path) -> str | None:
    """Fingerprint of the data set that the part in a folder was trained on; None if that is not stated."""
    if not (folder / FACTS).is_file():
        return None
    dataset = read_json_object(folder / FACTS).get("dataset")
    return dataset if isinstance(dataset, str) else None


def load_place(folder: Path, classes: Sequence[str]) -> PlacePart | None:
    """Read the folder; None if the run has none.

    Raises:
        InputError: if a file is missing or broken, or of other classes.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not folder.is_dir():
        return None
    facts = checked(PlaceFacts, read_json_object(folder / FACTS), file=folder / FACTS)
    if facts.classes != tuple(classes):
        raise InputError("not the classes of the run", file=folder / FACTS, field="classes")
    head = PlaceHead(facts.dim, facts.axes, len(facts.classes), len(PLACES), facts.hidden)
    try:
        head.load_state_dict(load_file(str(folder / WEIGHTS)))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(f"the weights do not fit: {str(error).splitlines()[0]}", file=folder / WEIGHTS) from None
    return PlacePart(head.eval(), facts)
