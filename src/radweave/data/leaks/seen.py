"""What one image file is found to be, by itself: many can be looked at side by side."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.study import ImageRef
from radweave.data.dataset import Dataset
from radweave.data.leaks.file_hashes import content_hash
from radweave.data.leaks.pictures import Look, flat_scan, looks_of
from radweave.data.reading.integrity import DOUBTFUL


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An image file: ``digest`` of its bytes, and what was found of them as far as they could be read.

    ``error`` says why they could not. ``content`` is a digest of the pixels or voxels, ``patient`` the header's patient
    as a digest, ``doubts`` are signs of damage without their numbers, and ``looks`` what copies are found by.
    """

    digest: str | None = None
    error: str | None = None
    content: bytes | None = None
    patient: str | None = None
    doubts: tuple[str, ...] = ()
    looks: tuple[Look, ...] = ()


def see_image(dataset: Dataset, image: ImageRef, *, reads: bool) -> SeenImage:
    """Look at the file of an image; unless ``reads``, only whether it is there, and for its hash where none is known.

    One of another modality than the data set is not opened.
    """
    seen = SeenImage()
    if image.modality != dataset.card.modality:
        return seen
    try:
        path = dataset.image_path(image.path)
        seen = SeenImage(content_hash(path) if reads or image.sha256 is None else image.sha256)
        return _decoded(path, image, seen) if reads else seen
    except InputError as error:
        return replace(seen, error=error.reason)
    except OSError as error:
        return replace(seen, error=f"image cannot be read: {error.strerror}")


def _decoded(path: Path, image: ImageRef, seen: SeenImage) -> SeenImage:
    values: NDArray[Any]
    doubts: tuple[str, ...] = ()
    if image.modality == "xray":
        from radweave.data.reading.images import read_radiograph

        radiograph = read_radiograph(path)
        flat, patient = np.asarray(radiograph.pixels), radiograph.patient_key
        # Eight bits, as all that learns from them sees: pictures that differ by less are one.
        values = np.empty(flat.shape, np.uint8)
        np.multiply(flat, np.float32(255), out=values, casting="unsafe")
        doubts = tuple(re.sub(r"\d+", "N", text) for text in radiograph.warnings if text.startswith(DOUBTFUL))
    else:
        from radweave.data.reading.volumes import read_volume

        volume = read_volume(path)
        values, flat, patient = volume.hu, flat_scan(volume.hu), volume.patient_key
    content = hashlib.sha256(str(values.shape).encode())
    content.update(np.ascontiguousarray(values).data)
    return replace(seen, content=content.digest()[:16], patient=patient, doubts=doubts, looks=looks_of(flat))
