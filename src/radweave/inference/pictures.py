"""The files of a study as a model sees them: radiographs in the model's order, or one CT scan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.core.errors import InputError, printable
from radweave.core.study import View
from radweave.data.ct import CtPreprocessing, covered, preprocess, to_bytes
from radweave.data.loader import view_id
from radweave.data.square import covered_by_square, to_square
from radweave.io.dicom import DOUBTFUL, NO_CHEST
from radweave.io.images import Radiograph, read_radiograph
from radweave.io.volumes import Volume, read_stored, to_standard

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
    """The view of a picture; a volume is axial."""
    return View.AXIAL if isinstance(picture, Volume) else picture.view


def read_scan(path: Path) -> Volume:
    """Read a scan; its warnings say whether it looks like HU, and like a chest.

    Values that are no HU make it doubtful, as an image that looks like noise is.

    Raises:
        InputError: as ``read_volume``.
    """
    from radweave.io.volumes import chest_warnings, value_warnings

    stored = read_stored(path)
    doubts = [DOUBTFUL + text for text in value_warnings(stored.values)]
    volume = to_standard(stored, path)
    return replace(volume, warnings=(*volume.warnings, *doubts, *chest_warnings(volume)))


def read_pictures(files: Sequence[Path], ct: CtPreprocessing) -> list[Picture]:
    """Read the files of one study.

    Raises:
        InputError: for a file that cannot be used or is of the other modality, or for more than one scan.
    """
    if ct.size is not None and len(files) > 1:
        raise InputError("the model reads one scan per study", field="images", got=len(files), expected=1)
    pictures: list[Picture] = []
    for path in files:
        try:
            pictures.append(read_radiograph(path) if ct.size is None else read_scan(path))
        except InputError as error:
            raise _of_this_run(error, "radiographs" if ct.size is None else "CT volumes") from None
    return pictures


def _of_this_run(error: InputError, wanted: str) -> InputError:
    """Name the run in errors about files of the other modality."""
    if not error.reason.startswith("is a"):
        return error
    reason = f"{error.reason}; this run reads {wanted}"
    return InputError(reason, file=error.file, field=error.field, got=error.got, expected=error.expected)


def model_input(pictures: Sequence[Picture], *, image_size: int, ct: CtPreprocessing) -> NDArray[np.uint8]:
    """Input of the model in 256 steps: squares (V, size, size), or one scan (1, D, H, W).

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
    """Extent of a map over a picture: (start, extent) along each of its axes, in shares of its size."""
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


# Frontal or lateral, by two sums: a rule for radiographs whose file does not say.
#
# A frontal chest is nearly its own mirror image in the middle tones, and brighter in the middle (spine, heart) than at
# either side of it (lungs). A lateral one is neither.
#
# Measured (``bench/bench_view_rule.py``) on half of IU X-Ray's patients, on whom the thresholds were not set, with
# 3,028 images: it answers for 94.3 %, and is right in 99.0 % of those. On 326 radiographs from publications, many of
# patients who lie in bed: it answers for 94.2 % and is right in 94.1 % of those; the 18 it gets wrong are all frontal.


SIDE: Final = 32
_WINDOW: Final = 9
_SHIFT: Final = 4
_LUNGS: Final = (slice(6, 11), slice(21, 26))
_MIDDLE: Final = slice(13, 19)
_ROWS: Final = slice(8, 24)
# The two figures' standard deviations over IU X-Ray are 0.278 and 0.887: each counts in its own.
_SYMMETRY_WEIGHT, _MIDDLE_WEIGHT = 3.6, 1.13
LATERAL_BELOW: Final = 1.98
FRONTAL_FROM: Final = 2.84


def guess_view(pixels: NDArray[np.float32]) -> View:
    """FRONTAL or LATERAL; UNKNOWN between the thresholds.

    Args:
        pixels: (H, W), white dense; resized to a square, whatever its ratio.
    """
    score = view_score(pixels)
    return View.LATERAL if score < LATERAL_BELOW else View.FRONTAL if score >= FRONTAL_FROM else View.UNKNOWN


def view_score(pixels: NDArray[np.float32]) -> float:
    """High for a frontal chest, low for a lateral one."""
    small = Image.fromarray(pixels.astype(np.float32)).resize((SIDE, SIDE), Image.Resampling.BOX)
    square = np.asarray(small, dtype=np.float64)
    return _SYMMETRY_WEIGHT * _symmetry(square - _blurred(square)) + _MIDDLE_WEIGHT * _brighter_middle(square)


