"""JSON and JSON lines: atomic writes, and one error for every defect of a file."""

from __future__ import annotations

import itertools
import json
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError, no_file
from radweave.core.storage import write_aside

MAX_JSON_BYTES = 1 << 30
"""Limit of any JSON file; the index of a cache of a million images has some 200 MB."""
MAX_CARD_BYTES = 16 << 20
"""Limit of the card of a run; a usual one has some 10 kB."""
_PIECES = 1 << 14
_NUMBERS = re.compile(r"\[\n\s+((?:(?:-?\d[\d.eE+-]*|null),?\s+)+)\]")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, streaming."""
    pieces = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False).iterencode(value)
    with write_aside(path) as partial, partial.open("w", encoding="utf-8") as file:
        while some := "".join(itertools.islice(pieces, _PIECES)):
            file.write(some)
        file.write("\n")


def json_text(value: Any) -> str:
    """Indented JSON with the innermost lists of numbers on one line each."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # Strings in JSON hold no raw line break, so the pattern never matches inside one.
    return _NUMBERS.sub(lambda row: "[" + " ".join(row[1].split()) + "]", text) + "\n"


def parse_json(data: bytes) -> Any:
    """Parse one JSON value.

    Raises:
        ValueError: for invalid JSON or UTF-8, too deep nesting, a number of too many digits.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def refuse_large(path: Path, most: int) -> None:
    """Refuse a file before it is read into memory and parsed.

    Raises:
        InputError: if it has more than ``most`` bytes, or is a pipe or device, which may never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError("is no plain file", file=path)
    if status.st_size > most:
        got, expected = f"{status.st_size} bytes", f"at most {most}"
        raise InputError("too large for a file of its kind", file=path, got=got, expected=expected)


def read_json(path: Path, *, most: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file.

    Raises:
        InputError: if it is missing, has more than ``most`` bytes, is not JSON, or holds half of a surrogate pair,
            which cannot be encoded again.
    """
    try:
        refuse_large(path, most)
        data = path.read_bytes()
        value = parse_json(data)
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError:
        raise InputError("file is missing", file=path) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}", file=path) from None


def read_json_object(path: Path, *, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: as ``read_json``, or if the value is no object.
    """
    value = read_json(path, most=most)
    if not isinstance(value, dict):
        raise InputError("not a JSON object", file=path, got=type(value).__name__)
    return value


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON value per line, atomically, streaming."""
    with write_aside(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number, object)``; blank lines are skipped.

    Raises:
        InputError: for a missing file, bytes that are not UTF-8, a line that is not a JSON object.
    """
    if not path.is_file():
        raise InputError(no_file(path), file=path)
    with path.open("rb") as file:
        yield from parse_jsonl(file, path)


def parse_jsonl(lines: Iterable[bytes], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """``read_jsonl`` of the lines of ``path``."""
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            row = parse_json(raw)
        except ValueError as error:
            raise InputError(f"not valid JSON: {error}", file=path, line=number) from None
        if not isinstance(row, dict):
            raise InputError("not a JSON object", file=path, line=number, got=type(row).__name__)
        yield number, row
