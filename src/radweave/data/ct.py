"""From a CT scan to the array a model takes: spacing, crop, window, size.

    scan = preprocess(read_volume(path), CT_CLIP)      # int16 HU (z, y, x)
    model_input = to_unit(scan, CT_CLIP)               # float32 in [-1, 1]

The presets are those of the published code of the three CT papers; sizes and spacings are (z, y, x).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from radweave.core.config import AIR_HU, Channels, Config, Hounsfield, Voxels

if TYPE_CHECKING:
    from radweave.io.volumes import Volume  # readers of files: what describes a preprocessing needs none of them

BODY_FROM_HU: Final = -500
MAX_VOXELS: Final = 1 << 29


class CtPreprocessing(Config):
    """Preprocessing of scans to one shape.

    ``spacing_mm``: resample to it first (None: keep). ``crop``: none, the box of all voxels above the window's lower
    end (foreground), or the box of the largest part above -500 HU (body). ``window_hu``: values outside are set to its
    ends, which become -1 and 1. ``size``: final shape, by centred crop and padding with the lower end, or by resizing.
    ``channels``: number of equal channels that the model makes of the scan.
    """

    spacing_mm: tuple[float, float, float] | None = None
    crop: Literal["none", "foreground", "body"] = "none"
    window_hu: tuple[Hounsfield, Hounsfield] = (-1000, 1000)
    size: tuple[Voxels, Voxels, Voxels] | None = None
    fit: Literal["crop_pad", "resize"] = "crop_pad"
    channels: Channels = 1

    @model_validator(mode="after")
    def _usable(self) -> CtPreprocessing:
        if self.window_hu[0] >= self.window_hu[1] or self.window_hu[0] < AIR_HU:
            raise ValueError("window_hu must go up and begin at -1024 or above")
        if self.spacing_mm is not None and min(self.spacing_mm) <= 0:
            raise ValueError("spacing_mm must be positive")
        if self.size is not None and min(self.size) < 1:
            raise ValueError("size must be positive")
        if self.channels < 1:
            raise ValueError("channels must be positive")
        return self


# Hamamci et al., CT-CLIP: scripts/data.py.
CT_CLIP: Final = CtPreprocessing(spacing_mm=(1.5, 0.75, 0.75), window_hu=(-1000, 1000), size=(240, 480, 480))
# Hamamci et al., CT2Rep: modules/data_ct.py; it takes CT-CLIP's resampled files, with another window.
CT2REP: Final = CtPreprocessing(spacing_mm=(1.5, 0.75, 0.75), window_hu=(-1000, 200), size=(240, 480, 480))
# Chen et al., Reg2RG: src/Dataset/radgenome_dataset_train.py.
REG2RG: Final = CtPreprocessing(
    crop="foreground", window_hu=(-1000, 200), size=(64, 256, 256), fit="resize", channels=3
)
PRESETS: Final = {"ct-clip": CT_CLIP, "ct2rep": CT2REP, "reg2rg": REG2RG}

NO_SCANS: Final = CtPreprocessing()
"""Options without a size, for experiments without scans."""


def preprocess(volume: Volume, options: CtPreprocessing) -> NDArray[np.int16]:
    """The scan as int16 HU (z, y, x), resampled, cropped, windowed and sized.

    Raises:
        ValueError: if resampling would make an unreasonably large array.
    """
    return preprocess_spaced(volume, options)[0]


def preprocess_spaced(volume: Volume, options: CtPreprocessing) -> tuple[NDArray[np.int16], tuple[float, float, float]]:
    """``preprocess``, and the resulting voxel size (z, y, x) in mm.

    Raises:
        ValueError: as ``preprocess``.
    """
    spacing = volume.spacing_mm if options.spacing_mm is None else options.spacing_mm
    hu = _at_spacing(volume, options)
    hu = hu[crop_box(hu, options)]
    low, high = options.window_hu
    hu = np.clip(hu, low, high)
    if options.size is not None and options.fit == "resize":
        factors = [have / want for have, want in zip(hu.shape, options.size, strict=True)]
        spacing = (spacing[0] * factors[0], spacing[1] * factors[1], spacing[2] * factors[2])
        hu = resize_linear(hu, options.size)
    elif options.size is not None:
        hu = crop_or_pad(hu, options.size, low)
    return np.ascontiguousarray(hu), spacing


def covered(volume: Volume, options: CtPreprocessing) -> tuple[tuple[float, float], ...]:
    """The part of a scan that ``preprocess`` covers: (start, extent) along z, y, x, in shares of the scan's size.

    With padding it reaches beyond the scan.

    Raises:
        ValueError: as ``preprocess``.
    """
    shape = _size_at_spacing(volume, options)
    box = (slice(None),) * 3 if options.crop == "none" else crop_box(_at_spacing(volume, options), options)
    extents = []
    for axis, have in enumerate(shape):
        start, stop, _ = box[axis].indices(have)
        if options.size is not None and options.fit == "crop_pad":
            want, shown = options.size[axis], min(stop - start, options.size[axis])
            start += (stop - start - shown) // 2 - (want - shown) // 2
            stop = start + want
        extents.append((start / have, (stop - start) / have))
    return tuple(extents)


def _size_at_spacing(volume: Volume, options: CtPreprocessing) -> tuple[int, int, int]:
    if options.spacing_mm is None:
        z, y, x = volume.hu.shape
        return z, y, x
    z, y, x = (
        max(1, round(n * old / new))
        for n, old, new in zip(volume.hu.shape, volume.spacing_mm, options.spacing_mm, strict=True)
    )
    if float(z) * y * x > MAX_VOXELS:
        raise ValueError(f"resampling to {options.spacing_mm} mm would make {(z, y, x)} voxels")
    return z, y, x


def _at_spacing(volume: Volume, options: CtPreprocessing) -> NDArray[np.int16]:
    size = _size_at_spacing(volume, options)
    return volume.hu if options.spacing_mm is None else resize_linear(volume.hu, size)


def to_bytes(hu: NDArray[np.int16], options: CtPreprocessing) -> NDArray[np.uint8]:
    """The window in 256 steps, as cached; models read it as 0 to 1."""
    low, high = options.window_hu
    return np.asarray(np.rint((hu.astype(np.float32) - low) * (255.0 / (high - low))), np.uint8)


def to_unit(hu: NDArray[np.int16], options: CtPreprocessing) -> NDArray[np.float32]:
    """Map the window to [-1, 1]: CT-CLIP's x / 1000 and the others' (x + 400) / 600."""
    low, high = options.window_hu
    return (hu.astype(np.float32) - np.float32((high + low) / 2)) / np.float32((high - low) / 2)


def crop_box(hu: NDArray[np.int16], options: CtPreprocessing) -> tuple[slice, slice, slice]:
    """The box (z, y, x) of ``options.crop``; the whole scan if no voxel qualifies."""
    everything = (slice(None), slice(None), slice(None))
    if options.crop == "none":
        return everything
    mask = hu > (options.window_hu[0] if options.crop == "foreground" else BODY_FROM_HU)
    if options.crop == "body":
        mask = _largest_part(mask)
    box = []
    for axis in range(3):
        hits = np.flatnonzero(mask.any(axis=tuple(other for other in range(3) if other != axis)))
        if not hits.size:
            return everything
        box.append(slice(int(hits[0]), int(hits[-1]) + 1))
    return box[0], box[1], box[2]


def _largest_part(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The largest connected part, found on every second voxel: a box needs no more, and it is eight times faster."""
    from scipy import ndimage

    labels, count = ndimage.label(mask[::2, ::2, ::2])
    if count == 0:
        return mask
    sizes = np.bincount(labels.reshape(-1))
    sizes[0] = 0
    part = (labels == sizes.argmax()).repeat(2, 0).repeat(2, 1).repeat(2, 2)
    return np.asarray(part[: mask.shape[0], : mask.shape[1], : mask.shape[2]])


