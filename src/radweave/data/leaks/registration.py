"""Whether two small pictures are one: the second is laid over the first, then their fine structure is compared.

Chests resemble each other so much that outlines and organs say little. What two films of different patients do not
share are edges a few pixels wide. So a pair is aligned first, by shift, turn and scale, and then compared in small
blocks by the correlation of what is finer than a rib. Grey values only count up to a monotone change, or inversion.

Sources: the shift is the peak of a circular cross-correlation; the rest are Gauss-Newton steps on the squared
difference of two images under an affine map (Lucas and Kanade, IJCAI 1981).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

SIDE: Final = 64
"""Height and width of the pictures compared here."""

_TURNS_DEGREES = (-2.5, 0.0, 2.5)
_SCALES = (0.93, 1.0, 1.075)
_FARTHEST_SHIFT = 10
_STEPS = 12
_CENTRE = (SIDE - 1) / 2
_BLOCK = 8
_FINE = 1.5
"""Standard deviation in pixels of the blur that separates fine structure from the rest."""

_MOST_BENT, _MOST_MOVED, _LEAST_SHARED = 0.25, 12.0, 0.6
_FEWEST_BLOCKS = 10

Picture = NDArray[np.float32]
_GRID: Final = np.indices((SIDE, SIDE)).reshape(2, -1) - _CENTRE
_WINDOW: Final = np.sqrt(np.outer(np.hanning(SIDE + 2)[1:-1], np.hanning(SIDE + 2)[1:-1])).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where a point of the target lies in the query, in pixels (y, x) from the centre: ``bend @ p + move``."""

    bend: NDArray[np.float64]
    move: NDArray[np.float64]
    inverted: bool

    @property
    def is_near(self) -> bool:
        """Whether it is a small change, as between a picture and its copy."""
        bent = float(np.abs(self.bend - np.eye(2)).max())
        return bent <= _MOST_BENT and float(np.abs(self.move).max()) <= _MOST_MOVED

    @property
    def is_still(self) -> bool:
        """Whether nothing moves by more than half a pixel."""
        corners = np.array([[-_CENTRE, -_CENTRE, _CENTRE, _CENTRE], [-_CENTRE, _CENTRE, -_CENTRE, _CENTRE]])
        return float(np.abs(self.bend @ corners + self.move[:, None] - corners).max()) <= 0.5

    def places(self) -> NDArray[np.float64]:
        """Coordinates (2, SIDE * SIDE) in the query of every pixel of the target, row-major."""
        places: NDArray[np.float64] = self.bend @ _GRID + self.move[:, None] + _CENTRE
        return places


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike two pictures are: the correlation of fine structure, of the median block and of the weakest fifth.

    Both are 0 where the pictures lie too far apart to be compared.
    """

    typical: float
    weakest: float
    alignment: Alignment


def _evened(picture: Picture, width: float) -> Picture:
    """What is finer than ``width`` pixels, with its local contrast made even."""
    fine = picture - ndimage.gaussian_filter(picture, width, mode="nearest")
    contrast = np.sqrt(ndimage.gaussian_filter(fine * fine, 2 * width, mode="nearest"))
    evened: Picture = fine / (contrast + 0.3 * np.median(contrast) + 1e-4)
    return evened


class Query:
    """A picture (SIDE, SIDE) in [0, 1] that others are laid over; prepared once."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._broad = _broad(picture)
        self._stack = np.stack([self._broad, *np.gradient(self._broad)])
        starts = [_turned(turn, scale) for turn in _TURNS_DEGREES for scale in _SCALES]
        self._starts = starts
        moved = [self._sampled(self._broad, bend @ _GRID + _CENTRE) for bend in starts]
        self._spectra = fft.rfft2(np.stack(moved).reshape(-1, SIDE, SIDE) * _WINDOW)

    def likeness(self, target: Picture) -> Likeness:
        """Likeness of a target (SIDE, SIDE) to this picture."""
        alignment = self._align(_broad(target))
        if not alignment.is_near:
            return Likeness(0.0, 0.0, alignment)
        return self._compare(target, alignment)

    @staticmethod
    def _sampled(picture: Picture, places: NDArray[np.float64], order: int = 1) -> Picture:
        mode = "constant" if order == 1 else "nearest"
        sampled: Picture = ndimage.map_coordinates(picture, places, order=order, mode=mode)
        return sampled

    def _align(self, target: Picture) -> Alignment:
        products = fft.irfft2(fft.rfft2(target * _WINDOW) * np.conj(self._spectra), s=(SIDE, SIDE))
        far = slice(_FARTHEST_SHIFT + 1, -_FARTHEST_SHIFT)
        products[:, far, :] = 0
        products[:, :, far] = 0
        start, y, x = np.unravel_index(int(np.argmax(np.abs(products))), products.shape)
        sign = -1.0 if products[start, y, x] < 0 else 1.0
        shift = np.array([y, x], np.float64)
        shift[shift > SIDE / 2] -= SIDE
        bend = self._starts[int(start)]
        return self._refine(target, bend, -(bend @ shift), sign)

    def _refine(self, target: Picture, bend: NDArray[np.float64], move: NDArray[np.float64], sign: float) -> Alignment:
        """Gauss-Newton steps from a start; the best position met on the way."""
        best, found = -1.0, Alignment(bend, move, sign < 0)
        for _ in range(_STEPS):
            places = bend @ _GRID + move[:, None] + _CENTRE
            inside = ((places >= 0) & (places <= SIDE - 1)).all(axis=0)
            if inside.mean() < _LEAST_SHARED:
                break
            grid, wanted = _GRID[:, inside], target.ravel()[inside] * sign
            here, down, right = (self._sampled(part, places[:, inside]) for part in self._stack)
            wanted, here = wanted - wanted.mean(), here - here.mean()
            lengths = float(np.linalg.norm(wanted)), float(np.linalg.norm(here)) + 1e-9
            agreement = float(wanted @ here) / (lengths[0] * lengths[1] + 1e-9)
            if agreement > best:
                best, found = agreement, Alignment(bend, move, sign < 0)
            slopes = np.stack([down * grid[0], down * grid[1], down, right * grid[0], right * grid[1], right])
            slopes -= slopes.mean(axis=1, keepdims=True)
            normal = slopes @ slopes.T
            normal[np.diag_indices(6)] *= 1.01
            normal[np.diag_indices(6)] += 1e-6
            step = np.linalg.solve(normal, slopes @ (wanted * (lengths[1] / (lengths[0] + 1e-9)) - here))
            bend = bend + step[[0, 1, 3, 4]].reshape(2, 2)
            move = move + step[[2, 5]]
            if np.abs(step[[2, 5]]).max() < 0.02 and np.abs(step[[0, 1, 3, 4]]).max() < 5e-4:
                break
        return found

    def _compare(self, target: Picture, alignment: Alignment) -> Likeness:
        places = alignment.places()
        moved = self._sampled(self._picture, places, order=3).reshape(SIDE, SIDE)
        inside = ((places >= 0.5) & (places <= SIDE - 1.5)).all(axis=0).reshape(SIDE, SIDE)
        inside = ndimage.binary_erosion(inside, iterations=2, border_value=1)
        first, second = (_evened(_softened(picture), _FINE) for picture in (moved, target))
        blocks = _blocks(first), _blocks(second), _blocks(inside.astype(np.float32)) > 0
        values = _correlations(*blocks) * (-1.0 if alignment.inverted else 1.0)
        if len(values) < _FEWEST_BLOCKS:
            return Likeness(0.0, 0.0, alignment)
        return Likeness(float(np.median(values)), float(np.percentile(values, 20)), alignment)


