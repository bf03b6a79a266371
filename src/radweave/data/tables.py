"""CSV, JSON and JSON-lines tables in any common encoding, read row by row."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from radweave.core.errors import InputError, no_file
from radweave.core.json_files import read_json, read_jsonl

ID = "study_id"
"""Default column name of a row's id."""
_CHUNK_BYTES = 1 << 20
_LONGEST_CELL = 1 << 20


def find_table(folder: Path, pattern: str) -> Path | None:
    """The first table in a folder by name; gzip-compressed ones count too."""
    return next(iter(sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")])), None)


def _open_bytes(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _read_chunk(file: IO[bytes], path: Path) -> bytes:
    try:
        return file.read(_CHUNK_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", file=path) from None


def text_encoding(path: Path) -> str:
    """Encoding of a text file: UTF-8 with or without mark, UTF-16 by its mark, else Windows-1252 or Latin-1.

    Windows-1252 is taken where bytes 0x80 to 0x9F occur, which are control characters in Latin-1.

    Raises:
        InputError: if the file is missing or holds NUL bytes, so that it is no text.
    """
    if not path.is_file():
        raise InputError(no_file(path), file=path)
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_utf8, has_c1 = True, False
    with _open_bytes(path) as file:
        start = _read_chunk(file, path)[:4]
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        file.seek(0)
        while chunk := _read_chunk(file, path):
            if b"\0" in chunk:
                raise InputError("not a text file: it holds NUL bytes", file=path)
            has_c1 = has_c1 or any(0x80 <= byte <= 0x9F for byte in set(chunk))
            if is_utf8:
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError:
                    is_utf8 = False
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        is_utf8 = False
    if is_utf8:
        return "utf-8-sig"
    return "cp1252" if has_c1 else "latin-1"


def encoding_note(path: Path) -> str | None:
    """A note for the card about a file that is not UTF-8."""
    encoding = text_encoding(path)
    names = {"cp1252": "Windows-1252", "latin-1": "Latin-1", "utf-16": "UTF-16"}
    return f"{path.name} is not UTF-8; it was read as {names[encoding]}" if encoding in names else None


def read_rows(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield ``(place, row)`` of a ``.csv``, ``.tsv`` or ``.json`` file by its name, or else of JSON lines.

    A JSON file is a list of objects, or an object that has an object or a text for each id; the id becomes its row's
    ``study_id``, a text its ``text``. ``place`` holds the keyword arguments of an ``InputError`` about the row.

    Raises:
        InputError: for a file that is missing or none of its kind.
    """
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "json":
        for number, row in enumerate(_json_rows(path), start=1):
            yield {"file": f"{path}, entry {number}"}, row
        return
    rows: Iterator[tuple[int, dict[str, Any]]] = read_jsonl(path)
    if kind in ("csv", "tsv"):
        rows = ((line, dict(row)) for line, row in read_table(path, delimiter="\t" if kind == "tsv" else None))
    for line, row in rows:
        yield {"file": path, "line": line}, row


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    value = read_json(path)
    if isinstance(value, dict):
        value = [{ID: key, **(row if isinstance(row, dict) else {"text": row})} for key, row in value.items()]
    if not isinstance(value, list):
        raise InputError("not a list of objects", file=path, got=type(value).__name__)
    for number, row in enumerate(value, start=1):
        if not isinstance(row, dict):
            raise InputError("not a JSON object", file=f"{path}, entry {number}", got=type(row).__name__)
        yield row


def read_table(
    path: Path, *, needs: Iterable[str] = (), delimiter: str | None = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield ``(line number, row)`` of a CSV file with a header; cells that a short row lacks are empty.

    Without a delimiter, it is the comma, semicolon or tab that the header has most of. Header names are stripped of
    blanks. The line number is that of the row's last line.

    Raises:
        InputError: for a missing file, a file without header, a missing or repeated column, a row with more cells
            than the header, and broken quoting.
    """
    encoding = text_encoding(path)
    csv.field_size_limit(_LONGEST_CELL)
    errors = "replace" if encoding == "cp1252" else "strict"
    with _open_bytes(path) as raw, io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="") as file:
        try:
            first = file.readline(_LONGEST_CELL)
        except UnicodeError as error:
            raise InputError(f"not a readable CSV file: {error}", file=path, line=1) from None
        if len(first) == _LONGEST_CELL:
            raise InputError(
                "the header line is too long", file=path, expected=f"fewer than {_LONGEST_CELL} characters"
            )
        rows = csv.reader(
            itertools.chain([first], file), delimiter=delimiter or max(",;\t", key=first.count), strict=True
        )
        try:
            header = [name.strip() for name in next(rows, [])]
            _check_header(path, header, needs)
            for cells in rows:
                if not cells:
                    continue
                if len(cells) > len(header):
                    raise InputError(
                        "row has more cells than the header; is a text with commas not quoted?",
                        file=path,
                        line=rows.line_num,
                        got=len(cells),
                        expected=len(header),
                    )
                yield rows.line_num, dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))
        except (csv.Error, UnicodeError) as error:
            raise InputError(f"not a readable CSV file: {error}", file=path, line=rows.line_num) from None


def _check_header(path: Path, header: list[str], needs: Iterable[str]) -> None:
    if not any(header):
        raise InputError("the table has no header line", file=path)
    repeated = sorted({name for name in header if name and header.count(name) > 1})
    if repeated:
        raise InputError("column comes twice", file=path, field=repeated[0])
    missing = [name for name in needs if name not in header]
    if missing:
        # Not the header itself: a table without one shows a patient's row there.
        raise InputError("column is missing", file=path, field=missing[0], got=f"{len(header)} other columns")
