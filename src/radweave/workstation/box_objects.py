"""Boxes of a report's findings on its DICOM images, and as a Grayscale Softcopy Presentation State (PS3.3 A.33.1).

The presentation state shows the images with each box as a closed line and the name of its finding. Of a scan every
slice that a box cuts has the outline of the cut: archives that show segments of scans are fewer than those that show
lines on slices. As a presentation state replaces what an image says of its grey values, it repeats that; a VOI table
becomes a window over its range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.io.volumes import Volume
from radweave.workstation.finished import MAKER, STATE_WORDS, FinishedReport, MarkedBox, StatedPlace, document_title
from radweave.workstation.formats import BOXES
from radweave.workstation.identity import Identity, by_file
from radweave.workstation.structured_reports import envelope, file_bytes, outline_px, reference

if TYPE_CHECKING:
    from radweave.inference.pictures import Picture

SERIES_NUMBER: Final = 9905
LAYER: Final = "FINDINGS"
WITHDRAWN: Final = "No box: those of the version before are withdrawn"
Points = NDArray[np.float64]
_Key = TypeVar("_Key")


def on_images(
    places: Sequence[StatedPlace],
    pictures: Sequence[Picture | None],
    files: Sequence[Path],
    identities: Sequence[Identity],
) -> tuple[StatedPlace, ...]:
    """Places with their boxes on the images: radiographs by their ``source``, scans in patient coordinates.

    Args:
        pictures: the images of the study, None for one that cannot be read.
        files: of the pictures; a folder is a scan.
        identities: of the DICOM files, in the order of ``read_identities``.
    """
    own = by_file(files, identities)

    def placed(box: MarkedBox) -> MarkedBox:
        if not 0 <= box.image < len(pictures):
            return box
        picture, sources = pictures[box.image], own[box.image]
        if isinstance(picture, Volume):
            return _on_scan(box, picture, sources, identities)
        if picture is None or len(box.box) != 4 or len(sources) != 1:
            return box
        return replace(box, source=sources[0])

    return tuple(replace(place, boxes=tuple(map(placed, place.boxes))) for place in places)


def _on_scan(box: MarkedBox, volume: Volume, sources: Sequence[int], identities: Sequence[Identity]) -> MarkedBox:
    """A box of a scan with its corners, if the slices of the scan lie where the volume has them."""
    slices = slices_of(identities[source] for source in sources)
    if len(box.box) != 6 or not are_even(slices):
        return box
    axis = int(np.argmax(np.abs(volume.geometry.matrix().T @ slices[0].normal)))
    if len(distances_mm(slices)) != volume.hu.shape[2 - axis]:
        return box
    return replace(box, source=identities.index(slices[0].image), corners_lps=_corners(box.box, volume))


def _corners(box: Sequence[float], volume: Volume) -> tuple[tuple[float, float, float], ...]:
    """The corners of a box of a scan; the centre of the first voxel is the origin of its geometry."""
    size = np.array(volume.hu.shape[::-1], dtype=np.float64)
    low, high = (np.array(box[part][::-1]) * size - 0.5 for part in (slice(0, 3), slice(3, 6)))
    geometry = volume.geometry
    affine = geometry.matrix() * np.array(geometry.spacing_xyz_mm)
    places = [affine @ corner + geometry.origin_lps for corner in map(np.array, product(*zip(low, high, strict=True)))]
    return tuple((float(x), float(y), float(z)) for x, y, z in places)


_EDGES: Final = tuple((corner, corner | bit) for bit in (1, 2, 4) for corner in range(8) if not corner & bit)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice: the middle of its first pixel, its directions along rows and columns, mm between columns and rows."""

    image: Identity
    position: Points
    across: Points
    down: Points
    steps_mm: tuple[float, float]

    @classmethod
    def of(cls, image: Identity) -> _Slice | None:
        """None for a localizer, and where the header does not say it."""
        shown = image.display
        if shown.is_localizer or shown.position_lps is None or shown.orientation is None or shown.spacing_mm is None:
            return None
        if image.rows is None or image.columns is None:
            return None
        across, down = np.array(shown.orientation).reshape(2, 3)
        return cls(image, np.array(shown.position_lps), across, down, (shown.spacing_mm[1], shown.spacing_mm[0]))

    @property
    def normal(self) -> Points:
        normal: Points = np.cross(self.across, self.down)
        return normal

    def depths(self, corners: Points) -> Points:
        """Distance of points in front of it, in mm."""
        depths: Points = (corners - self.position) @ self.normal
        return depths

    def pixels(self, points: Points) -> Points:
        """Points as (column, row) from the upper left corner of the image, cut at its edges."""
        offsets = (points - self.position) @ np.stack([self.across, self.down], axis=1) / self.steps_mm + 0.5
        pixels: Points = np.clip(offsets, 0, [float(self.image.columns or 0), float(self.image.rows or 0)])
        return pixels


