"""The files of a study as a model sees them: radiographs in the model's order, or one CT scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.study import View
from radweave.data.ct import CtPreprocessing, covered, preprocess, to_bytes
from radweave.data.preprocessing import covered_by_square, to_square
from radweave.data.reading.images import Radiograph, read_radiograph
from radweave.data.reading.integrity import DOUBTFUL, NO_CHEST
from radweave.data.reading.volumes import Volume, read_stored, to_standard

Picture = Radiograph | Volume


class RefusedError(InputError):
    """An image that can be read and shown, but is not drafted on; ``kind`` says what stands against it."""

    kind: ClassVar[str]


class DoubtfulError(RefusedError):
    """Its integrity is doubtful."""

    kind = "integrity"


class NoChestError(RefusedError):
    """The file says, or shows beyond doubt, that it is another part of the body."""

    kind = "body part"


class UnlikeError(RefusedError):
    """It is unlike the images that the run was trained on."""

    kind = "unfamiliar"


class MixtureError(RefusedError):
    """The images are of several patients or studies. No report can be about them together."""

    kind = "mixture"


def view_of(picture: Picture) -> View:
    """Which view it is; a volume is axial."""
    return View.AXIAL if isinstance(picture, Volume) else picture.view


def read_scan(path: Path) -> Volume:
    """Read a scan; its warnings say whether it looks like HU, and like a chest.

    Values that are no HU make it doubtful, as an image that looks like noise is.

    Raises:
        InputError: as ``read_volume``.
    """
    from radweave.data.reading.hounsfield import chest_warnings, value_warnings

    stored = read_stored(path)
    doubts = [DOUBTFUL + text for text in value_warnings(stored.values)]
    volume = to_standard(stored, path)
    return replace(volume, warnings=(*volume.warnings, *doubts, *chest_warnings(volume)))


def read_pictures(files: Sequence[Path], ct: CtPreprocessing) -> list[Picture]:
    """Read the files of one study.

    Raises:
        InputError: for a file that cannot be used or is of the other modality, or for more than one scan.
    """
    if ct.size is None:
        return [_as_xray(path) for path in files]
    if len(files) > 1:
        raise InputError("the model reads one scan per study", field="images", got=len(files), expected=1)
    return [_as_ct(path) for path in files]


def _as_xray(path: Path) -> Radiograph:
    try:
        return read_radiograph(path)
    except InputError as error:
        raise _of_this_run(error, "radiographs") from None


def _as_ct(path: Path) -> Volume:
    try:
        return read_scan(path)
    except InputError as error:
        raise _of_this_run(error, "CT volumes") from None


def _of_this_run(error: InputError, wanted: str) -> InputError:
    """Where a file is of the other modality, say that it is the run which reads something else."""
    if not error.reason.startswith("is a"):
        return error
    reason = f"{error.reason}; this run reads {wanted}"
    return InputError(reason, file=error.file, field=error.field, got=error.got, expected=error.expected)


def model_input(pictures: Sequence[Picture], *, image_size: int, ct: CtPreprocessing) -> NDArray[np.uint8]:
    """What the model sees, in 256 steps: squares (V, size, size), or one scan (1, D, H, W).

    Raises:
        InputError: if a scan cannot be prepared.
    """
    made = []
    for picture in pictures:
        if isinstance(picture, Radiograph):
            made.append(to_square(picture.pixels, image_size))
            continue
        try:
            made.append(to_bytes(preprocess(picture, ct), ct))
        except ValueError as error:
            raise InputError(str(error), field="spacing") from None
    return np.stack(made)


def covered_by_map(picture: Picture, *, image_size: int, ct: CtPreprocessing) -> tuple[tuple[float, float], ...]:
    """Where a map lies over a picture: (start, extent) along each of its axes, in shares of its size."""
    if isinstance(picture, Radiograph):
        height, width = picture.pixels.shape
        return covered_by_square(height, width, image_size)
    return covered(picture, ct)


def refuse_doubtful(pictures: Sequence[Picture], files: Sequence[Path]) -> None:
    """A draft about a damaged image, or about a knee, would look like any other draft.

    Raises:
        DoubtfulError: if a reader doubts one.
        NoChestError: if one is no chest.
    """
    for start, error in ((DOUBTFUL, DoubtfulError), (NO_CHEST, NoChestError)):
        for picture, path in zip(pictures, files, strict=True):
            for warning in picture.warnings:
                if warning.startswith(start):
                    raise error(f"{warning}; give --force (force=True) to report on it anyway", file=path)


def refuse_mixture(pictures: Sequence[Picture], files: Sequence[Path]) -> None:
    """One report is about one patient and one study, as far as the files say whose they are.

    Raises:
        MixtureError: if they are of several.
    """
    for field, keys in (
        ("PatientID", {item.patient_key for item in pictures if item.patient_key is not None}),
        ("StudyInstanceUID", {item.study_key for item in pictures if item.study_key is not None}),
    ):
        if len(keys) > 1:
            raise MixtureError(
                "the images belong to different patients or studies; ask for one report per study",
                file=files[0].parent,
                field=field,
                got=f"{len(keys)} different values",
                expected="one",
            )
