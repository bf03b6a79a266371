"""The square that a vision encoder reads, from a radiograph of any shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PREPROCESSING_VERSION = 1
"""Part of every cache key; raise it when ``to_square`` changes its result."""


def to_square(pixels: NDArray[np.float32], size: int) -> NDArray[np.uint8]:
    """Fit (H, W) pixels in [0, 1] into (size, size) grey values, keeping the aspect ratio, black beside.

    Eight bits are kept everywhere, in training and in use, so that a cached image equals a fresh one.
    """
    top, left, new_height, new_width = place_in_square(pixels.shape[0], pixels.shape[1], size)
    image = Image.fromarray(np.ascontiguousarray(pixels, dtype=np.float32))
    resized = np.asarray(image.resize((new_width, new_height), Image.Resampling.BILINEAR), dtype=np.float32)
    square = np.zeros((size, size), dtype=np.uint8)
    square[top : top + new_height, left : left + new_width] = np.rint(resized.clip(0.0, 1.0) * 255.0)
    return square


def place_in_square(height: int, width: int, size: int) -> tuple[int, int, int, int]:
    """Top, left, height and width in the square of an image of (height, width) pixels."""
    scale = size / max(height, width)
    new_height, new_width = max(1, round(height * scale)), max(1, round(width * scale))
    return (size - new_height) // 2, (size - new_width) // 2, new_height, new_width


def covered_by_square(height: int, width: int, size: int) -> tuple[tuple[float, float], ...]:
    """The part of an image that the square covers: (start, extent) along rows and columns, in shares of its size."""
    top, left, new_height, new_width = place_in_square(height, width, size)
    return (-top / new_height, size / new_height), (-left / new_width, size / new_width)
