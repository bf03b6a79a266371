"""Atomic files and folders, locks between processes, and hashes.

Writers use a temporary name and rename, so that a killed process leaves the old file or none. Its temporary file is
unlocked, and the next process that writes into the folder removes it.
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


class Kind(Protocol):
    """A kind of output (``radweave.core.replacing``)."""

    def refuse_other(self, path: Path) -> None: ...


def refuse_existing(
    path: Path,
    *,
    overwrite: bool,
    kind: Kind | None = None,
    advice: str = "give --overwrite to replace it, or another name",
) -> None:
    """Raise InputError if an output exists and must stay: without ``overwrite``, or if it is of another kind."""
    refuse_foreign(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise InputError(f"exists already; {advice}", file=path)
    if kind is not None:
        kind.refuse_other(path)


def refuse_foreign(path: Path) -> None:
    """Refuse to replace anything but regular files and folders, or to write through links in a data set's cache.

    Every writer calls this first.

    Raises:
        InputError: naming the path.
    """
    for folder in _cache_folders(path):
        if folder.is_symlink():
            raise InputError("is a symbolic link; nothing is written through it", file=folder)
    try:
        mode = path.lstat().st_mode
    except OSError:  # absent or inaccessible: the writer raises the error
        return
    if stat.S_ISLNK(mode):
        raise InputError("is a symbolic link; it is not replaced", file=path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError("is no regular file or folder; it is not replaced", file=path)


def _cache_folders(path: Path) -> list[Path]:
    """The folders from ``path`` up to the ``.cache`` of its data set; empty outside of one."""
    folders: list[Path] = []
    for folder in path.parents:
        folders.append(folder)
        if folder.name == ".cache" and (folder.parent / "dataset.json").is_file():
            return folders
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
    """Give a temporary file next to ``path``; rename it to ``path`` if the block succeeds, else remove it.

    Raises:
        CannotWriteError: if the disk is full or the folder cannot be written; the old file is untouched.
    """
    refuse_foreign(path)
    if path.is_dir():
        raise InputError("is a folder; a file does not replace it", file=path)
    with _partial(path, lambda temporary: temporary.touch(exist_ok=False)) as partial:
        yield partial
        _fsync(partial)
        partial.replace(path)
        _fsync(path.parent)


def read_text(path: Path) -> str:
    """Read a whole text file.

    Raises:
        InputError: if it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError("not a readable text file", file=path, expected="UTF-8") from None


def write_text(path: Path, text: str) -> None:
    with write_aside(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def write_folder(path: Path, *, overwrite: bool = False, kind: Kind | None = None) -> Iterator[Path]:
    """Give an empty temporary folder; rename it to ``path`` if the block succeeds, else remove it.

    Raises:
        InputError: if ``path`` exists and must stay (``refuse_existing``).
        CannotWriteError: if the disk is full or the folder cannot be written; the old folder is untouched.
    """
    refuse_existing(path, overwrite=overwrite, kind=kind)
    if path.is_file():
        raise InputError("is a file; a folder does not replace it", file=path)
    with _partial(path, Path.mkdir) as partial:
        yield partial
        if overwrite:  # foreign files that came meanwhile stay too
            refuse_existing(path, overwrite=True, kind=kind)
        _put_in_place(partial, path, overwrite=overwrite)


def _temporary_name(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{kind}")


@contextlib.contextmanager
def _partial(path: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """An empty file or folder next to ``path``, locked during the block and then removed if it still exists."""
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
    """Turn any library's error of writing ``path`` into one.

    Raises:
        CannotWriteError: if the disk is full or ``path`` cannot be written.
    """
    try:
        yield
    except Exception as error:
        reason = _why_not_written(error, path)
        if reason is None:
            raise
        raise CannotWriteError(f"cannot write: {reason}", file=path) from error


def _why_not_written(error: Exception, path: Path) -> str | None:
    """The system's message for a failed write; None for any other error, such as one of a file that was read.

    The writers of tokenizers and of safetensors raise their own errors, which quote the system's.
    """
    if isinstance(error, OSError):
        # A copy names both files.
        names = [name for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        if names and not any(_belongs_to(Path(os.fsdecode(name)), path) for name in names):
            return None
        return error.strerror or str(error)
    quoted = _SYSTEM_ERROR.search(str(error))
    return None if quoted is None or isinstance(error, InputError) else quoted[1]


def _belongs_to(name: Path, path: Path) -> bool:
    """True for ``path``, its temporary files and the folders above."""
    below = name.relative_to(path.parent).parts[:1] if name.is_relative_to(path.parent) else ()
    return path.is_relative_to(name) or any(part.startswith(f".{path.name}.") or part == path.name for part in below)


def _create_locked(path: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    """Create a partial file or folder and lock it, so that no process takes it for a leftover."""
    while True:
        partial = _temporary_name(path, "partial")
        create(partial)
        with contextlib.suppress(FileNotFoundError):  # removed as a leftover before the lock: create another one
            descriptor = os.open(partial, os.O_RDONLY)
            with contextlib.suppress(OSError):  # without locks no process removes leftovers
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if partial.exists():
                return partial, descriptor
            os.close(descriptor)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock an existing file or folder if the file system has locks."""
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
    """Remove a replaced folder, renamed first, since a folder named ``.old`` must be complete."""
    half = old.with_suffix(".partial")
    old.rename(half)
    _remove(half)


def _put_in_place(partial: Path, path: Path, *, overwrite: bool) -> None:
    """Rename a folder to ``path``; the second of two writers of a new folder is refused.

    The system replaces only an absent or empty folder, atomically, so no check before the rename is needed.
    """
    try:
        partial.rename(path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    if not overwrite:
        raise InputError("was made by another process in the meantime; it stays as it is", file=path)
    old = _temporary_name(path, "old")
    # The lock keeps the old folder from being taken for a leftover while the name is free.
    with _lock(path):
        path.rename(old)
        partial.rename(path)
        _discard(old)


def remove_leftovers(folder: Path) -> None:
    """Remove unlocked temporary files that killed writers left directly in a folder.

    A folder whose writer was killed between the two renames gets its name back.
    """
    try:
        leftovers = [path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name) and not path.is_symlink()]
    except OSError:
        return
    for path in leftovers:
        with contextlib.suppress(OSError):  # locked, removed meanwhile, or of another user
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
    """Remove leftovers once per process and folder."""
    remove_leftovers(folder)


def temporary_folder(name: str) -> Path:
    """An empty folder, removed when the process ends, or by the next call of any process if it was killed.

    Raises:
        CannotWriteError: if it cannot be created.
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


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on the file ``path`` during the block; it ends with the process.

    The holder may remove the file: waiting processes then lock a new one.

    Raises:
        BlockingIOError: if another process holds the lock and ``wait`` is not set.
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
    """True if an open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Serialise processes that write ``path``; a no-op in folders that cannot be written."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(exclusive(path.with_suffix(".lock")))
        yield


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_folder(path: Path) -> str:
    """Hash over names and bytes of all files below a folder, which may be absent."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    return sha256_json({file.relative_to(path).as_posix(): sha256_file(file) for file in files})


def sha256_json(value: Any) -> str:
    """Hash of a JSON value, independent of key order and spacing."""
    return sha256_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
