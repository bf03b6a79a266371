"""Descriptor of an image or scan in some hundred numbers: coarse picture, edges, grey values, borders, symmetry.

Edge directions are counted in cells of a grid, as in Dalal and Triggs, "Histograms of oriented gradients for human
detection", CVPR 2005 (without their normalisation of overlapping blocks). The rest is plain statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Grey = NDArray[np.floating[Any]]

VERSION: Final = 1
"""Version of both descriptors; a run is scored with the one it was fitted with."""
CANVAS: Final = 128
"""Larger pictures are reduced to this side first, so that the detail does not depend on a run's image size."""

_SIDE, _CELLS, _ANGLES, _COARSE = 64, 8, 6, 16
_SCAN = (24, 48, 48)
_BLACK = 12
_STEEPNESS = np.linspace(-12.0, 0.0, 15)
_FLAT = (0.004, 0.01, 0.02, 0.05)


def describe(pixels: Bytes) -> list[Floats]:
    """Blocks of numbers of a radiograph (H, W), or of a scan (D, H, W), both as the model reads them."""
    return _describe_scan(pixels) if pixels.ndim == 3 else _describe_radiograph(pixels)


def on_canvas(pixels: Bytes) -> Bytes:
    """A radiograph (S, S) of at most ``CANVAS`` pixels a side; a scan (D, H, W) of at most ``_SCAN`` twice over."""
    if pixels.ndim == 2:
        return pixels if pixels.shape[0] <= CANVAS else resized(pixels, CANVAS, CANVAS)
    step = tuple(slice(None, None, max(1, size // (2 * most))) for size, most in zip(pixels.shape, _SCAN, strict=True))
    return np.ascontiguousarray(pixels[step])


def content(square: Bytes) -> Bytes:
    """The part of a square inside the black border of the fit."""
    rows, columns = np.flatnonzero(square.max(axis=1) > _BLACK), np.flatnonzero(square.max(axis=0) > _BLACK)
    if min(len(rows), len(columns)) < 4:
        return square
    return np.ascontiguousarray(square[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


def resized(pixels: Bytes, height: int, width: int) -> Bytes:
    """(H, W) to (height, width): means of blocks where it shrinks, else linear."""
    shrinks = pixels.shape[0] >= height and pixels.shape[1] >= width
    how = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((width, height), how))


def _describe_radiograph(square: Bytes) -> list[Floats]:
    square = on_canvas(square)
    box = content(square)
    grey: Grey = resized(box, _SIDE, _SIDE).astype(np.float32) / 255
    plain = (grey - grey.mean()) / max(float(grey.std()), 1e-3)
    coarse = plain.reshape(_COARSE, _SIDE // _COARSE, _COARSE, _SIDE // _COARSE).mean(axis=(1, 3))
    steep = np.hypot(*np.gradient(plain))
    centred = coarse - coarse.mean()
    statistics = [
        np.log(np.quantile(steep, (0.1, 0.25, 0.5, 0.75, 0.9, 0.97)) + 1e-3),
        2 * np.array([side.mean() for side in (grey[0], grey[-1], grey[:, 0], grey[:, -1], *_corners(grey))]),
        [_correlation(centred, centred[:, ::-1]), _correlation(centred, centred[::-1])],
        2 * np.array([(_local_deviation(grey) < limit).mean() for limit in _FLAT]),
        [np.log(box.shape[0] / box.shape[1]), box.size / square.size, (box < 6).mean(), (box > 249).mean()],
    ]
    histograms = [_shares(grey, np.linspace(0, 1, 17)), _shares(np.log2(_steepness(grey)), _STEEPNESS)]
    return _blocks([coarse.ravel()], [_edge_directions(plain, steep)], histograms, statistics)


def _describe_scan(voxels: Bytes) -> list[Floats]:
    voxels = on_canvas(voxels)
    zooms = [wanted / size for wanted, size in zip(_SCAN, voxels.shape, strict=True)]
    grey: Grey = ndimage.zoom(voxels.astype(np.float32) / 255, zooms, order=1)
    plain = (grey - grey.mean()) / max(float(grey.std()), 1e-3)
    depth, height, width = (size // 4 for size in plain.shape)
    coarse = plain.reshape(depth, 4, height, 4, width, 4).mean(axis=(1, 3, 5))
    centred = coarse - coarse.mean()
    steep = np.sqrt(sum(slope**2 for slope in np.gradient(plain)))
    statistics = [
        np.log(np.quantile(steep, (0.1, 0.25, 0.5, 0.75, 0.9, 0.97)) + 1e-3),
        2 * np.array([face.mean() for axis in range(3) for face in (grey.take(0, axis), grey.take(-1, axis))]),
        [_correlation(centred, np.flip(centred, axis)) for axis in range(3)],
    ]
    slabs = [_shares(slab, np.linspace(0, 1, 17)) for slab in np.split(grey, 4)]
    histograms = [*slabs, _shares(np.log2(_steepness(grey)), _STEEPNESS)]
    return _blocks([coarse.ravel()], histograms, statistics)


def _blocks(*groups: Sequence[Grey | Sequence[float]]) -> list[Floats]:
    return [np.concatenate([np.asarray(part, dtype=np.float32) for part in group]) for group in groups]


def _corners(grey: Grey) -> tuple[Grey, ...]:
    return grey[:6, :6], grey[:6, -6:], grey[-6:, :6], grey[-6:, -6:]


def _correlation(one: Grey, other: Grey) -> float:
    return float((one * other).mean() / max(1e-6, float((one * one).mean())))


def _steepness(grey: Grey) -> Grey:
    return np.asarray(np.sqrt(sum(slope**2 for slope in np.gradient(grey))) + 1e-4)


def _local_deviation(grey: Grey) -> Grey:
    mean, square = ndimage.uniform_filter(grey, 5), ndimage.uniform_filter(grey * grey, 5)
    return np.asarray(np.sqrt(np.maximum(square - mean * mean, 0.0)))


def _shares(values: Grey, edges: Grey) -> Grey:
    """Square roots of the shares of values in each bin, so that small shares count too."""
    return np.asarray(np.sqrt(np.histogram(values, edges)[0] / values.size))


def _edge_directions(plain: Grey, steep: Grey) -> Grey:
    """Gradient strength in each cell of the grid by direction modulo half a turn, linear between directions."""
    down, right = np.gradient(plain)
    angle = (np.arctan2(down, right) % np.pi) / np.pi * _ANGLES
    lower = np.floor(angle).astype(int)
    share = angle - lower
    row, column = np.mgrid[0:_SIDE, 0:_SIDE] // (_SIDE // _CELLS)
    cells = np.zeros((_CELLS, _CELLS, _ANGLES))
    np.add.at(cells, (row, column, lower % _ANGLES), steep * (1 - share))
    np.add.at(cells, (row, column, (lower + 1) % _ANGLES), steep * share)
    return np.asarray(np.sqrt(cells * (_CELLS / _SIDE) ** 2).ravel())
