"""Reports for image files, grouped into studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radweave.base.errors import InputError, UnusableModelError, printable
from radweave.base.study import Modality, Report, View
from radweave.data.reading.dicom import read_dicom
from radweave.data.reading.images import sniff
from radweave.data.told import NOTHING
from radweave.generate.pictures import Picture, read_pictures
from radweave.generate.predictor import Predictor
from radweave.generate.views import views_for

SCAN_SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Images that make one study, with the views that were stated of them, or one file that was refused.

    ``needs_all``: a user said that the files are one study; else a file that cannot be read leaves the others.
    """

    name: str
    images: tuple[Path, ...] = ()
    refused: str | None = None
    views: tuple[View, ...] = ()
    needs_all: bool = False


def group_images(
    paths: Sequence[Path], *, one_study: bool, modality: Modality = "xray", views: Sequence[View] = ()
) -> list[FileGroup]:
    """Group files into studies: DICOM radiographs by patient and study, every other file by itself.

    Headers alone are read here, no pixels. A folder stands for the images in it. With ``one_study`` all files are views
    of one study. A file whose header cannot be read becomes a group of its own with the reason; the others go on. Of CT
    every scan is a study: a file, or the folder of a DICOM series. ``views`` states the view of all files, or one for
    each, folders counted by their files.

    Raises:
        InputError: for a folder without an image, or another number of views.
    """
    files = [file for path in paths for file in (_files(path) if modality == "xray" else _scans(path))]
    views_for(views, len(files))  # refuses another number
    each = (tuple(views),) * len(files) if len(views) < 2 else tuple((view,) for view in views)
    if one_study:
        return [FileGroup(name=_name(files[0]), images=tuple(files), views=tuple(views), needs_all=True)]
    if modality == "ct":
        return [FileGroup(name=_name(file), images=(file,), views=own) for file, own in zip(files, each, strict=True)]
    groups: dict[str, list[int]] = {}
    refused: list[FileGroup] = []
    for index, file in enumerate(files):
        try:
            key = _study_of(file) or str(index)
        except InputError as error:
            refused.append(FileGroup(name=printable(file.name), refused=str(error)))
            continue
        groups.setdefault(key, []).append(index)
    return [
        FileGroup(
            name=_name(files[members[0]]),
            images=tuple(files[index] for index in members),
            views=tuple(view for index in members for view in each[index]),
        )
        for members in groups.values()
    ] + refused


def _study_of(file: Path) -> str | None:
    """Patient and study of a DICOM file, by its header; None where it names no study, and for other files."""
    if sniff(file) != "dicom":
        return None
    header = read_dicom(file, pixels=False).header
    return f"{header.patient_key}/{header.study_key}" if header.study_key else None


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
    predictor: Predictor,
    groups: Sequence[FileGroup],
    *,
    force: bool = False,
    told: Mapping[str, str | None] = NOTHING,
) -> Iterator[Report | FileGroup]:
    """Write one report per group, each file read once; what fails comes back with its reason. ``told`` has sections by
    name, which are of one study.

    Of a study that was grouped by headers, the files that can be read are reported on.

    Raises:
        UnusableModelError: if the model fails, which no other group would change.
        InputError: if sections are told and there are several groups.
    """
    if predictor.refusal is not None:
        raise InputError(predictor.refusal)
    given = next((name for name, text in told.items() if text), None)
    if given is not None and len(groups) > 1:
        raise InputError(
            "a section is of one study, and there are several", field=given, got=f"{len(groups)} studies",
            expected="the images of one study, or --one-study",
        )  # fmt: skip
    for group in groups:
        if group.refused is not None:
            yield group
            continue
        try:
            readable, pictures, refused = _read(predictor, group)
            yield from refused
            if not readable.images:
                continue
            stated = views_for(readable.views, len(pictures))
            seen, warnings = predictor.settle(readable.images, pictures, force=force, stated=stated)
            yield predictor.report_on(seen, study_id=group.name, warnings=warnings, force=force, told=told)
        except UnusableModelError:
            raise
        except InputError as error:
            yield FileGroup(name=group.name, images=group.images, refused=str(error))


def _read(predictor: Predictor, group: FileGroup) -> tuple[FileGroup, list[Picture], list[FileGroup]]:
    """The group of the files that can be read, their pictures, and each other file with its reason.

    Raises:
        InputError: if one cannot be read and the group needs all.
    """
    if group.needs_all:
        return group, read_pictures(group.images, predictor.ct), []
    each = views_for(group.views, len(group.images))
    kept, pictures, refused = [], [], []
    for path, view in zip(group.images, each, strict=True):
        try:
            pictures += read_pictures([path], predictor.ct)
            kept.append((path, view))
        except InputError as error:
            refused.append(FileGroup(name=printable(path.name), images=(path,), refused=str(error)))
    views = tuple(view for _, view in kept if view is not None)
    return replace(group, images=tuple(path for path, _ in kept), views=views), pictures, refused
