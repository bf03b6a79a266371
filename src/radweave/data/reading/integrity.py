"""Does a decoded image look like a radiograph? Damage and wrong tags that nothing else notices show in statistics.

A radiograph is smooth: neighbouring pixels are nearly equal. A corrupt JPEG 2000 frame decodes to noise or blocks
without an error. The measure is von Neumann's ratio, mean squared difference of neighbours over twice the variance
(J. von Neumann, Ann. Math. Statist. 12:367, 1941): about 0 for a smooth image, 1 for noise.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.base.study import View

DOUBTFUL: Final = "image integrity doubtful: "
NO_CHEST: Final = "not a chest: "
# 700 real radiographs reach 0.034 at most, small and strongly compressed ones among them.
NOISE_RATIO: Final = 0.15
MIN_GREY_LEVELS: Final = 24
SAMPLED_LINES: Final = 512
"""About so many rows are looked at: more would say the same of an image."""
# Over 3,047 real frontal views the middle is from -0.09 to 0.55 brighter than both sides, 0.29 in most; over 2,937
# lateral views, where the measure means nothing, four are below -0.25.
INVERTED_FRONTAL: Final = -0.10
INVERTED_UNKNOWN: Final = -0.25


def integrity_warnings(pixels: NDArray[np.float32]) -> list[str]:
    """Warnings for an image (H, W) in [0, 1]; each begins with ``DOUBTFUL``."""
    warnings = []
    if max(roughness(pixels)) > NOISE_RATIO:
        warnings.append(DOUBTFUL + "it looks like noise or a pattern, not like a radiograph")
    step = _step(len(pixels))
    for rows in (pixels[:: 16 * step], pixels[::step], pixels):  # few rows of most images have enough of them
        levels = grey_levels(rows)
        if levels >= MIN_GREY_LEVELS:
            break
    else:
        warnings.append(DOUBTFUL + f"it has only {levels} grey levels")
    return warnings


def grey_levels(pixels: NDArray[np.float32]) -> int:
    """How many of 256 levels come in it."""
    return int(np.count_nonzero(np.bincount((pixels * 255).astype(np.uint8).reshape(-1), minlength=256)))


def roughness(pixels: NDArray[np.float32]) -> tuple[float, float]:
    """Von Neumann's ratio down and along the rows, over rows that lie evenly in the image."""
    step = _step(len(pixels))
    rows, below = pixels[::step], pixels[1::step]
    variance = _mean_square(rows - rows.mean())
    if variance == 0:
        return 0.0, 0.0
    down, along = below - rows[: len(below)], np.diff(rows, axis=1)
    return _mean_square(down) / (2 * variance), _mean_square(along) / (2 * variance)


def _mean_square(values: NDArray[np.float32]) -> float:
    return float(np.vdot(values, values)) / values.size


def _step(lines: int) -> int:
    return max(1, lines // SAMPLED_LINES)


def polarity_warnings(pixels: NDArray[np.float32], view: View) -> list[str]:
    """A warning where black and white seem swapped: the photometric tag may be wrong. Nothing is changed."""
    limit = INVERTED_FRONTAL if view.is_frontal else INVERTED_UNKNOWN
    if view is View.LATERAL or spine_over_lungs(pixels) >= limit:
        return []
    return ["black and white may be swapped: the middle is darker than both sides"]


def spine_over_lungs(pixels: NDArray[np.float32]) -> float:
    """Mean of the middle, where spine and heart lie, minus mean of both sides, where the lungs lie."""
    height, width = pixels.shape

    def mean(top: float, bottom: float, left: float, right: float) -> float:
        rows = slice(int(height * top), int(height * bottom))
        return float(pixels[rows, int(width * left) : int(width * right)].mean())

    return mean(0.25, 0.75, 0.45, 0.55) - (mean(0.25, 0.55, 0.18, 0.38) + mean(0.25, 0.55, 0.62, 0.82)) / 2