def crop_or_pad(hu: NDArray[np.int16], size: tuple[int, int, int], fill: int) -> NDArray[np.int16]:
    """Centred crop and padding to ``size``; the odd voxel goes to the end."""
    out = np.full(size, fill, dtype=np.int16)
    source, target = [], []
    for have, want in zip(hu.shape, size, strict=True):
        shared = min(have, want)
        source.append(slice((have - shared) // 2, (have - shared) // 2 + shared))
        target.append(slice((want - shared) // 2, (want - shared) // 2 + shared))
    out[tuple(target)] = hu[tuple(source)]
    return out


def resize_linear(hu: NDArray[np.int16], size: tuple[int, int, int]) -> NDArray[np.int16]:
    """Trilinear resize with half-voxel centres, edges extended, no smoothing before (as the published code does).

    One axis at a time, so that at most one slab is held in float.
    """
    out: NDArray[np.generic] = hu
    for axis in sorted(range(3), key=lambda a: size[a] / hu.shape[a]):
        out = _resize_axis(out, axis, size[axis])
    return np.rint(out.astype(np.float32, copy=False)).astype(np.int16)


def _resize_axis(values: NDArray[np.generic], axis: int, count: int) -> NDArray[np.float32]:
    have = values.shape[axis]
    if have == count:
        return values.astype(np.float32, copy=False)
    positions = np.clip((np.arange(count) + 0.5) * have / count - 0.5, 0, have - 1)
    below = np.floor(positions).astype(np.intp)
    above = np.minimum(below + 1, have - 1)
    shape = [1, 1, 1]
    shape[axis] = count
    weight = (positions - below).astype(np.float32).reshape(shape)
    low, high = np.take(values, below, axis=axis), np.take(values, above, axis=axis)
    mixed: NDArray[np.float32] = low.astype(np.float32)
    mixed += weight * (high.astype(np.float32) - mixed)
    return mixed
