"""Contact sheets: many phantom images on one page, to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.base.storage import write_aside
from radweave.phantom.study import PhantomImage

# (centre, width) in HU.
LUNG_WINDOW = (-600.0, 1500.0)
SOFT_WINDOW = (40.0, 400.0)


def contact_sheet(images: Sequence[PhantomImage], *, columns: int = 8, tile: int = 256) -> NDArray[np.uint8]:
    """Put images side by side, ``columns`` in a row, each in a square of ``tile`` pixels.

    A radiograph fills its square. A volume shows its middle slices: axial in a lung and in a soft tissue window, and
    coronal and sagittal in a lung window, at their true proportions.
    """
    rows = -(-len(images) // columns)
    sheet = np.zeros((rows * tile, columns * tile), dtype=np.uint8)
    for number, image in enumerate(images):
        square = _radiograph(image, tile) if image.pixels.ndim == 2 else _volume(image, tile)
        row, column = divmod(number, columns)
        sheet[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile] = square
    return sheet


def save_contact_sheet(images: Sequence[PhantomImage], path: Path, *, columns: int = 8, tile: int = 256) -> None:
    """Write a contact sheet as PNG."""
    with write_aside(path) as partial:
        Image.fromarray(contact_sheet(images, columns=columns, tile=tile)).save(partial, format="PNG")


def _radiograph(image: PhantomImage, tile: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(image.pixels).resize((tile, tile), Image.Resampling.BILINEAR), dtype=np.uint8)


def _volume(image: PhantomImage, tile: int) -> NDArray[np.uint8]:
    hu = image.pixels
    z, y, x = (n // 2 for n in hu.shape)
    sz, sy, sx = image.ref.spacing_mm or (1.0, 1.0, 1.0)
    half = tile // 2
    planes = (
        (windowed(hu[z], LUNG_WINDOW), sy, sx),
        (windowed(hu[z], SOFT_WINDOW), sy, sx),
        (windowed(hu[::-1, y], LUNG_WINDOW), sz, sx),
        (windowed(hu[::-1, :, x], LUNG_WINDOW), sz, sy),
    )
    square = np.zeros((tile, tile), dtype=np.uint8)
    for number, (plane, row_mm, column_mm) in enumerate(planes):
        size_mm = (plane.shape[0] * row_mm, plane.shape[1] * column_mm)
        scale = half / max(size_mm)
        height, width = max(int(size_mm[0] * scale), 1), max(int(size_mm[1] * scale), 1)
        small = np.asarray(Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR))
        top, left = (number // 2) * half + (half - height) // 2, (number % 2) * half + (half - width) // 2
        square[top : top + height, left : left + width] = small
    return square


def windowed(hu: NDArray[np.generic], window: tuple[float, float]) -> NDArray[np.uint8]:
    """Grey values of HU in a (centre, width) window."""
    center, width = window
    values = (np.asarray(hu, dtype=np.float32) - center) / width + 0.5
    return np.asarray(np.clip(values, 0, 1) * 255, dtype=np.uint8)
