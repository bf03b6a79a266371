"""Is a volume what it should be: Hounsfield units, and a chest?

Rules over a histogram and a coarse copy of the scan; each says what it found in a warning and changes nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from radweave.data.reading import wire
from radweave.data.reading.integrity import NO_CHEST
from radweave.data.reading.volumes import Volume

SOFT_TISSUE_HU: Final = (-150, 120)
AIR_HU: Final = (-1024, -850)
SHIFT_HU: Final = 1024
# Shares of all voxels. Fat, muscle and blood make a third of any trunk; bone beyond 870 HU far less than a hundredth.
MANY: Final = 0.05
FEW: Final = 0.01
MAX_LABELS: Final = 64
PADDING_GAP_HU: Final = 100

COARSE_MM: Final = 4.0
TOO_COARSE_MM: Final = 12.0
"""Coarse voxels beyond this width blur lungs into the edges of the body."""
TISSUE_FROM_HU: Final = -250
LUNG_HU: Final = (-965, -500)
MIN_LUNG_SHARE: Final = 0.10
NO_AIR_HU: Final = -940
CROPPED_BORDER_SHARE: Final = 0.75
SHORT_MM: Final = 100.0


def value_warnings(values: wire.Array) -> list[str]:
    """Do the values look like Hounsfield units: never rescaled, rescaled twice, or no CT at all?

    A stored CT value is usually HU + 1024. Without the rescaling, air lies at 0 and soft tissue near 1024; with it
    done twice, soft tissue lies at -1024 and air at -2024.
    """
    plain = values.reshape(-1)
    if (
        plain.dtype.kind in "iu"
        and float(plain.min()) >= 0
        and len(np.unique(plain[:: max(1, plain.size // 500_000)])) <= MAX_LABELS
    ):
        return ["looks like a label map, not like CT: no negative and few distinct values"]
    plain = _without_padding(plain)
    soft = _share(plain, *SOFT_TISSUE_HU)
    lifted = _share(plain, SOFT_TISSUE_HU[0] + SHIFT_HU, SOFT_TISSUE_HU[1] + SHIFT_HU)
    sunk = _share(plain, SOFT_TISSUE_HU[0] - SHIFT_HU, SOFT_TISSUE_HU[1] - SHIFT_HU)
    sunk_air = _share(plain, AIR_HU[0] - SHIFT_HU, AIR_HU[1] - SHIFT_HU)
    if _share(plain, -20_000, -200) < FEW:
        if lifted >= MANY:
            return ["HU were never rescaled: the values look like HU + 1024"]
        return ["does not look like CT in HU: no air"]
    if soft < FEW and sunk >= MANY and sunk_air >= FEW:
        return ["HU were rescaled twice: the values look like HU - 1024"]
    if soft < FEW:
        return ["does not look like CT in HU: no soft tissue"]
    return []


def _without_padding(plain: wire.Array) -> wire.Array:
    """Leave out the value that scanners write outside their round field: the minimum, often and far below the rest."""
    least = plain == plain.min()
    if float(least.mean()) < FEW or bool(least.all()):
        return plain
    rest = plain[~least]
    return rest if float(rest.min()) - float(plain.min()) > PADDING_GAP_HU else plain


def _share(values: wire.Array, low: float, high: float) -> float:
    return float(((values >= low) & (values < high)).mean())


def chest_warnings(volume: Volume) -> list[str]:
    """Does a scan in HU show a chest, and all of it?

    Lung is the one tissue between -965 and -500 HU in bulk. Where the body ends inside the image, only what it
    encloses counts, so that table, blanket and skin do not; opening by one coarse voxel removes the skin of bowel gas.
    An image whose frame is mostly filled with body or lung shows only a part. A scan whose coarse voxels are wider than
    ``TOO_COARSE_MM`` is not judged.
    """
    coarse, spacing = _coarse(volume)
    tissue = coarse > TISSUE_FROM_HU
    if max(spacing[1:]) > TOO_COARSE_MM:
        return [f"not tested whether it shows a chest: its voxels are {max(spacing[1:]):.0f} mm wide"]
    if not tissue.any():
        return [NO_CHEST + "no soft tissue"]
    frame = np.zeros(coarse.shape[1:], dtype=bool)
    frame[[0, -1], :] = True
    frame[:, [0, -1]] = True
    cropped = float((coarse[:, frame] > NO_AIR_HU).mean()) > CROPPED_BORDER_SHARE
    lung = (coarse > LUNG_HU[0]) & (coarse < LUNG_HU[1])
    if not cropped:
        lung &= np.stack([ndimage.binary_fill_holes(plane) for plane in _largest(tissue)])
    lung = ndimage.binary_opening(lung, np.ones((1, 3, 3), dtype=bool))
    share = float(lung.sum() / (lung.sum() + tissue.sum()))
    warnings = []
    if share < MIN_LUNG_SHARE:
        warnings.append(
            f"{NO_CHEST}lung makes {100 * share:.0f} % of the body, a chest has over {100 * MIN_LUNG_SHARE:.0f} %"
        )
    if cropped:
        warnings.append("cropped: the body reaches beyond the sides of the image")
    height = spacing[0] * coarse.shape[0]
    if height < SHORT_MM:
        warnings.append(f"short: covers {height:.0f} mm from feet to head")
    return warnings


def _coarse(volume: Volume) -> tuple[NDArray[np.float32], tuple[float, float, float]]:
    """Block means (z, y, x) at about ``COARSE_MM``, and their spacing."""
    shape = volume.hu.shape
    z, y, x = (min(n, max(1, round(COARSE_MM / s))) for n, s in zip(shape, volume.spacing_mm, strict=True))
    counts = shape[0] // z, shape[1] // y, shape[2] // x
    blocks = volume.hu[: counts[0] * z, : counts[1] * y, : counts[2] * x]
    blocks = blocks.reshape(counts[0], z, counts[1], y, counts[2], x)
    means = blocks.mean(axis=(1, 3, 5), dtype=np.float32)
    spacing = volume.spacing_mm
    return means, (spacing[0] * z, spacing[1] * y, spacing[2] * x)


def _largest(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    labels, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(labels.reshape(-1))
    sizes[0] = 0
    return np.asarray(labels == sizes.argmax())