def _blurred(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over a window, the border mirrored."""
    padded = np.pad(square, _WINDOW // 2, mode="symmetric")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (_WINDOW, _WINDOW))
    return np.asarray(windows.mean(axis=(2, 3)), dtype=np.float64)


def _symmetry(square: NDArray[np.float64]) -> float:
    """Correlation with the mirror image, at the best of a few shifts: a chest need not lie in the middle."""
    mirrored = square[:, ::-1]
    correlations = []
    for shift in range(-_SHIFT, _SHIFT + 1):
        one = square[:, max(0, shift) : SIDE + min(0, shift)]
        other = mirrored[:, max(0, -shift) : SIDE + min(0, -shift)]
        one, other = one - one.mean(), other - other.mean()
        correlations.append(float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum() + 1e-12)))
    return max(correlations)


def _brighter_middle(square: NDArray[np.float64]) -> float:
    """The middle columns against those of the lungs, in standard deviations of the column means."""
    columns = square[_ROWS].mean(axis=0)
    columns = (columns - columns.mean()) / (columns.std() + 1e-12)
    sides = [columns[part].mean() for part in _LUNGS]
    return float(columns[_MIDDLE].mean() - sum(sides) / len(sides))


# View of each radiograph of a study: stated by the user, stated by the file, or else found by a rule.


SAY = "state it with --view, in Python views="
GUESSED = f"the file states no view; taken as {{view}} by a rule that was right in 99 % of IU X-Ray; {SAY}"
UNDECIDED = f"the file states no view, and a rule does not tell; {SAY}"


def without_advice(warnings: Iterable[str]) -> tuple[str, ...]:
    """Warnings for readers of a page, who can state no view."""
    return tuple(text.removesuffix(f"; {SAY}") for text in warnings)


STATED = ("frontal", "lateral", "pa", "ap")
"""Views that a user can state."""


def stated_view(text: str) -> View:
    """The view a user names.

    Raises:
        InputError: for another word.
    """
    if not isinstance(text, str) or text.lower() not in STATED:
        raise InputError("no such view", field="--view", got=text, expected=f"one of {', '.join(STATED)}")
    return View(text.upper())


def views_for(stated: Sequence[View], count: int) -> Sequence[View | None]:
    """One stated view per image; None where none is.

    Raises:
        InputError: for another number than none, one for all, or one for each.
    """
    if not stated:
        return [None] * count
    if len(stated) not in (1, count):
        raise InputError("give one view for all images, or one for each", field="--view", got=len(stated),
                         expected=f"1 or {count}")  # fmt: skip
    return [*stated] * (count if len(stated) == 1 else 1)


def settle_views(
    pictures: Sequence[Picture], files: Sequence[Path], stated: Sequence[View | None], known: Sequence[int]
) -> tuple[list[Picture], list[str]]:
    """Give every radiograph its view; return the pictures, and what a user should know about it.

    Args:
        known: kinds of views (``view_id``) that the model was trained on. Only those are guessed, since the others mean
            nothing to it.

    Raises:
        InputError: if a view is stated of a scan.
    """
    settled: list[Picture] = []
    warnings: list[str] = []
    for picture, file, view in zip(pictures, files, stated, strict=True):
        if not isinstance(picture, Radiograph):
            if view is not None:
                raise InputError("a scan has no view to state", file=file, field="--view", got=view.value.lower())
            settled.append(picture)
            continue
        if view is not None:
            if view_id(picture.view) not in (view_id(View.UNKNOWN), view_id(view)):
                text = f"the file says {picture.view.value}, taken as {view.value} as stated"
                warnings.append(f"{printable(file.name)}: {text}")
        elif picture.view is View.UNKNOWN and any(kind != view_id(View.UNKNOWN) for kind in known):
            view = guess_view(picture.pixels)
            view = view if view_id(view) in known else View.UNKNOWN
            text = UNDECIDED if view is View.UNKNOWN else GUESSED.format(view=view.value.lower())
            warnings.append(f"{printable(file.name)}: {text}")
        settled.append(picture if view is None else replace(picture, view=view))
    return settled, warnings
