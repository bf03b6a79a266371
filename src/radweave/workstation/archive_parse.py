"""ZIP archives in the sandboxed child process: list of members, and their bytes.

The child cannot write files and has memory and time limits; names of members never become names of files. Nothing here
imports torch.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from typing import Any, Final

import numpy as np

from radweave.core.errors import InputError
from radweave.io import worker
from radweave.io.worker import Task

_END, _LARGE_END, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_LONGEST_END = 22 + 65_535
"""Bytes of the end record with the longest comment (APPNOTE.TXT 4.3.16)."""
_LARGE_END_BYTES, _LOCATOR_BYTES = 56, 20
_HEADER = b"PK\x03\x04"
_HEADER_BYTES = 30
_CODED = 0x1 | 0x20 | 0x40 | 0x2000
"""Flags of encrypted members and patches (APPNOTE.TXT 4.4.4)."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGED = "is no ZIP archive, or a damaged one"


def list_members(request: dict[str, Any]) -> worker.Message:
    """Names and sizes of an archive's files. A refusal names the exceeded limit of ``request``."""
    path, most = request["path"], int(request["files"])
    start, count = _directory(path, most)
    try:
        with zipfile.ZipFile(path) as archive:
            every = archive.infolist()
    except zipfile.BadZipFile:
        raise InputError(_DAMAGED) from None
    except UnicodeDecodeError:
        raise InputError("a name in the archive is no text, though it says that it is UTF-8", field="name") from None
    members = [member for member in every if not member.is_dir()]
    if len(members) > most:
        raise InputError("too many files in an archive", field="files", got=len(members), expected=f"at most {most}")
    for member in every:
        _refuse(member)
    if len(every) != count or len({member.orig_filename for member in every}) < count:
        raise InputError("lists a file twice, or another number of files than it says", field="files")
    total, allowed = sum(member.file_size for member in members), int(request["archive_bytes"])
    if total > allowed:
        raise InputError(
            "too large when unpacked", field="archive_bytes", got=f"{total} bytes", expected=f"at most {allowed}"
        )
    _refuse_overlaps(path, every, start)
    ratio, packed = int(request["archive_ratio"]), sum(member.compress_size for member in every)
    if total > ratio * max(packed, 1 << 16):
        raise InputError("unpacks to far more than it is", field="archive_ratio", expected=f"at most {ratio} times")
    return {"members": [[member.filename, member.file_size] for member in members]}, {}


def _directory(path: str, most: int) -> tuple[int, int]:
    """Start and length of the central directory by the end records alone.

    The library would first make an object of each of millions of members. Like the library this prefers the ZIP64 end
    record. The directory must end right before the end records: the library would otherwise search elsewhere.
    """
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LONGEST_END - _LARGE_END_BYTES - _LOCATOR_BYTES))
        tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22 or len(tail) != at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little"):
        raise InputError(_DAMAGED)
    count, length, start = (int.from_bytes(tail[at + a : at + b], "little") for a, b in ((10, 12), (12, 16), (16, 20)))
    if at >= _LOCATOR_BYTES and tail[at - _LOCATOR_BYTES :].startswith(_LOCATOR):
        at -= _LOCATOR_BYTES + _LARGE_END_BYTES
        if at < 0 or not tail[at:].startswith(_LARGE_END):
            raise InputError(_DAMAGED)
        count, length, start = (int.from_bytes(tail[at + n : at + n + 8], "little") for n in (32, 40, 48))
    # 46 bytes and a name is the least a member has; a longer directory has more members than it says.
    if count > 2 * most + 2 or length > (2 * most + 2) * (46 + 1024):
        raise InputError("too many files in an archive", field="files", got=count, expected=f"at most {most}")
    if start + length != size - len(tail) + at:
        raise InputError(_DAMAGED)
    return start, count


def _refuse_overlaps(path: str, members: list[zipfile.ZipInfo], end: int) -> None:
    """Refuse members that share bytes, with each other or with the list of members.

    One packed part can else be the content of thousands (D. Fifield, "A better zip bomb", WOOT 2019).
    """
    free = 0
    with open(path, "rb") as file:
        for member in sorted(members, key=lambda member: member.header_offset):
            file.seek(member.header_offset)
            header = file.read(_HEADER_BYTES)
            if member.header_offset < free or len(header) < _HEADER_BYTES or not header.startswith(_HEADER):
                raise InputError("files in the archive overlap, or one is not where it says")
            free = member.header_offset + _HEADER_BYTES + member.compress_size
            free += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    if free > end:
        raise InputError("files in the archive overlap with its list of files")


def _refuse(member: zipfile.ZipInfo) -> None:
    name = member.orig_filename
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in name:
        raise InputError("a name in the archive leads out of it", field="name")
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFDIR if member.is_dir() else stat.S_IFREG):
        raise InputError("holds a link or a device", field="name")
    if member.flag_bits & _CODED:
        raise InputError("is encrypted", field="name")
    if member.compress_type not in _METHODS:
        raise InputError("is packed in an unusual way", field="name", expected="stored or deflated files")


def read_members(request: dict[str, Any]) -> worker.Message:
    """Bytes of members by their index; each must have the stated size."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    with zipfile.ZipFile(request["path"]) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        for place in request["places"]:
            member = members[place]
            try:
                with archive.open(member) as file:
                    data = file.read(member.file_size + 1)
            except (zipfile.BadZipFile, zlib.error, EOFError):
                raise InputError("a file in the archive is damaged, or another than the archive says") from None
            if len(data) != member.file_size:
                raise InputError("a file in the archive has another size than it says")
            arrays[str(place)] = np.frombuffer(data, np.uint8)
    return {}, arrays


TASKS: Final[dict[str, Task]] = {"list": list_members, "read": read_members}
