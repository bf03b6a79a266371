"""Classical descriptors of a radiograph: pixels, oriented gradients, and the style of its acquisition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radweave.sources.alignment import Placement, place, standardised

Floats = NDArray[np.float32]

SIZE = 160
ORIENTATIONS = 9
CELL_SIZES = (8, 10, 20)
STYLE = 28
"""Numbers of the style."""


def oriented_gradients(image: Floats, cell: int) -> Floats:
    """Histograms of oriented gradients (flat), one block of 2 x 2 cells normalised after another.

    Source: Dalal and Triggs, "Histograms of oriented gradients for human detection", CVPR 2005.
    """
    down, right = np.gradient(image)
    strength = np.hypot(down, right)
    angle = (np.arctan2(down, right) % np.pi) * (ORIENTATIONS / np.pi) - 0.5
    lower = np.floor(angle)
    share = (angle - lower).astype(np.float32)
    rows, columns = (extent // cell for extent in image.shape)
    histogram = np.zeros((rows, columns, ORIENTATIONS), dtype=np.float32)
    for number, weight in ((lower, 1 - share), (lower + 1, share)):
        slot = number.astype(np.int64) % ORIENTATIONS
        for orientation in range(ORIENTATIONS):
            part = np.where(slot == orientation, strength * weight, 0)[: rows * cell, : columns * cell]
            histogram[..., orientation] += part.reshape(rows, cell, columns, cell).sum(axis=(1, 3))
    blocks = np.concatenate([histogram[r : rows - 1 + r, c : columns - 1 + c] for r in (0, 1) for c in (0, 1)], axis=-1)
    blocks /= np.sqrt((blocks**2).sum(axis=-1, keepdims=True)) + 1e-3 * cell**2
    blocks = np.minimum(blocks, 0.2)
    return np.asarray(blocks / (np.linalg.norm(blocks, axis=-1, keepdims=True) + 1e-6)).ravel()


def describe(image: Floats, placement: Placement) -> dict[str, Floats]:
    """Descriptor name -> vector of an image (H, W) with values 0 to 1."""
    large = standardised(place(image, placement, SIZE)[None])[0]
    small = standardised(place(image, placement, 32)[None])[0]
    described = {"pixels": small.ravel()}
    described |= {f"gradients{cell}": oriented_gradients(large, cell) for cell in CELL_SIZES}
    described["style"] = style(image)
    return described


def style(image: Floats) -> Floats:
    """How the image was taken, of the image as it is: histogram, gradient energy, borders."""
    histogram = np.histogram(image, bins=16, range=(0.0, 1.0))[0] / image.size
    down, right = np.gradient(image)
    energy = np.log1p(100 * np.array([np.abs(down).mean(), np.abs(right).mean(), (down**2).mean(), (right**2).mean()]))
    edge = max(1, round(0.04 * min(image.shape)))
    borders = [image[:edge], image[-edge:], image[:, :edge], image[:, -edge:]]
    around = np.array([value for strip in borders for value in (strip.mean(), strip.std())])
    return np.concatenate([np.sqrt(histogram), energy, around]).astype(np.float32)
