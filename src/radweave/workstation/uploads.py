"""Uploads: files, folders and ZIP archives, stored under generated names and grouped into studies.

A file's own name is stored in the database only: not on the disk, in a path or in a message. An upload is complete or
absent: its folder is written aside and renamed.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import sqlalchemy as sa

from radweave.core.errors import InputError, printable
from radweave.core.storage import write_folder
from radweave.core.study import Modality
from radweave.inference.bulk import IMAGE_SUFFIXES, SCAN_SUFFIXES, FileGroup, group_images
from radweave.io import worker
from radweave.io.dicom import read_header
from radweave.io.sandbox import lasting_child
from radweave.io.volumes import series_files
from radweave.workstation import log, store
from radweave.workstation.archive import scan_of
from radweave.workstation.database import Database, studies
from radweave.workstation.disk import Take
from radweave.workstation.events import Metrics
from radweave.workstation.settings import Limits, Settings
from radweave.workstation.store import NewStudy

_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_AT_ONCE = 64 << 20
_PARSERS = "radweave.workstation.archive_parse"
_ARCHIVES_S = 120.0
"""Time limit of listing and unpacking all archives of an upload."""
_MOST_REFUSED = 16
"""Refused files of an upload that become a study each; more become one study."""
_SUFFIXES = (*SCAN_SUFFIXES, *IMAGE_SUFFIXES)


@dataclass(frozen=True, slots=True)
class Incoming:
    """An incoming file: its name, with its folders in the browser, its size, and a function that copies it."""

    name: str
    size: Callable[[], int]
    copy_to: Callable[[Path], None]


def from_stream(name: str, stream: IO[bytes]) -> Incoming:
    """An uploaded file."""

    def copy(path: Path) -> None:
        stream.seek(0)
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)

    return Incoming(name, lambda: stream.seek(0, os.SEEK_END), copy)


def from_path(path: Path, name: str) -> Incoming:
    """A file of a watched folder."""

    def copy(target: Path) -> None:
        shutil.copyfile(path, target)

    return Incoming(name, lambda: path.stat().st_size, copy)


def take_in(
    incoming: Sequence[Incoming],
    place: Path,
    limits: Limits,
    take: Take = lambda size: None,
    *,
    modality: Modality,
    one_study: bool,
) -> tuple[Path, list[NewStudy]]:
    """Store files below ``place`` and group them; return the folder of this upload and its studies.

    ``take`` gets the size of each file before it is stored, and raises if it does not fit.

    Raises:
        InputError: naming the exceeded limit, or for a refused archive. Nothing is left then.
    """
    if not incoming:
        raise InputError("no file given", field="files")
    if len(incoming) > limits.files:
        raise InputError("too many files", field="files", got=len(incoming), expected=f"at most {limits.files}")
    folder = place / uuid.uuid4().hex
    with write_folder(folder) as partial:
        laid = _lay(incoming, partial, limits, take)
        if not laid:
            raise InputError("the archive holds no file", field="files")
        groups = _groups(partial, modality, one_study=one_study)
        lying = {path.name: path for path in partial.rglob("file*")}
        studies = [_study(_bounded(group, limits, modality), laid, partial, folder, lying) for group in groups]
        studies = _merge_refused(studies, PurePosixPath(incoming[0].name).name, partial, folder)
    return folder, studies


def _merge_refused(studies: list[NewStudy], name: str, partial: Path, folder: Path) -> list[NewStudy]:
    """Merge many refused files into one study, which would otherwise fill the work list.

    Raises:
        InputError: if all files are refused.
    """
    refused = [study for study in studies if study.refused is not None]
    if len(refused) <= _MOST_REFUSED:
        return studies
    reason = f"{len(refused)} files cannot be taken, the first of them: {refused[0].refused}"
    if len(refused) == len(studies):
        raise InputError(reason, field="files")
    for study in refused:
        for path, _ in study.files:
            (partial / path.relative_to(folder)).unlink()
    return [study for study in studies if study.refused is None] + [NewStudy(printable(name), refused=reason)]


def _lay(incoming: Sequence[Incoming], folder: Path, limits: Limits, take: Take) -> dict[str, str]:
    """Copy files under generated names; return path below ``folder`` -> upload name.

    No archive is unpacked before all of them together are within the limits.
    """
    laid: dict[str, str] = {}
    places: dict[str, Path] = {}
    archives: list[tuple[str, Path]] = []
    for one in incoming:
        path = _place(one.name, folder, places, len(laid) + len(archives))
        take(one.size())
        one.copy_to(path)
        with path.open("rb") as file:
            start = file.read(4)
        if start in (_ZIP, _EMPTY_ZIP):
            archives.append((one.name, path))
        else:
            laid[path.relative_to(folder).as_posix()] = one.name
    ends = time.monotonic() + _ARCHIVES_S
    listed = [(name, path, _members(path, limits, ends)) for name, path in archives]
    count = len(laid) + sum(len(members) for _, _, members in listed)
    if count > limits.files:
        raise InputError("too many files", field="files", got=count, expected=f"at most {limits.files}")
    total = sum(size for _, _, members in listed for _, _, size in members)
    if total > limits.archive_bytes:
        raise InputError(
            "the archives are too large when unpacked",
            field="archive_bytes",
            got=f"{total} bytes",
            expected=f"at most {limits.archive_bytes}",
        )
    for above, path, members in listed:
        for name, data in _unpacked(path, members, ends):
            take(len(data))
            member = _place(f"{above}/{name}", folder, places, len(laid))
            member.write_bytes(data)
            laid[member.relative_to(folder).as_posix()] = name
        path.unlink()
    return laid


def _place(name: str, folder: Path, places: dict[str, Path], number: int) -> Path:
    """Path of a stored file: a numbered folder per original folder, a number, and a known suffix."""
    pure = PurePosixPath(name.replace("\\", "/"))
    above = pure.parent.as_posix()
    if above not in places:
        places[above] = folder / f"folder{len(places):04}"
        places[above].mkdir()
    suffix = next((end for end in _SUFFIXES if pure.name.lower().endswith(end)), "")
    return places[above] / f"file{number:05}{suffix}"


def _members(path: Path, limits: Limits, ends: float) -> list[tuple[int, str, int]]:
    """Index, name and size of each file in an archive, without hidden ones and ``__MACOSX``."""
    request = limits.model_dump(include={"files", "archive_bytes", "archive_ratio"})
    header, _ = _from_child("list", path, request, ends)
    return [(place, name, size) for place, (name, size) in enumerate(header["members"]) if _is_wanted(name)]


def _unpacked(path: Path, members: list[tuple[int, str, int]], ends: float) -> Iterator[tuple[str, memoryview]]:
    """Name and bytes of each member; small ones are read in batches."""
    members = list(members)
    while members:
        some = [members.pop(0)]
        total = some[0][2]
        while members and total + members[0][2] <= _AT_ONCE:
            total += members[0][2]
            some.append(members.pop(0))
        _, arrays = _from_child("read", path, {"places": [place for place, _, _ in some]}, ends)
        for place, name, _ in some:
            yield name, arrays[str(place)].data


def _from_child(task: str, path: Path, request: dict[str, Any], ends: float) -> worker.Message:
    left = ends - time.monotonic()
    if left <= 0:
        raise InputError("unpacking takes too long", field="files", expected=f"at most {_ARCHIVES_S:g} s")
    try:
        return lasting_child(_PARSERS).call(task, {"path": str(path), **request}, timeout_s=left)
    except InputError as error:  # without the path
        raise InputError(error.reason, field=error.field, got=error.got, expected=error.expected) from None


def _is_wanted(name: str) -> bool:
    parts = [part for part in name.replace("\\", "/").split("/") if part != "."]
    return not any(part.startswith((".", "__MACOSX")) for part in parts)


def _groups(folder: Path, modality: Modality, *, one_study: bool) -> list[FileGroup]:
    """Group an upload into studies: radiographs by their headers, CT by file or folder of a series."""
    if modality == "xray" or one_study:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return group_images(files, one_study=one_study, modality=modality)
    groups = []
    for series in sorted(path for path in folder.iterdir() if any(path.iterdir())):
        groups += group_images([series], one_study=False, modality=modality)
    return groups


def _bounded(group: FileGroup, limits: Limits, modality: Modality) -> FileGroup:
    """Refuse a group of radiographs above the limit of views."""
    if modality == "ct" or group.refused is not None or len(group.images) <= limits.views:
        return group
    reason = f"more images than one study may have: {len(group.images)}, at most {limits.views}"
    return replace(group, refused=reason)


def _study(group: FileGroup, laid: dict[str, str], partial: Path, folder: Path, lying: Mapping[str, Path]) -> NewStudy:
    """A group as a study with the final paths of its files; ``lying`` maps names to present paths."""
    images = group.images or tuple(lying[name] for name in (group.name,) if name in lying)
    below = [image.relative_to(partial) for image in images]
    names = [laid.get(path.as_posix()) or _inside(path, laid) for path in below]
    refused = group.refused
    for path, name in zip(below, names, strict=True):
        refused = refused and refused.replace(str(partial / path), printable(name))
    return NewStudy(
        name=printable(PurePosixPath(names[0].replace("\\", "/")).name if names else group.name),
        files=tuple((folder / path, printable(name)[:1_000]) for path, name in zip(below, names, strict=True)),
        refused=refused and refused.replace(str(partial), "the upload"),
    )


def _inside(series: Path, laid: dict[str, str]) -> str:
    """Upload name of a series: the folder of its first file, or else that file."""
    first = next(name for path, name in laid.items() if path.startswith(f"{series.as_posix()}/"))
    above = PurePosixPath(first.replace("\\", "/")).parent.name
    return above or first


# Later images of a study on the work list. It is drafted again with all images as a new version. A signed study does
# not change; later images are logged and counted. Known instances are ignored.


def as_incoming(files: Sequence[Path]) -> list[Incoming]:
    """Files of one study under generic names."""
    return [from_path(file, f"study/{number:05}.dcm") for number, file in enumerate(files)]


def chosen(files: Sequence[Path], modality: Modality) -> list[Path]:
    """Images of a study to draft: one series for CT, else all."""
    return scan_of(files) if modality == "ct" else list(files)


class LateImages:
    """Adds later images to studies; ``wake`` is called when a study is queued again."""

    def __init__(
        self, settings: Settings, database: Database, metrics: Metrics, modality: Modality, wake: Callable[[], None]
    ) -> None:
        self._settings, self._database, self._metrics = settings, database, metrics
        self._modality, self._wake = modality, wake

    def take(self, source: str, files: Sequence[Path]) -> bool:
        """Add the new ones of ``files``, each named after its instance, to the study with this ``source``.

        Returns:
            False to retry later.
        """
        with self._database.reading() as connection:
            study = connection.execute(sa.select(studies).where(studies.c.source == source)).first()
            held = [] if study is None else _flat(store.uploaded(connection, study.id))
        if study is None or study.state == "refused":
            self._metrics.count("studies_again")
            return True
        known = {_instance(file) for file in held}
        new = [file for file in files if file.stem not in known]
        whole = chosen([*held, *new], self._modality)
        new = [file for file in new if file in whole]
        if not new:
            self._metrics.count("studies_again")
            return True
        if study.state in ("signed", "rejected"):
            action = f"images came after it was {study.state}"
            with self._database.writing() as connection:
                log.append(connection, action, study=study.id, details={"files": len(new)})
            if study.state == "signed":
                self._metrics.count("images_after_signing", len(new))
            else:
                self._metrics.count("studies_again")
            return True
        return study.state in store.EXTENDABLE and self._grow(study.id, whole, len(new))

    def _grow(self, study: str, whole: Sequence[Path], new: int) -> bool:
        place = self._settings.files.absolute()
        try:
            folder, taken = take_in(
                as_incoming(whole), place, self._settings.limits, modality=self._modality, one_study=False
            )
        except InputError:
            self._metrics.count("studies_refused")
            return True
        if len(taken) != 1 or taken[0].refused is not None:
            shutil.rmtree(folder, ignore_errors=True)
            self._metrics.count("studies_refused")
            return True
        with self._database.writing() as connection:
            done = store.add_images(connection, study, taken[0].files, new)
        if not done:  # signed or being drafted meanwhile: retry
            shutil.rmtree(folder, ignore_errors=True)
            return False
        # Older files stay until the next start: another study may be reading them as its prior.
        self._metrics.count("studies_grew")
        self._wake()
        return True


def _flat(paths: Sequence[str]) -> list[Path]:
    return [file for path in map(Path, paths) for file in (series_files(path) if path.is_dir() else [path])]


def _instance(file: Path) -> str | None:
    try:
        return read_header(file).sop_key
    except InputError:
        return None