def slices_of(images: Iterable[Identity]) -> list[_Slice]:
    """The slices of a scan among images, without localizers."""
    return [one for one in map(_Slice.of, images) if one is not None]


def distances_mm(slices: Sequence[_Slice]) -> Points:
    """Distances of slices from the first one along its normal, each once, in ascending order."""
    distances: Points = np.unique([float(slices[0].depths(one.position).round(3)) for one in slices])
    return distances


def are_even(slices: Sequence[_Slice]) -> bool:
    """True where slices lie within half a step of even distances, which readers of volumes take their mean for."""
    if not slices:
        return False
    distances = distances_mm(slices)
    even = np.linspace(distances[0], distances[-1], len(distances))
    return bool(np.abs(distances - even).max() <= (distances[-1] - distances[0]) / max(len(distances) - 1, 1) / 2)


def _cuts(box: MarkedBox, slices: Sequence[_Slice]) -> Iterator[tuple[Identity, Points]]:
    """Outlines of a box of a scan on the slices that it cuts, or on the nearest one if it lies between two."""
    corners = np.array(box.corners_lps)
    depths = [one.depths(corners) for one in slices]
    hit = [number for number, depth in enumerate(depths) if depth.min() <= 0 <= depth.max()]
    if not hit:
        hit = [int(np.argmin([abs(depth.mean()) for depth in depths]))]
        depths[hit[0]] = depths[hit[0]] - depths[hit[0]].mean()
    for number in hit:
        points = _cut(corners, depths[number], slices[number])
        if points is not None:
            yield slices[number].image, points


def _cut(corners: Points, depth: Points, one: _Slice) -> Points | None:
    """The outline where ``depth`` is 0 as a closed line of (column, row) pixels of the slice; None without an area."""
    points = []
    for start, end in _EDGES:
        if depth[start] * depth[end] <= 0 and depth[start] != depth[end]:
            share = depth[start] / (depth[start] - depth[end])
            points.append(corners[start] + share * (corners[end] - corners[start]))
    pixels = np.unique(one.pixels(np.array(points)).round(3), axis=0)
    if len(pixels) < 3:
        return None
    middle = pixels - pixels.mean(axis=0)
    pixels = pixels[np.argsort(np.arctan2(middle[:, 1], middle[:, 0]), kind="stable")]
    return np.concatenate([pixels, pixels[:1]])


@dataclass(frozen=True, slots=True)
class _Line:
    """A closed line of (column, row) pixels on an image, around a finding."""

    image: Identity
    points: Points
    finding: str


def _lines(report: FinishedReport) -> Iterator[_Line]:
    """Each box once, however many sentences state its finding; one that they all leave open says so."""
    boxes: dict[tuple[str, MarkedBox], bool] = {}
    for place in report.places:
        for box in place.boxes:
            boxes[place.finding, box] = boxes.get((place.finding, box), True) and place.is_uncertain
    for (name, box), is_uncertain in boxes.items():
        finding = f"{name}, {STATE_WORDS[LabelState.UNCERTAIN]}" if is_uncertain else name
        if box.source is None:
            continue
        image = report.sources[box.source]
        if box.corners_lps:
            scan = (one for one in report.sources if one.series_instance_uid == image.series_instance_uid)
            yield from (_Line(one, points, finding) for one, points in _cuts(box, slices_of(scan)))
        elif (points := outline_px(box, image)) is not None:
            yield _Line(image, points, finding)


def write_boxes(report: FinishedReport) -> bytes:
    """The boxes as a file; one without any box over the images of its predecessor's boxes if none is left.

    Archives show the newest presentation state of a series, and one has no reference to those that it replaces.

    Raises:
        InputError: if no box lies on a DICOM image, now and before; if its images cannot be shown in one way; or as
            ``envelope`` does.
    """
    own = list(_lines(report))
    lines = own if own or report.predecessor is None else list(_lines(report.predecessor))
    if not lines:
        raise InputError("no sentence has a box on a DICOM image", field="--format", got=BOXES)
    images = [*{line.image.sop_instance_uid: line.image for line in lines}.values()]
    dataset = envelope(
        report, GrayscaleSoftcopyPresentationStateStorage, kind=BOXES, modality="PR", number=SERIES_NUMBER
    )
    del dataset.ContentDate, dataset.ContentTime
    dataset.PresentationCreationDate, dataset.PresentationCreationTime = (
        dataset.InstanceCreationDate, dataset.InstanceCreationTime
    )  # fmt: skip
    state = "REJECTED" if report.rejected else "SIGNED" if report.is_final else "DRAFT"
    dataset.ContentLabel = f"{state}_BOXES" if own else f"{state}_NO_BOX"
    dataset.ContentDescription = "Boxes of findings by software; no lesion boundary" if own else WITHDRAWN
    dataset.ContentCreatorName, dataset.Laterality = f"{MAKER}^software", ""
    dataset.ReferencedSeriesSequence = _by_series(images)
    _set_grey_values(dataset, images)
    sizes: dict[object, list[Identity]] = {}
    for one in images:
        sizes.setdefault((one.columns, one.rows, one.display.spacing_mm, one.display.pixel_ratio), []).append(one)
    dataset.DisplayedAreaSelectionSequence = [_area(group) for group in sizes.values()]
    if not own:
        return file_bytes(dataset)
    layer = Dataset()
    layer.GraphicLayer, layer.GraphicLayerOrder = LAYER, 1
    layer.GraphicLayerDescription = document_title(report)
    dataset.GraphicLayerSequence = [layer]
    dataset.GraphicAnnotationSequence = [_annotation(one, lines) for one in images]
    return file_bytes(dataset)


