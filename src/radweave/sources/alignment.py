"""Radiographs of one view laid over their mean, so that the same place shows the same organ.

An image is searched over scale and shift for the window that correlates best with the mean of all images, at 40 x 40
cells, by products of spectra; the mean is then taken again and the search repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float32]

CELLS = 40
MAX_SHIFT = 5
SCALES = (0.9, 1.0, 1.1, 1.2)


@dataclass(frozen=True, slots=True)
class Placement:
    """How an image is laid over the mean: magnified by ``scale``, then moved by ``shift`` (rows, columns) cells."""

    scale: float = 1.0
    shift: tuple[int, int] = (0, 0)


def standardised(images: Floats) -> Floats:
    """Images (N, H, W) with mean 0 and standard deviation 1 each."""
    mean = images.mean(axis=(1, 2), keepdims=True)
    return np.asarray((images - mean) / (images.std(axis=(1, 2), keepdims=True) + 1e-6), dtype=np.float32)


def place(image: Floats, placement: Placement, size: int) -> Floats:
    """The image (H, W) scaled about its centre and shifted, on a square of ``size``; outside of it the edge repeats."""
    height, width = image.shape
    step = (height / size / placement.scale, width / size / placement.scale)
    cell = (height / CELLS / placement.scale, width / CELLS / placement.scale)
    offset = [
        (extent - 1) / 2 - s * (size - 1) / 2 - moved * c
        for extent, s, c, moved in zip(image.shape, step, cell, placement.shift, strict=True)
    ]
    smooth = ndimage.gaussian_filter(image, [max(0.0, 0.5 * s - 0.25) for s in step])
    return np.asarray(
        ndimage.affine_transform(smooth, step, offset, (size, size), order=1, mode="nearest"), dtype=np.float32
    )


def find_placements(images: Sequence[Floats], mean: Floats) -> list[Placement]:
    """The best placement of each image (H, W) on ``mean`` (40, 40)."""
    # The window keeps the borders, where collimation and labels are, from deciding.
    window = np.outer(np.hanning(CELLS + 2)[1:-1], np.hanning(CELLS + 2)[1:-1]).astype(np.float32)
    pad = 2 * CELLS
    target = np.conj(np.fft.rfft2(window * mean, (pad, pad)))
    energy = np.conj(np.fft.rfft2(window, (pad, pad)))
    shifts = np.r_[0 : MAX_SHIFT + 1, -MAX_SHIFT:0]
    best = np.full(len(images), -np.inf)
    found = [Placement()] * len(images)
    for scale in SCALES:
        small = standardised(np.stack([place(image, Placement(scale), CELLS) for image in images]))
        spectra, squares = np.fft.rfft2(small, (pad, pad)), np.fft.rfft2(small**2, (pad, pad))
        product = np.fft.irfft2(spectra * target, (pad, pad))[:, shifts][:, :, shifts]
        norm = np.sqrt(np.maximum(np.fft.irfft2(squares * energy, (pad, pad))[:, shifts][:, :, shifts], 1e-6))
        score = (product / norm).reshape(len(images), -1)
        top = score.argmax(axis=1)
        for row in np.flatnonzero(score[np.arange(len(images)), top] > best):
            down, right = divmod(int(top[row]), len(shifts))
            best[row] = score[row, top[row]]
            found[row] = Placement(scale, (-int(shifts[down]), -int(shifts[right])))
    return found


def mean_image(images: Sequence[Floats], placements: Sequence[Placement]) -> Floats:
    """Mean (40, 40) of the standardised images as they are placed."""
    placed = np.stack([place(image, how, CELLS) for image, how in zip(images, placements, strict=True)])
    return np.asarray(standardised(placed).mean(axis=0))


def fit_mean(images: Sequence[Floats], passes: int = 2) -> Floats:
    """The mean (40, 40) of images (H, W) that were placed on it, ``passes`` times over."""
    mean = mean_image(images, [Placement()] * len(images))
    for _ in range(passes - 1):
        mean = mean_image(images, find_placements(images, mean))
    return mean
