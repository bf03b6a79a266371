"""Does a decoded image look like an image? Damage that a decoder does not notice shows in its statistics.

A radiograph is smooth: neighbouring pixels are nearly equal. A corrupt JPEG 2000 or RLE frame decodes to noise, bands
or blocks without an error. The measure is von Neumann's ratio, mean squared difference of neighbours over twice the
variance (J. von Neumann, Ann. Math. Statist. 12:367, 1941): about 0 for a smooth image, 1 for noise.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

DOUBTFUL: Final = "image integrity doubtful: "
NOISE_RATIO: Final = 0.35


def integrity_warnings(pixels: NDArray[np.float32]) -> list[str]:
    """Warnings for an image (H, W) in [0, 1]; each begins with ``DOUBTFUL``."""
    warnings = []
    if max(roughness(pixels, axis=0), roughness(pixels, axis=1)) > NOISE_RATIO:
        warnings.append(DOUBTFUL + "it looks like noise or a pattern, not like a radiograph")
    return warnings


def roughness(pixels: NDArray[np.float32], *, axis: int) -> float:
    """Von Neumann's ratio along one axis."""
    variance = float(pixels.var())
    if variance == 0:
        return 0.0
    return float((np.diff(pixels, axis=axis) ** 2).mean() / (2 * variance))
