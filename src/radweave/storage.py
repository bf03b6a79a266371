"""Files that are either whole or absent: atomic writes, hashes, JSON lines.

Everything is written aside and renamed into place, so that a killed process leaves the old file or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from radweave.errors import InputError

_CHUNK_BYTES = 1 << 20
_NUMBERS = re.compile(r"\[\n\s+((?:(?:-?\d[\d.eE+-]*|null),?\s+)+)\]")


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_folder(path: Path) -> str:
    """Hash over names and bytes of all files below a folder; that of nothing where there is none."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    return sha256_json({file.relative_to(path).as_posix(): sha256_file(file) for file in files})


def sha256_json(value: Any) -> str:
    """Hash of a JSON value, independent of key order and spacing."""
    return sha256_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; rename it into place if the block succeeds, else remove it.

    Raises:
        InputError: if the disk is full or the folder cannot be written; the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        _fsync(partial)
        partial.replace(path)
        _fsync(path.parent)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", file=path) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def write_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty temporary folder; rename it to ``path`` if the block succeeds, else remove it.

    Raises:
        InputError: if ``path`` exists and ``overwrite`` is not set.
    """
    refuse_existing(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            partial.rename(path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", file=path) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs; it goes when the process does.

    Raises:
        BlockingIOError: if another process holds it and ``wait`` is not set.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder. Only its one writer may ask for it."""
    for pattern in (".*.partial", ".*.old"):
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise InputError when an output exists and may not be replaced."""
    if path.exists() and not overwrite and not (path.is_dir() and not any(path.iterdir())):
        raise InputError("exists already; give --overwrite to replace it, or another name", file=path)


def write_text(path: Path, text: str) -> None:
    with write_aside(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def json_text(value: Any) -> str:
    """Indented JSON in which the innermost lists of numbers take one line each: arrays stay readable, and short."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # A text inside JSON never holds a line break, so that no pattern with one matches in it.
    return _NUMBERS.sub(lambda row: "[" + " ".join(row[1].split()) + "]", text) + "\n"


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("file is missing", file=path) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"not valid JSON: {error}", file=path) from None


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON value per line, streaming, all or nothing."""
    with write_aside(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number, object)``; blank lines are skipped.

    Raises:
        InputError: for a missing file, bytes that are not UTF-8, a line that is not a JSON object.
    """
    if not path.is_file():
        raise InputError("file is missing", file=path)
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8"))
            except (UnicodeDecodeError, ValueError, RecursionError) as error:
                raise InputError(f"not valid JSON: {error}", file=path, line=number) from None
            if not isinstance(row, dict):
                raise InputError("not a JSON object", file=path, line=number, got=type(row).__name__)
            yield number, row