def _references(images: Sequence[Identity]) -> list[Dataset]:
    return [reference(one.sop_class_uid, one.sop_instance_uid) for one in images]


def _by_series(images: Sequence[Identity]) -> list[Dataset]:
    items = []
    for uid in dict.fromkeys(one.series_instance_uid for one in images):
        item = Dataset()
        item.SeriesInstanceUID = uid
        item.ReferencedImageSequence = _references([one for one in images if one.series_instance_uid == uid])
        items.append(item)
    return items


def _set_grey_values(dataset: Dataset, images: Sequence[Identity]) -> None:
    """Modality LUT (PS3.3 C.11.1), Softcopy VOI LUT (C.11.8) and Softcopy Presentation LUT (C.11.6) of the images."""
    if any(one.display.has_table for one in images):
        raise InputError("cannot be repeated in a presentation state", field="ModalityLUTSequence")
    rescale = _one([one.display.rescale for one in images], "RescaleSlope")
    if rescale is not None:
        dataset.RescaleSlope, dataset.RescaleIntercept = (f"{value:.10g}" for value in rescale)
        dataset.RescaleType = "HU" if images[0].modality == "CT" else "US"
    windows: dict[tuple[tuple[float, float], str], list[Identity]] = {}
    for one in images:
        if one.display.window is not None:
            windows.setdefault((one.display.window, one.display.function), []).append(one)
    items = []
    for (window, function), shown in windows.items():
        item = Dataset()
        item.ReferencedImageSequence = _references(shown)
        item.WindowCenter, item.WindowWidth = (f"{value:.10g}" for value in window)
        item.VOILUTFunction = function
        items.append(item)
    if items:
        dataset.SoftcopyVOILUTSequence = items
    inverted = _one([one.display.is_inverted for one in images], "PhotometricInterpretation")
    dataset.PresentationLUTShape = "INVERSE" if inverted else "IDENTITY"


def _one(values: Sequence[_Key], field: str) -> _Key:
    if len(set(values)) > 1:
        raise InputError("differs between the images, which one presentation state cannot show", field=field)
    return values[0]


def _area(images: Sequence[Identity]) -> Dataset:
    """The whole of images of one size (C.10.4)."""
    item, shown = Dataset(), images[0].display
    item.ReferencedImageSequence = _references(images)
    item.DisplayedAreaTopLeftHandCorner = [1, 1]
    item.DisplayedAreaBottomRightHandCorner = [images[0].columns, images[0].rows]
    item.PresentationSizeMode = "SCALE TO FIT"
    if shown.spacing_mm is None:
        height, width = Fraction(shown.pixel_ratio).limit_denominator(1000).as_integer_ratio()
        item.PresentationPixelAspectRatio = [height, width]
    else:
        item.PresentationPixelSpacing = [f"{value:.10g}" for value in shown.spacing_mm]
    return item


def _annotation(image: Identity, lines: Sequence[_Line]) -> Dataset:
    """Boxes and names of findings on one image (C.10.5), in pixels from its upper left corner."""
    own = [line for line in lines if line.image is image]
    item = Dataset()
    item.ReferencedImageSequence, item.GraphicLayer = _references([image]), LAYER
    item.GraphicObjectSequence, item.TextObjectSequence = [], []
    for line in own:
        graphic, text = Dataset(), Dataset()
        graphic.GraphicAnnotationUnits, graphic.GraphicDimensions = "PIXEL", 2
        graphic.NumberOfGraphicPoints, graphic.GraphicData = len(line.points), [float(v) for v in line.points.ravel()]
        graphic.GraphicType, graphic.GraphicFilled = "POLYLINE", "N"
        text.AnchorPointAnnotationUnits, text.UnformattedTextValue = "PIXEL", line.finding
        text.AnchorPoint, text.AnchorPointVisibility = [float(v) for v in line.points.min(axis=0)], "N"
        item.GraphicObjectSequence.append(graphic)
        item.TextObjectSequence.append(text)
    return item
