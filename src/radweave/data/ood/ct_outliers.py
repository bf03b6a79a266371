"""CT scans varied as by another scanner, and synthetic outliers: volumes unlike any scan of a chest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from radweave.data.ood.xray_outliers import clouds

Bytes = NDArray[np.uint8]
Random = np.random.Generator


def varied(voxels: Bytes, random: Random) -> Bytes:
    """The same scan (D, H, W) with another field, sharpness, noise and a little of another window."""
    cut = [
        slice(int(random.uniform(0, 0.12) * size), size - int(random.uniform(0, 0.12) * size)) for size in voxels.shape
    ]
    grey = _zoomed(voxels[tuple(cut)].astype(np.float32) / 255, voxels.shape)
    grey = ndimage.gaussian_filter(grey, random.uniform(0, 0.7))
    grey = grey * random.uniform(0.92, 1.08) + random.uniform(-0.04, 0.04)
    return _bytes(grey + random.normal(0, random.uniform(0, 0.02), grey.shape))


def make_outlier(kind: str, voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    """An outlier of one of ``KINDS``, of the size of ``voxels``, made from training scans or from noise."""
    return _zoomed(_MADE[kind](voxels, other, random), voxels.shape).astype(np.uint8)


def _blocks(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    depth, height, width = (size // 2 for size in voxels.shape)
    parts = voxels[: 2 * depth, : 2 * height, : 2 * width].reshape(2, depth, 2, height, 2, width)
    parts = parts.transpose(0, 2, 4, 1, 3, 5).reshape(8, depth, height, width)
    order = np.roll(random.permutation(8), 1)
    moved = np.empty_like(parts)
    moved[order] = parts[np.roll(order, 1)]
    moved = moved.reshape(2, 2, 2, depth, height, width).transpose(0, 3, 1, 4, 2, 5)
    return moved.reshape(2 * depth, 2 * height, 2 * width)


def _turned(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    first, second = ((1, 2), (0, 1), (0, 2))[random.integers(3)]
    return np.rot90(voxels, int(random.choice([1, 3])), axes=(first, second))


def _upside_down(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    return np.flip(voxels, axis=int(random.integers(2)))


def _inverted(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    return 255 - voxels


def _detail(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    share = random.uniform(0.2, 0.45)
    cut = []
    for size in voxels.shape:
        length = max(2, int(size * share))
        start = int(random.integers(0, size - length + 1))
        cut.append(slice(start, start + length))
    return voxels[tuple(cut)]


def _filled(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    """A trunk without lungs, as an abdomen is: what is dark inside the body gets the grey of its tissue."""
    tissue = np.median(voxels[voxels > 0.35 * 255]) if (voxels > 0.35 * 255).any() else 150
    body = np.stack([ndimage.binary_fill_holes(plane) for plane in voxels > 0.25 * 255])
    filled = voxels.astype(np.float32)
    soft = tissue + random.uniform(10, 40) * (clouds(random, voxels.shape, 2.0) - 0.5)
    filled = np.where(body & (voxels < 0.35 * 255), soft, filled)
    return filled.clip(0, 255).astype(np.uint8)


def _one_slice(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    """One slice, or the view from the front, over and over."""
    picture = voxels[random.integers(len(voxels))]
    if random.random() < 0.5:
        shadow = voxels.mean(axis=1)
        picture = _zoomed(shadow[None].astype(np.uint8), (1, *voxels.shape[1:]))[0]
    return np.broadcast_to(picture, voxels.shape)


def _texture(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    return _bytes(clouds(random, voxels.shape, random.uniform(0.5, 3.0)))


def _blank(voxels: Bytes, other: Bytes, random: Random) -> Bytes:
    return _bytes(np.full(voxels.shape, random.random()) + random.normal(0, 0.02, voxels.shape))


_MADE: Final[dict[str, Callable[[Bytes, Bytes, Random], Bytes]]] = {
    "blocks": _blocks,
    "turned": _turned,
    "upside down": _upside_down,
    "inverted": _inverted,
    "detail": _detail,
    "filled": _filled,
    "one slice": _one_slice,
    "texture": _texture,
    "blank": _blank,
}
KINDS: Final = tuple(_MADE)


def _zoomed(voxels: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if voxels.shape == shape:
        return np.ascontiguousarray(voxels)
    factors = [wanted / size for wanted, size in zip(shape, voxels.shape, strict=True)]
    return np.asarray(ndimage.zoom(voxels, factors, order=1))


def _bytes(grey: NDArray[np.floating[Any]]) -> Bytes:
    return (grey.clip(0, 1) * 255).astype(np.uint8)
