"""Attention maps over the pictures that they are about.

A map has one value per patch of what the model saw. A radiograph was fitted into a square with black beside it, so a
map (h, w) covers the square and not the picture; a scan's map (d, h, w) covers the scan. Between the middles of the
patches values are linear, beyond the outermost middles they stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.data.preprocessing import covered_by_square, place_in_square

if TYPE_CHECKING:
    from radweave.viewer.pixels import Read

SHOWN_PX = 640
"""Longest side of a picture on the page. Smaller pictures are enlarged, so that a map over them is smooth."""

Floats = NDArray[np.float64]
_Plane = TypeVar("_Plane", Floats, NDArray[np.float32])


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture to show: ``grey`` (H, W) uint8 and over it ``heat`` (H, W) >= 0, in the unit of the map."""

    title: str
    grey: NDArray[np.uint8]
    heat: Floats | None = None


class Subject(Protocol):
    """One view, or one scan: it can be shown, alone or with a map over it."""

    @property
    def title(self) -> str: ...

    @property
    def axes(self) -> int:
        """How many axes a map of it has."""
        ...

    def panels(self) -> list[Panel]: ...

    def panels_with(self, weights: Floats) -> list[Panel]: ...

    def share_beside(self, weights: Floats) -> float:
        """The share of a map that lies where there is no picture."""
        ...


@dataclass(frozen=True, slots=True)
class RadiographSubject:
    """A radiograph: ``pixels`` (H, W) in [0, 1] as it was read, ``side`` of the square that the model saw.

    ``stored`` are the values of its file, where there is one that can be read so: what a window is laid over.
    """

    title: str
    pixels: NDArray[np.float32]
    side: int
    view: str = "UNKNOWN"
    stored: Read | None = None

    @property
    def axes(self) -> int:
        return 2

    def panels(self) -> list[Panel]:
        return [Panel(self.title, shown(self.pixels))]

    def panels_with(self, weights: Floats) -> list[Panel]:
        """The picture with a map (h, w) of its square over it."""
        grey = shown(self.pixels)
        top, left, height, width = self._place()
        rows = (top + height * middles(grey.shape[0])) / self.side
        columns = (left + width * middles(grey.shape[1])) / self.side
        return [Panel(self.title, grey, between(weights, rows, columns))]

    def share_beside(self, weights: Floats) -> float:
        top, left, height, width = self._place()
        rows = overlap(weights.shape[0], top / self.side, (top + height) / self.side)
        columns = overlap(weights.shape[1], left / self.side, (left + width) / self.side)
        total = float(weights.sum())
        return 0.0 if total <= 0 else 1.0 - float(rows @ weights @ columns) / total

    def covers(self) -> tuple[tuple[float, float], ...]:
        """Where a map lies on the picture: (start, extent) along rows and columns, in shares of its size."""
        return covered_by_square(self.pixels.shape[0], self.pixels.shape[1], self.side)

    def _place(self) -> tuple[int, int, int, int]:
        return place_in_square(self.pixels.shape[0], self.pixels.shape[1], self.side)


