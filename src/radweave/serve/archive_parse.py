"""ZIP archives, parsed in the limited child process: what one holds, and the bytes of its members.

The child can write no file, has a memory and a time limit, and answers with bytes; the names of members never become
names of files. Nothing here imports torch.
"""

from __future__ import annotations

import stat
import zipfile
from typing import Any, Final

import numpy as np

from radweave.base.errors import InputError
from radweave.data.reading import wire
from radweave.data.reading.worker import Task

_END = b"PK\x05\x06"
_LONGEST_END = 22 + 65_535
"""Bytes of the end record with the longest comment (APPNOTE.TXT 4.3.16)."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def list_members(request: dict[str, Any]) -> wire.Message:
    """Names and sizes of an archive's files. Each limit of ``request`` is named where it is passed."""
    path, most = request["path"], int(request["files"])
    _refuse_many(path, most)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            packed = sum(member.compress_size for member in archive.infolist())
    except zipfile.BadZipFile:
        raise InputError("is no ZIP archive, or a damaged one") from None
    except UnicodeDecodeError:
        raise InputError("a name in the archive is no text, though it says that it is UTF-8", field="name") from None
    if len(members) > most:
        raise InputError("too many files in an archive", field="files", got=len(members), expected=f"at most {most}")
    for member in members:
        _refuse(member)
    total, allowed = sum(member.file_size for member in members), int(request["archive_bytes"])
    if total > allowed:
        raise InputError(
            "too large when unpacked", field="archive_bytes", got=f"{total} bytes", expected=f"at most {allowed}"
        )
    ratio = int(request["archive_ratio"])
    if total > ratio * max(packed, 1 << 16):
        raise InputError("unpacks to far more than it is", field="archive_ratio", expected=f"at most {ratio} times")
    return {"members": [[member.filename, member.file_size] for member in members]}, {}


def _refuse_many(path: str, most: int) -> None:
    """Look at the end record alone: the library would make an object of each of millions of members first."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LONGEST_END))
        tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise InputError("is no ZIP archive, or a damaged one")
    count = int.from_bytes(tail[at + 10 : at + 12], "little")
    directory = int.from_bytes(tail[at + 12 : at + 16], "little")
    # 46 bytes and a name is the least a member has; a longer directory has more members than it says.
    if count > 2 * most + 2 or directory > (2 * most + 2) * (46 + 1024):
        raise InputError("too many files in an archive", field="files", got=count, expected=f"at most {most}")


def _refuse(member: zipfile.ZipInfo) -> None:
    name = member.orig_filename
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in name:
        raise InputError("a name in the archive leads out of it", field="name")
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        raise InputError("holds a link or a device", field="name")
    if member.flag_bits & 0x1:
        raise InputError("is encrypted", field="name")
    if member.compress_type not in _METHODS:
        raise InputError("is packed in an unusual way", field="name", expected="stored or deflated files")


def read_members(request: dict[str, Any]) -> wire.Message:
    """The bytes of some members, by their place in the list; none has more than the archive says."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    with zipfile.ZipFile(request["path"]) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        for place in request["places"]:
            member = members[place]
            with archive.open(member) as file:
                data = file.read(member.file_size + 1)
            if len(data) != member.file_size:
                raise InputError("a file in the archive has another size than it says")
            arrays[str(place)] = np.frombuffer(data, np.uint8)
    return {}, arrays


TASKS: Final[dict[str, Task]] = {"list": list_members, "read": read_members}