def _turned(degrees: float, scale: float) -> NDArray[np.float64]:
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return scale * np.array([[cos, -sin], [sin, cos]])


def _broad(picture: Picture) -> Picture:
    """Structure up to the width of a rib, which is what pictures are laid over each other by."""
    soft = ndimage.gaussian_filter(picture, 0.7, mode="nearest")
    structure = soft - ndimage.gaussian_filter(soft, 4, mode="nearest")
    contrast = np.sqrt(ndimage.gaussian_filter(structure * structure, 4, mode="nearest"))
    broad: Picture = structure / (contrast + 0.01)
    return broad


def _softened(picture: Picture) -> Picture:
    soft: Picture = ndimage.gaussian_filter(picture, 0.5, mode="nearest")
    return soft


def _blocks(picture: Picture) -> NDArray[np.float32]:
    """(SIDE, SIDE) as (blocks, pixels of a block)."""
    count = SIDE // _BLOCK
    return picture.reshape(count, _BLOCK, count, _BLOCK).swapaxes(1, 2).reshape(count * count, -1)


def _correlations(first: Picture, second: Picture, inside: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Correlation in each block that lies inside for 70 % and holds some structure in both pictures."""
    shares = inside.sum(axis=1)
    count = np.maximum(shares, 1)[:, None]
    parts = []
    for blocks in (first, second):
        centred = np.where(inside, blocks - (blocks * inside).sum(axis=1, keepdims=True) / count, 0)
        parts.append((centred, np.linalg.norm(centred, axis=1)))
    (a, length_a), (b, length_b) = parts
    structured = np.minimum(length_a / np.sqrt(count[:, 0]), length_b / np.sqrt(count[:, 0])) > 0.15
    used = (shares >= 0.7 * _BLOCK * _BLOCK) & structured
    values: NDArray[np.float32] = (a * b).sum(axis=1)[used] / (length_a * length_b)[used]
    return values
