"""Files and folders that are either whole or absent.

Everything is written aside and renamed into place, so that a killed process leaves the old file or none. What it has
written by then lies aside, unlocked, and is removed by the next process that writes into the same folder.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from radweave.core.errors import CannotWriteError, InputError

# Where may be written: what stands in an output's place, and what is never replaced.


class Kind(Protocol):
    """A kind of output, see ``radweave.core.replacing``."""

    def refuse_other(self, path: Path) -> None: ...


def refuse_existing(path: Path, *, overwrite: bool, kind: Kind | None = None) -> None:
    """Raise InputError when an output exists and may not be replaced: what is not of the kind ``kind`` never is."""
    refuse_foreign(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise InputError("exists already; give --overwrite to replace it, or another name", file=path)
    if kind is not None:
        kind.refuse_other(path)


def refuse_foreign(path: Path) -> None:
    """Refuse to write where no regular file or folder is, or through a link in the cache of a data set.

    Every writer asks this first.

    Raises:
        InputError: naming the place.
    """
    for place in _cache_places(path):
        if place.is_symlink():
            raise InputError("is a symbolic link; nothing is written through it", file=place)
    try:
        kind = path.lstat().st_mode
    except OSError:  # nothing is there, or nothing that can be seen: the writer will say so
        return
    if stat.S_ISLNK(kind):
        raise InputError("is a symbolic link; it is not replaced", file=path)
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise InputError("is no regular file or folder; it is not replaced", file=path)


def _cache_places(path: Path) -> list[Path]:
    """The ``.cache`` of the data set in which ``path`` lies, and the folders from there to it, if it lies in one."""
    below: list[Path] = []
    for place in path.parents:
        below.append(place)
        if place.name == ".cache" and (place.parent / "dataset.json").is_file():
            return below
    return []


_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>partial|old)")
_SYSTEM_ERROR = re.compile(r"(?:.*: )?(.+) \(os error \d+\)")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """Give a temporary file beside ``path``; rename it into place if the block succeeds, else remove it.

    Raises:
        CannotWriteError: if the disk is full or the folder cannot be written; the old file is untouched.
    """
    refuse_foreign(path)
    if path.is_dir():
        raise InputError("is a folder; a file does not replace it", file=path)
    with _partial(path, _new_file) as partial:
        yield partial
        _fsync(partial)
        partial.replace(path)
        _fsync(path.parent)


def write_text(path: Path, text: str) -> None:
    with write_aside(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def write_folder(path: Path, *, overwrite: bool = False, kind: Kind | None = None) -> Iterator[Path]:
    """Give an empty temporary folder; rename it to ``path`` if the block succeeds, else remove it.

    Raises:
        InputError: if ``path`` exists and ``overwrite`` is not set, or it is not ours (see ``refuse_existing``).
        CannotWriteError: if the disk is full or the folder cannot be written; the old folder is untouched.
    """
    refuse_existing(path, overwrite=overwrite, kind=kind)
    if path.is_file():
        raise InputError("is a file; a folder does not replace it", file=path)
    with _partial(path, _new_folder) as partial:
        yield partial
        if overwrite:  # what somebody laid into it in the meantime stays too
            refuse_existing(path, overwrite=True, kind=kind)
        _put_in_place(partial, path, overwrite=overwrite)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{kind}")


@contextlib.contextmanager
def _partial(path: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Something empty beside ``path``, locked as long as the block runs and then removed, if it is still there."""
    partial, descriptor = None, None
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _sweep_once(path.parent)
            partial, descriptor = _create_locked(path, create)
            yield partial
    finally:
        if partial is not None and descriptor is not None:
            _remove(partial)
            os.close(descriptor)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what is raised where ``path`` cannot be written into one error, whichever library writes.

    Raises:
        CannotWriteError: if the disk is full or the place cannot be written.
    """
    try:
        yield
    except Exception as error:
        reason = _why_not_written(error, path)
        if reason is None:
            raise
        raise CannotWriteError(f"cannot write: {reason}", file=path) from error


def _why_not_written(error: Exception, path: Path) -> str | None:
    """What the system says of a write that failed; None where the error is another one, of a file that was read too.

    The writers of tokenizers and of safetensors raise errors of their own that quote the system's.
    """
    if isinstance(error, OSError):
        # A copy names two files, whichever of them failed.
        named = [name for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        if named and not any(_is_of(Path(os.fsdecode(name)), path) for name in named):
            return None
        return error.strerror or str(error)
    quoted = _SYSTEM_ERROR.search(str(error))
    return None if quoted is None or isinstance(error, InputError) else quoted[1]


def _is_of(name: Path, path: Path) -> bool:
    """Whether a file is what a writer of ``path`` touches: it, what it writes aside, and the folders above."""
    below = name.relative_to(path.parent).parts[:1] if name.is_relative_to(path.parent) else ()
    return path.is_relative_to(name) or any(part.startswith(f".{path.name}.") or part == path.name for part in below)


def _new_file(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _new_folder(path: Path) -> None:
    path.mkdir()


def _create_locked(path: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    """Create a partial file or folder and lock it, before anyone can take it for a leftover."""
    while True:
        partial = _beside(path, "partial")
        create(partial)
        with contextlib.suppress(FileNotFoundError):  # swept between these two lines: another one is made
            descriptor = os.open(partial, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks: nothing is ever swept there
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if partial.exists():
                return partial, descriptor
            os.close(descriptor)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an existing file or folder where the file system has locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _discard(old: Path) -> None:
    """Remove a folder that was moved away. What is removed in part has another name: one with ``.old`` is whole."""
    half = old.with_suffix(".partial")
    old.rename(half)
    _remove(half)


def _put_in_place(partial: Path, path: Path, *, overwrite: bool) -> None:
    """Rename a folder to ``path``; of two writers of a new folder, the second is refused.

    A folder takes the place of an empty one or of none in one step, and of no other: the system sees to that, so there
    is no moment between looking and renaming.
    """
    try:
        partial.rename(path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    if not overwrite:
        raise InputError("was made by another process in the meantime; it stays as it is", file=path)
    old = _beside(path, "old")
    # Locked, so that nobody takes it for a leftover while no folder bears the name.
    with _lock(path):
        path.rename(old)
        partial.rename(path)
        _discard(old)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left directly in a folder; what a living process writes is locked, and stays.

    A folder that was moved away by a writer who was killed before its new one came gets its name back.
    """
    try:
        found = [path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name) and not path.is_symlink()]
    except OSError:
        return
    for path in found:
        with contextlib.suppress(OSError):  # held, gone by now, or not ours
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                match = _LEFTOVER.fullmatch(path.name)
                assert match is not None
                target = path.with_name(match["name"])
                if match["kind"] == "partial":
                    _remove(path)
                elif target.exists():
                    _discard(path)
                else:
                    path.rename(target)
            finally:
                os.close(descriptor)


