"""Locks between processes: who makes a thing makes it alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from radweave.base.errors import InputError
from radweave.base.places import refuse_foreign


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