@dataclass(frozen=True, slots=True)
class ScanSubject:
    """A CT scan: ``voxels`` (z, y, x) in [0, 1] as the model saw them, z to the head, y to the back, x to the left.

    ``hu`` are the same voxels in Hounsfield units, where they are known. ``spacing_mm`` is (z, y, x), only its ratios
    matter. Slices are shown as radiologists look at them: from the feet, from the front, from the left, with the
    patient's right on the left side where it can be seen.
    """

    title: str
    voxels: NDArray[np.float32]
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    hu: NDArray[np.int16] | None = None

    @property
    def axes(self) -> int:
        return 3

    def panels(self) -> list[Panel]:
        """The three slices through the middle."""
        return [self._slice(axis, self.voxels.shape[axis] // 2, None) for axis in range(3)]

    def panels_with(self, weights: Floats) -> list[Panel]:
        """The three slices through the peak of a map (d, h, w), with the map over them."""
        peak = np.unravel_index(int(weights.argmax()), weights.shape)
        return [
            self._slice(axis, int((peak[axis] + 0.5) / weights.shape[axis] * self.voxels.shape[axis]), weights)
            for axis in range(3)
        ]

    def share_beside(self, weights: Floats) -> float:
        return 0.0

    def _slice(self, axis: int, index: int, weights: Floats | None) -> Panel:
        name = ("axial", "coronal", "sagittal")[axis]
        height_mm, width_mm = (self.voxels.shape[other] * self.spacing_mm[other] for other in range(3) if other != axis)
        plane = np.take(self.voxels, index, axis=axis)
        grey = shown(_upright(plane, axis), aspect=height_mm / width_mm)
        title = f"{self.title}, {name} slice {index + 1} of {self.voxels.shape[axis]}"
        if weights is None:
            return Panel(title, grey)
        place = np.array([(index + 0.5) / self.voxels.shape[axis]])
        across = np.tensordot(between_weights(weights.shape[axis], place)[0], weights, axes=(0, axis))
        heat = between(_upright(across, axis), middles(grey.shape[0]), middles(grey.shape[1]))
        return Panel(title, grey, heat)


def _upright(plane: _Plane, axis: int) -> _Plane:
    """Coronal and sagittal slices have the head on top; axial ones have the front there as they are."""
    return plane if axis == 0 else plane[::-1]


def shown(pixels: NDArray[np.float32], *, aspect: float | None = None) -> NDArray[np.uint8]:
    """Grey values, ``SHOWN_PX`` the longer side.

    ``aspect`` is height by width where pixels are not square: in slices, which are shown at half the size.
    """
    height, width = pixels.shape
    tall = height / width if aspect is None else aspect
    longest = SHOWN_PX if aspect is None else SHOWN_PX // 2
    size = (longest, max(1, round(longest * tall))) if tall <= 1 else (max(1, round(longest / tall)), longest)
    image = Image.fromarray(np.ascontiguousarray(pixels, dtype=np.float32))
    resized = np.asarray(image.resize(size, Image.Resampling.BILINEAR), dtype=np.float32)
    return np.rint(resized.clip(0.0, 1.0) * 255.0).astype(np.uint8)


def middles(count: int) -> Floats:
    """Middles of ``count`` pixels that share the range from 0 to 1."""
    return (np.arange(count) + 0.5) / count


def between(weights: Floats, rows: Floats, columns: Floats) -> Floats:
    """A map (h, w) read at ``rows`` x ``columns``, given as shares of its height and width."""
    values: Floats = between_weights(weights.shape[0], rows) @ weights @ between_weights(weights.shape[1], columns).T
    return values


def between_weights(cells: int, places: Floats) -> Floats:
    """How much each of ``cells`` counts at each place in [0, 1]: (places, cells), each row sums to 1."""
    position = np.clip(places * cells - 0.5, 0.0, cells - 1.0)
    return np.maximum(0.0, 1.0 - np.abs(position[:, None] - np.arange(cells)))


def overlap(cells: int, start: float, end: float) -> Floats:
    """The share of each of ``cells`` equal parts of [0, 1] that lies in [start, end]."""
    low, high = np.arange(cells) / cells, (np.arange(cells) + 1) / cells
    covered: Floats = np.clip(np.minimum(high, end) - np.maximum(low, start), 0.0, None) * cells
    return covered


def smallest_half(maps: Sequence[Floats]) -> float:
    """The share of all patches that the strongest ones need to hold half of a map: 0.5 if it is even everywhere."""
    values = np.sort(np.concatenate([weights.ravel() for weights in maps]))[::-1]
    total = values.sum()
    if total <= 0:
        return 0.5
    held = np.concatenate([[0.0], values.cumsum()])
    # Within the patch that reaches half, in proportion, so that an even map gives one half exactly.
    return float(np.interp(total / 2, held, np.arange(held.size))) / values.size
