"""Boxes of findings: from masks, and through crops, padding and resizing.

A box is (low corner, high corner) in shares of the image, one number per axis and corner: x0 y0 x1 y1 of a radiograph,
with x to the right and y down; z0 y0 x0 z1 y1 x1 of a volume, in the axes of the array that readers give (z to the
head, y to the back, x to the patient's left). A window is (start, extent) per axis in the order rows, columns or z, y,
x, in shares of the image, as ``square.covered_by_square`` and ``ct.covered`` give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, ...]
Window = Sequence[tuple[float, float]]
LARGEST_SHARE: Final = 0.75
"""Share of the image above which a box says no place; no box that the phantom states covers more than about half."""


def corners(box: Sequence[float]) -> tuple[list[float], list[float]]:
    """Low and high corner in array order; a radiograph's box has x before y."""
    half = len(box) // 2
    low, high = list(box[:half]), list(box[half:])
    return (low[::-1], high[::-1]) if half == 2 else (low, high)


def box_of_corners(low: Sequence[float], high: Sequence[float]) -> Box:
    """The box of two corners in array order."""
    return (*low[::-1], *high[::-1]) if len(low) == 2 else (*low, *high)


def box_of_mask(mask: NDArray[np.bool_]) -> Box | None:
    """The smallest box around the True pixels of a mask (rows, columns) or (z, y, x); None for an empty mask."""
    low, high = [], []
    for axis, size in enumerate(mask.shape):
        hits = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        if not hits.size:
            return None
        low.append(float(hits[0]) / size)
        high.append((float(hits[-1]) + 1) / size)
    return box_of_corners(low, high)


def box_in_window(box: Sequence[float], window: Window) -> Box | None:
    """A box of an image in shares of a window of it, cut at the window; None where nothing of it is inside."""
    low, high = corners(box)
    starts = [max(0.0, (value - start) / extent) for value, (start, extent) in zip(low, window, strict=True)]
    ends = [min(1.0, (value - start) / extent) for value, (start, extent) in zip(high, window, strict=True)]
    return box_of_corners(starts, ends) if all(a < b for a, b in zip(starts, ends, strict=True)) else None


def box_from_window(box: Sequence[float], window: Window) -> Box | None:
    """A box of a window in shares of its image, cut at the image; None where it lies in the padding alone.

    The inverse of ``box_in_window`` for boxes that both contain.
    """
    low, high = corners(box)
    starts = [max(0.0, start + value * extent) for value, (start, extent) in zip(low, window, strict=True)]
    ends = [min(1.0, start + value * extent) for value, (start, extent) in zip(high, window, strict=True)]
    return box_of_corners(starts, ends) if all(a < b for a, b in zip(starts, ends, strict=True)) else None


def overlap(box: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes, 0 to 1.

    Raises:
        ValueError: for boxes of different dimensions.
    """
    if len(box) != len(other):
        raise ValueError(f"boxes of {len(box)} and {len(other)} numbers")
    (low, high), (low2, high2) = corners(box), corners(other)
    shared = np.prod([max(0.0, min(b, d) - max(a, c)) for a, b, c, d in zip(low, high, low2, high2, strict=True)])
    sizes = [np.prod([b - a for a, b in zip(*corners, strict=True)]) for corners in ((low, high), (low2, high2))]
    return float(shared / (sum(sizes) - shared))


def covered_share(boxes: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """Share of the union of boxes that the union of others of the same dimensions covers, 0 to 1."""
    others = [box for box in others if len(box) == len(boxes[0])]
    edges = [
        np.unique(axis)
        for axis in np.concatenate([np.stack(corners(box), axis=1) for box in (*boxes, *others)], axis=1)
    ]
    sizes = np.ones(())
    for axis in edges:
        sizes = np.multiply.outer(sizes, np.diff(axis))

    def cells(some: Sequence[Sequence[float]]) -> NDArray[np.bool_]:
        covered = np.zeros(sizes.shape, dtype=bool)
        for box in some:
            ranges = zip(edges, *corners(box), strict=True)
            covered[tuple(slice(*np.searchsorted(axis, (low, high))) for axis, low, high in ranges)] = True
        return covered

    own = cells(boxes)
    return float(sizes[own & cells(others)].sum() / sizes[own].sum())


def contains_middle(box: Sequence[float], other: Sequence[float]) -> bool:
    """True if the middle of ``other`` lies in ``box``: the pointing game of boxes."""
    (low, high), (low2, high2) = corners(box), corners(other)
    return all(a <= (c + d) / 2 <= b for a, b, c, d in zip(low, high, low2, high2, strict=True))


def is_box(box: Sequence[float], axes: int) -> bool:
    """True for a box that is not empty and lies inside an image of ``axes`` axes."""
    return len(box) == 2 * axes and all(0 <= a < b <= 1 for a, b in zip(box[:axes], box[axes:], strict=True))


def says_no_place(box: Sequence[float]) -> bool:
    """True for a box inside its image that covers more than ``LARGEST_SHARE`` of it."""
    half = len(box) // 2
    sizes = (high - low for low, high in zip(box[:half], box[half:], strict=False))
    return is_box(box, half) and prod(sizes) > LARGEST_SHARE
