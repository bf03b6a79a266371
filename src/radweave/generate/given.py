"""Images as a caller of Python has them: paths, PIL images, arrays, one or several views."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

from numpy.typing import NDArray
from PIL import Image

from radweave.base.errors import InputError
from radweave.data.ct import CtPreprocessing
from radweave.data.reading.memory import radiograph_from_array, radiograph_from_picture
from radweave.generate.pictures import Picture, read_pictures

View = Path | str | Image.Image | NDArray[Any]
"""One view: a path, a PIL image, or an array (H, W) or (H, W, channels) of uint8, uint16, or floats from 0 to 1."""
Images = View | Sequence[View]

_EXPECTED = "a path, a PIL image or an array, or a list of them"


def read_given(images: Images, ct: CtPreprocessing) -> tuple[list[Path], list[Picture]]:
    """Read the views of one study; return what each is called, and the views.

    An image in memory is white where it is dense, as viewers show it, and says no view; it is called by its place.

    Raises:
        InputError: for what is no image, an image that cannot be used, or one in memory where a CT scan is read.
    """
    views = list(images) if isinstance(images, (list, tuple)) else [images]
    if not views:
        raise InputError("no image given", field="images")
    names, pictures = [], []
    for number, view in enumerate(views, start=1):
        names.append(Path(view) if _is_path(view) else Path(f"image {number}"))
        if not _is_path(view):
            pictures.append(_in_memory(view, names[-1], ct))
    if not pictures:
        return names, read_pictures(names, ct)
    read = iter(pictures)
    return names, [
        read_pictures([name], ct)[0] if _is_path(view) else next(read) for name, view in zip(names, views, strict=True)
    ]


def _is_path(view: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(view, (str, os.PathLike))


def _in_memory(view: Any, name: Path, ct: CtPreprocessing) -> Picture:
    is_picture = isinstance(view, Image.Image)
    if not is_picture and not hasattr(view, "__array__"):
        raise InputError("not an image", field="images", got=type(view).__name__, expected=_EXPECTED)
    if ct.size is not None:
        raise InputError(
            "this run reads CT scans, whose spacing an image in memory does not say", field="images",
            got=type(view).__name__, expected="the path of a NIfTI, NRRD or MetaImage file, or of a DICOM series",
        )  # fmt: skip
    return radiograph_from_picture(view, name) if is_picture else radiograph_from_array(view, name)
