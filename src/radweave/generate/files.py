"""Reports for image files, grouped into studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from radweave.base.errors import InputError, UnusableModelError, printable
from radweave.base.study import Modality, Report, View
from radweave.data.reading.images import read_radiograph
from radweave.generate.predictor import Predictor
from radweave.generate.views import views_for

SCAN_SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Images that make one study, with the views that were stated of them, or one file that was refused."""

    name: str
    images: tuple[Path, ...] = ()
    refused: str | None = None
    views: tuple[View, ...] = ()


def group_images(
    paths: Sequence[Path], *, one_study: bool, modality: Modality = "xray", views: Sequence[View] = ()
) -> list[FileGroup]:
    """Group files into studies: DICOM radiographs by patient and study, every other file by itself.

    A folder stands for the images in it. With ``one_study`` all files are views of one study. A file that cannot be
    read becomes a group of its own with the reason; the others go on. Of CT every scan is a study: a file, or the
    folder of a DICOM series. ``views`` states the view of all files, or one for each, folders counted by their files.

    Raises:
        InputError: for a folder without an image, or another number of views.
    """
    files = [file for path in paths for file in (_files(path) if modality == "xray" else _scans(path))]
    views_for(views, len(files))  # refuses another number
    each = (tuple(views),) * len(files) if len(views) < 2 else tuple((view,) for view in views)
    if one_study:
        return [FileGroup(name=_name(files[0]), images=tuple(files), views=tuple(views))]
    if modality == "ct":
        return [FileGroup(name=_name(file), images=(file,), views=own) for file, own in zip(files, each, strict=True)]
    groups: dict[str, list[int]] = {}
    refused: list[FileGroup] = []
    for index, file in enumerate(files):
        try:
            radiograph = read_radiograph(file)
        except InputError as error:
            refused.append(FileGroup(name=printable(file.name), refused=str(error)))
            continue
        key = f"{radiograph.patient_key}/{radiograph.study_key}" if radiograph.study_key else str(index)
        groups.setdefault(key, []).append(index)
    return [
        FileGroup(
            name=_name(files[members[0]]),
            images=tuple(files[index] for index in members),
            views=tuple(view for index in members for view in each[index]),
        )
        for members in groups.values()
    ] + refused


def _name(file: Path) -> str:
    return printable(file.name if file.is_dir() else Path(file.name.removesuffix(".gz")).stem)


def _scans(path: Path) -> list[Path]:
    """The scans of a folder: its volumes, or the folder itself as a DICOM series; a file stands for itself."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise InputError(
            "no scan in this folder", file=path, expected="NIfTI, NRRD or MetaImage files, or a DICOM series"
        )
    return [file for file in files if file.name.lower().endswith(SCAN_SUFFIXES)] or [path]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise InputError("no image in this folder", file=path, expected=", ".join(IMAGE_SUFFIXES))
    return found


def generate_files(
    predictor: Predictor, groups: Sequence[FileGroup], *, force: bool = False
) -> Iterator[Report | FileGroup]:
    """Write one report per group; a group that fails comes back with its reason.

    Raises:
        UnusableModelError: if the model fails, which no other group would change.
    """
    if predictor.refusal is not None:
        raise InputError(predictor.refusal)
    for group in groups:
        if group.refused is not None:
            yield group
            continue
        try:
            yield predictor.report(group.images, study_id=group.name, force=force, views=group.views)
        except UnusableModelError:
            raise
        except InputError as error:
            yield FileGroup(name=group.name, images=group.images, refused=str(error))