@lru_cache(maxsize=1024)
def _sweep_once(folder: Path) -> None:
    """Once per process is enough: what is left there later belongs to others who live."""
    remove_leftovers(folder)


def temporary_folder(name: str) -> Path:
    """An empty folder for this process alone: it goes at its end, or at the next call of any process if it was killed.

    Raises:
        CannotWriteError: if there is no place for it.
    """
    top = Path(tempfile.gettempdir())
    try:
        remove_leftovers(top)
        folder, _ = _create_locked(top / f"radweave-{name}", lambda path: path.mkdir(mode=0o700))
    except OSError as error:
        raise CannotWriteError(f"cannot write: {error.strerror or error}", file=top) from error
    owner = os.getpid()
    atexit.register(lambda: _remove(folder) if os.getpid() == owner else None)
    return folder


# Locks between processes: who makes a thing makes it alone.


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs; it goes when the process does.

    Who holds it may remove the file: others then lock the next one, never the one that is gone.

    Raises:
        BlockingIOError: if another process holds it and ``wait`` is not set.
        InputError: if the lock is no regular file.
    """
    refuse_foreign(path)
    if path.is_dir():
        raise InputError("is a folder, where a lock file goes", file=path)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait for another process that makes the same thing; where nothing can be written there is none."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            held.enter_context(exclusive(path.with_suffix(".lock")))
        yield


# Hashes of bytes, files, folders and JSON values.


_CHUNK_BYTES = 1 << 20


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
