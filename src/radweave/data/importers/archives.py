"""Texts from untrusted archives and XML, unpacked in memory only."""

from __future__ import annotations

import bz2
import io
import lzma
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO
from xml.parsers import expat

from radweave.core.errors import InputError
from radweave.io.volume_parse import GzipStream

LARGEST_MEMBER_BYTES = 4 << 20
LARGEST_ARCHIVE_BYTES = 2 << 30
MOST_MEMBERS = 50_000
"""Files and folders in an archive; that of IU X-Ray has some 4,000."""
MOST_PADDING_BYTES = MOST_HEADER_BYTES = 1 << 20
DEEPEST_ELEMENT = 64


def tar_texts(archive: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield ``(name, bytes)`` of the files with ``suffix`` in a tar file, compressed or not, in the archive's order.

    The checksum is compared after the last file: the yielded files are valid only if nothing is raised.

    Raises:
        InputError: for a damaged archive, a member that is a link or device, whose name leads out of the archive,
            or that is larger than ``LARGEST_MEMBER_BYTES``; and for more than ``LARGEST_ARCHIVE_BYTES`` in all.
    """
    try:
        with _plain(archive) as plain:
            metered = _Metered(archive, plain)
            # As a stream, so that a member's size is checked before it is unpacked.
            with tarfile.open(fileobj=metered, mode="r|") as members:
                for number, member in enumerate(members):
                    _check_member(archive, number, member)
                    metered.of_member = 0
                    if member.isfile() and member.name.lower().endswith(suffix):
                        content = members.extractfile(member)
                        if content is not None:
                            yield member.name, content.read()
            _read_to_end(archive, plain)
    except InputError as error:
        raise InputError(error.reason, file=archive, got=error.got, expected=error.expected) from None
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"not a readable archive: {error}", file=archive) from None
    except (ValueError, RecursionError) as error:  # tarfile reads the numbers of a header as they come
        raise InputError(f"not a readable archive: {type(error).__name__} in a header", file=archive) from None


class _Metered(io.RawIOBase):
    """An archive's plain bytes with limits: tarfile reads any number of headers of any length for one member.

    Raises:
        InputError: by ``read``, for a member above its limit, or all of them together.
    """

    def __init__(self, archive: Path, plain: IO[bytes]) -> None:
        self._archive, self._plain = archive, plain
        self.of_member = self._total = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._plain.read(size)
        self.of_member += len(data)
        self._total += len(data)
        if self.of_member > LARGEST_MEMBER_BYTES + MOST_HEADER_BYTES or self._total > LARGEST_ARCHIVE_BYTES:
            raise InputError(
                "archive unpacks to more than is read",
                file=self._archive,
                expected=f"at most {LARGEST_MEMBER_BYTES} bytes a member, {LARGEST_ARCHIVE_BYTES} in all",
            )
        return data


def _plain(archive: Path) -> IO[bytes]:
    """The decompressed bytes, by a reader that verifies checksums, which tarfile does not."""
    with archive.open("rb") as file:
        head = file.read(6)
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(GzipStream(archive.open("rb")))
    if head.startswith(b"BZh"):
        return bz2.BZ2File(archive)
    return lzma.LZMAFile(archive) if head == b"\xfd7zXZ\0" else archive.open("rb")


def _read_to_end(archive: Path, plain: IO[bytes]) -> None:
    """Read beyond the end mark, where tarfile stops, up to the checksum."""
    rest = 0
    while chunk := plain.read(1 << 16):
        rest += len(chunk)
        if rest > MOST_PADDING_BYTES:
            raise InputError("data goes on behind the end of the archive", file=archive)


def _check_member(archive: Path, number: int, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
        raise InputError("a member's name leads out of the archive; refused", file=archive, got=f"member {number}")
    if not (member.isfile() or member.isdir()):
        raise InputError("a member is a link or a device; refused", file=archive, got=f"member {number}")
    if member.size > LARGEST_MEMBER_BYTES or number >= MOST_MEMBERS:
        raise InputError(
            "a member is too large, or there are too many",
            file=archive,
            got=f"{member.size} bytes in member {number}",
            expected=f"at most {LARGEST_MEMBER_BYTES} bytes in each of {MOST_MEMBERS} members",
        )


def parse_xml(data: bytes, name: str) -> ET.Element:
    """Parse XML without document types, so that no entity can be defined or fetched, and of limited depth.

    Raises:
        InputError: for XML that is not well-formed, declares a document type, or nests too deeply.
    """
    builder = ET.TreeBuilder()
    parser = expat.ParserCreate()
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST_ELEMENT:
            raise InputError("XML nests too deeply", file=name, expected=f"at most {DEEPEST_ELEMENT} levels")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse(*_: object) -> None:
        raise InputError("XML declares a document type or entities; refused", file=name)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, ET.ParseError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not well-formed XML: {error}", file=name) from None
