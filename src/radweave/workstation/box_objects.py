"""Boxes of a report's findings on its DICOM images, and as a Grayscale Softcopy Presentation State (PS3.3 A.33.1).

The presentation state shows the images with each box as a closed line and the name of its finding. Of a scan every
slice that a box cuts has the outline of the cut: archives that show segments of scans are fewer than those that show
lines on slices. As a presentation state replaces what an image says of its grey values, it repeats that; a VOI table
becomes a window over its range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from radweave.core.errors import InputError
from radweave.io.volumes import Volume
from radweave.workstation.finished import MAKER, FinishedReport, MarkedBox, StatedPlace, document_title
from radweave.workstation.formats import BOXES
from radweave.workstation.identity import Identity
from radweave.workstation.structured_reports import envelope, file_bytes, outline_px, reference

if TYPE_CHECKING:
    from radweave.inference.pictures import Picture

SERIES_NUMBER: Final = 9905
LAYER: Final = "FINDINGS"
Points = NDArray[np.float64]
_Key = TypeVar("_Key")


def on_images(
    places: Sequence[StatedPlace], pictures: Sequence[Picture | None], sources: Sequence[Sequence[int]]
) -> tuple[StatedPlace, ...]:
    """Places with their boxes on the images: radiographs as ``sources``, scans in patient coordinates.

    Args:
        pictures: the images of the study, None for one that cannot be read.
        sources: of each image the indices of its DICOM files.
    """
    return tuple(
        replace(place, boxes=tuple(_on_image(box, pictures, sources) for box in place.boxes)) for place in places
    )


def _on_image(box: MarkedBox, pictures: Sequence[Picture | None], sources: Sequence[Sequence[int]]) -> MarkedBox:
    if not 0 <= box.image < len(pictures):
        return box
    picture = pictures[box.image]
    if isinstance(picture, Volume):
        return replace(box, corners_lps=_corners(box.box, picture)) if len(box.box) == 6 else box
    if picture is None or len(box.box) != 4 or len(sources[box.image]) != 1:
        return box
    return replace(box, source=sources[box.image][0])


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
        """None where the header does not say it."""
        shown = image.display
        if shown.position_lps is None or shown.orientation is None or shown.spacing_mm is None:
            return None
        if image.rows is None or image.columns is None or min(shown.spacing_mm) <= 0:
            return None
        across, down = np.array(shown.orientation).reshape(2, 3)
        return cls(image, np.array(shown.position_lps), across, down, (shown.spacing_mm[1], shown.spacing_mm[0]))

    def depths(self, corners: Points) -> Points:
        """Distance of points in front of it, in mm."""
        depths: Points = (corners - self.position) @ np.cross(self.across, self.down)
        return depths

    def pixels(self, points: Points) -> Points:
        """Points as (column, row) from the upper left corner of the image, cut at its edges."""
        offsets = (points - self.position) @ np.stack([self.across, self.down], axis=1) / self.steps_mm + 0.5
        pixels: Points = np.clip(offsets, 0, [float(self.image.columns or 0), float(self.image.rows or 0)])
        return pixels


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
    """Each box once, however many sentences state its finding."""
    slices = [one for one in map(_Slice.of, report.sources) if one is not None]
    boxes = dict.fromkeys((place.finding, box) for place in report.places for box in place.boxes)
    for finding, box in boxes:
        if box.source is not None:
            image = report.sources[box.source]
            points = outline_px(box, image)
            if points is not None:
                yield _Line(image, points, finding)
        elif box.corners_lps and slices:
            yield from (_Line(image, points, finding) for image, points in _cuts(box, slices))


def write_boxes(report: FinishedReport) -> bytes:
    """The boxes as a file.

    Raises:
        InputError: if no box lies on a DICOM image; if its images cannot be shown in one way; or as ``envelope`` does.
    """
    lines = list(_lines(report))
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
    dataset.ContentLabel, dataset.ContentDescription = LAYER, "Boxes of findings by software; no lesion boundary"
    dataset.ContentCreatorName, dataset.Laterality = f"{MAKER}^software", ""
    dataset.ReferencedSeriesSequence = _by_series(images)
    _set_grey_values(dataset, images)
    sizes = {(one.columns, one.rows, one.display.spacing_mm): one for one in images}
    dataset.DisplayedAreaSelectionSequence = [_area(*size, images) for size in sizes]
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


def _area(
    columns: int | None, rows: int | None, spacing_mm: tuple[float, float] | None, images: Sequence[Identity]
) -> Dataset:
    """The whole of the images of one size (C.10.4)."""
    item = Dataset()
    item.ReferencedImageSequence = _references(
        [one for one in images if (one.columns, one.rows, one.display.spacing_mm) == (columns, rows, spacing_mm)]
    )
    item.DisplayedAreaTopLeftHandCorner, item.DisplayedAreaBottomRightHandCorner = [1, 1], [columns, rows]
    item.PresentationSizeMode = "SCALE TO FIT"
    if spacing_mm is None:
        item.PresentationPixelAspectRatio = [1, 1]
    else:
        item.PresentationPixelSpacing = [f"{value:.10g}" for value in spacing_mm]
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
