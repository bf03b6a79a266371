"""Radiographs that are in memory already: arrays and PIL images, in the form that files have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from radweave.base.errors import InputError
from radweave.data.reading.images import MAX_SIDE_PX, Radiograph, Raster, radiograph_from_raster
from radweave.data.reading.raster_parse import EXIF_ORIENTATION, RASTER_MODES, stored_values


def radiograph_from_array(pixels: Any, name: Path) -> Radiograph:
    """An array in memory, white dense, in the common form; ``name`` is what errors call it.

    Args:
        pixels: (H, W) or (H, W, channels), also with one channel first; uint8, uint16, or floats from 0 to 1.
        name: of the image.

    Raises:
        InputError: for another shape, kind of number or range, and as for a file.
    """
    try:
        array = np.asarray(pixels)
    except (TypeError, RuntimeError) as error:  # a tensor on another device, or one with gradients
        raise InputError("is no array that can be read", file=name, got=type(error).__name__) from None
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] > 4) or 0 in array.shape:
        shape = " x ".join(map(str, array.shape)) or "one number"
        raise InputError("is no image", file=name, got=shape, expected="(H, W) or (H, W, channels)")
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not 0 <= low <= high <= 1:
            raise InputError("floats go from 0 to 1", file=name, got=f"{low:g} to {high:g}")
        array = array.astype(np.float32)
    elif array.dtype not in (np.uint8, np.uint16):
        raise InputError("cannot be used", file=name, got=array.dtype, expected="uint8, uint16, or floats from 0 to 1")
    if max(array.shape) > MAX_SIDE_PX:
        raise InputError("the image is too large", file=name, expected=f"at most {MAX_SIDE_PX} a side")
    return radiograph_from_raster(name, Raster("memory", array, 1))


def radiograph_from_picture(picture: Image.Image, name: Path) -> Radiograph:
    """A PIL image in the common form; ``name`` is what errors call it.

    Raises:
        InputError: as for a file.
    """
    if picture.mode not in RASTER_MODES:
        raise InputError("the colour mode cannot be used", file=name, got=picture.mode, expected="grey or RGB")
    try:
        picture.load()
    except (OSError, SyntaxError, ValueError, EOFError):
        raise InputError("the image data is damaged or cut", file=name) from None
    if max(picture.size) > MAX_SIDE_PX:
        raise InputError("the image is too large", file=name, expected=f"at most {MAX_SIDE_PX} a side")
    orientation = int(picture.getexif().get(EXIF_ORIENTATION, 1))
    return radiograph_from_raster(name, Raster("memory", stored_values(picture), orientation))
