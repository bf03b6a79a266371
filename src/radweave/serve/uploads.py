"""What comes in: uploaded files, folders and archives, laid under names of ours and grouped into studies.

A file's own name is kept in the database and nowhere else: not on the disk, not in a path, not in a message. An upload
is whole or absent: its folder is written aside and renamed.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

from radweave.base.errors import InputError, printable
from radweave.base.storage import write_folder
from radweave.base.study import Modality
from radweave.data.reading import wire
from radweave.data.reading.sandbox import Sandbox
from radweave.generate.files import IMAGE_SUFFIXES, SCAN_SUFFIXES, FileGroup, group_images
from radweave.serve.room import Take
from radweave.serve.settings import Limits
from radweave.serve.store import NewStudy

_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_AT_ONCE = 64 << 20
_ARCHIVES_S = 120.0
"""What listing and unpacking all archives of an upload may take."""
_MOST_REFUSED = 16
"""Refused files of an upload that become a study each; more are one refusal."""
_SUFFIXES = (*SCAN_SUFFIXES, *IMAGE_SUFFIXES)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A file as it comes: what it is called, with the folders a browser says it was in, and what copies it."""

    name: str
    size: Callable[[], int]
    copy_to: Callable[[Path], None]


def from_stream(name: str, stream: IO[bytes]) -> Incoming:
    """A file that was received."""

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
    """Lay files below ``place`` and group them; return the folder of this upload and its studies.

    ``take`` gets the bytes of each file before it is laid, and raises where there is no room.

    Raises:
        InputError: naming the limit that was passed, or for an archive that is not taken. Nothing is left then.
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
        studies = _joined(studies, PurePosixPath(incoming[0].name).name, partial, folder)
    return folder, studies


def _joined(studies: list[NewStudy], name: str, partial: Path, folder: Path) -> list[NewStudy]:
    """The studies, very many refused files as one: they would fill the work list, and say one thing.

    Raises:
        InputError: where nothing else came.
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
    """Copy files under names of ours; path below ``folder`` -> the name each came with.

    No archive is unpacked before all of them together are known to keep to the limits.
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
    """Where a file is laid: a numbered folder for each folder it came from, a number, and a suffix that is known."""
    pure = PurePosixPath(name.replace("\\", "/"))
    above = pure.parent.as_posix()
    if above not in places:
        places[above] = folder / f"folder{len(places):04}"
        places[above].mkdir()
    suffix = next((end for end in _SUFFIXES if pure.name.lower().endswith(end)), "")
    return places[above] / f"file{number:05}{suffix}"


def _members(path: Path, limits: Limits, ends: float) -> list[tuple[int, str, int]]:
    """Place, name and size of each file in an archive; hidden ones and ``__MACOSX`` left out."""
    request = limits.model_dump(include={"files", "archive_bytes", "archive_ratio"})
    header, _ = _from_child("list", path, request, ends)
    return [(place, name, size) for place, (name, size) in enumerate(header["members"]) if _is_wanted(name)]


def _unpacked(path: Path, members: list[tuple[int, str, int]], ends: float) -> Iterator[tuple[str, memoryview]]:
    """Name and bytes of each of these members, many small ones at once."""
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


def _from_child(task: str, path: Path, request: dict[str, Any], ends: float) -> wire.Message:
    left = ends - time.monotonic()
    if left <= 0:
        raise InputError("unpacking takes too long", field="files", expected=f"at most {_ARCHIVES_S:g} s")
    try:
        return _child().call(task, {"path": str(path), **request}, timeout_s=left)
    except InputError as error:  # without the file's place
        raise InputError(error.reason, field=error.field, got=error.got, expected=error.expected) from None


def _is_wanted(name: str) -> bool:
    parts = [part for part in name.replace("\\", "/").split("/") if part != "."]
    return not any(part.startswith((".", "__MACOSX")) for part in parts)


@lru_cache(maxsize=1)
def _child() -> Sandbox:
    import atexit

    child = Sandbox("radweave.serve.archive_parse", size=1)
    atexit.register(child.close)
    return child


def _groups(folder: Path, modality: Modality, *, one_study: bool) -> list[FileGroup]:
    """The studies of an upload: of radiographs by what the headers say, of CT a file or the folder of a series."""
    if modality == "xray" or one_study:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return group_images(files, one_study=one_study, modality=modality)
    groups = []
    for series in sorted(path for path in folder.iterdir() if any(path.iterdir())):
        groups += group_images([series], one_study=False, modality=modality)
    return groups


def _bounded(group: FileGroup, limits: Limits, modality: Modality) -> FileGroup:
    """A group, refused where its radiographs would be more than are read, and held in memory, for one draft."""
    if modality == "ct" or group.refused is not None or len(group.images) <= limits.views:
        return group
    reason = f"more images than one study may have: {len(group.images)}, at most {limits.views}"
    return replace(group, refused=reason)


def _study(group: FileGroup, laid: dict[str, str], partial: Path, folder: Path, lying: Mapping[str, Path]) -> NewStudy:
    """A group as a study, its files where they lie in the end; ``lying`` has where each file lies now, by its name."""
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
    """What the folder of a series was called: the folder of its first file, or else that file."""
    first = next(name for path, name in laid.items() if path.startswith(f"{series.as_posix()}/"))
    above = PurePosixPath(first.replace("\\", "/")).parent.name
    return above or first
