"""Parse untrusted files in a pool of limited processes.

    header, arrays = sandbox().call("raster", {"path": "/data/chest.png"}, timeout_s=20)

One crafted DICOM can crash the library that reads it, fill the memory or never end. So a file is opened in a child
process (``worker``) that has a memory and a time limit and answers with JSON and raw arrays. A child that crashes,
hangs or answers nonsense is killed and replaced; the file is refused and everything else goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

from radweave.core.devices import usable_cores
from radweave.core.errors import InputError
from radweave.io import worker as wire

DEFAULT_TIMEOUT_S = 30.0
START_TIMEOUT_S = 60.0
ADDRESS_SPACE_BYTES = 6 << 30
MAX_REPLY_BYTES = 2 << 30
PIPE_BYTES = 1 << 20
PARSERS = "radweave.io.parsers"


class WorkerGoneError(Exception):
    """The child ended, hung or answered nonsense."""


class Sandbox:
    """A pool of reading processes, started when needed and at most ``size`` at once. Safe to use from threads."""

    def __init__(
        self, parsers: str = PARSERS, *, size: int | None = None, address_space_bytes: int = ADDRESS_SPACE_BYTES
    ) -> None:
        self._parsers = parsers
        self._address_space_bytes = address_space_bytes
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._size = size or max(2, usable_cores())
        self._slots = threading.BoundedSemaphore(self._size)
        self.started = 0

    def call(
        self,
        task: str,
        request: dict[str, Any],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> wire.Message:
        """Run a task on the file ``request["path"]`` and return its header and arrays.

        Raises:
            InputError: the task refused the file, or it made the reader crash, hang or need too much memory.
        """
        file = request.get("path")
        message = {**request, "task": task, "timeout_s": timeout_s}
        with self._slots:
            for attempt in (1, 2):
                worker = self._take()
                if worker.send(message):
                    break
                worker.kill()  # it died while idle, which says nothing about this file
                if attempt == 2:
                    raise InputError("cannot be read: the reading process does not stay alive", file=file)
            try:
                header, arrays = worker.receive(timeout_s=timeout_s, max_array_bytes=max_reply_bytes)
            except WorkerGoneError as error:
                worker.kill()
                raise InputError(str(error), file=file) from None
            except BaseException:
                worker.kill()  # interrupted half way: the rest of the answer must not meet the next request
                raise
            with self._lock:
                self._idle.append(worker)
        if "result" not in header:
            raise InputError(
                str(header.get("refused", "cannot be read")),
                file=file,
                field=header.get("field"),
                got=header.get("got"),
                expected=header.get("expected"),
            )
        return header["result"], arrays

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self.started += 1
        return _Worker(self._parsers, self._address_space_bytes)

    def close(self) -> None:
        """End the idle workers; the pool can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def forget(self) -> None:
        """Drop the workers without ending them: after a fork they belong to the parent process."""
        self._idle = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self._size)


class _Worker:
    """One child process and its two pipes."""

    def __init__(self, parsers: str, address_space_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radweave.io.worker", parsers, str(address_space_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=_environment(),
            cwd="/",
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin.fileno()
        self._replies = self._process.stdout.fileno()
        _widen(self._replies)
        try:
            self.receive(timeout_s=START_TIMEOUT_S, max_array_bytes=0)
        except WorkerGoneError:
            self.kill()
            raise InputError("the reading process does not start; check the installation") from None

    def send(self, message: dict[str, Any]) -> bool:
        try:
            for chunk in wire.encode(message, {}):
                rest = memoryview(chunk)
                while len(rest):
                    rest = rest[os.write(self._requests, rest) :]
        except (BrokenPipeError, OSError):
            return False
        return True

    def receive(self, *, timeout_s: float, max_array_bytes: int) -> wire.Message:
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)

        def fill(buffer: memoryview) -> None:
            while len(buffer):
                left = deadline - time.monotonic()
                if left <= 0 or not poll.poll(left * 1000):
                    raise WorkerGoneError(f"reading it took longer than {timeout_s:g} s")
                count = os.readv(self._replies, [buffer])
                if not count:
                    raise WorkerGoneError("it made the decoder crash or run out of memory")
                buffer = buffer[count:]

        try:
            return wire.decode(fill, max_array_bytes=max_array_bytes)
        except wire.WireError:
            raise WorkerGoneError("the reader gave no sensible answer, or the image is too large") from None

    def kill(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()


def _environment() -> dict[str, str]:
    """The child's environment: no tokens, one thread, and the same import path."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry and Path(entry).exists())
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _widen(descriptor: int) -> None:
    """Let a whole image pass with few wake-ups; the default pipe holds 64 KiB."""
    with contextlib.suppress(ImportError, AttributeError, OSError):  # Linux only, and limited for some users
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


_shared: Sandbox | None = None
_shared_lock = threading.Lock()


def sandbox() -> Sandbox:
    """The pool that all readers of this process share."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Sandbox()
            atexit.register(_shared.close)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_after_fork)
        return _shared


@cache
def lasting_child(parsers: str) -> Sandbox:
    """The one process of these parsers, kept: starting it takes longer than reading hundreds of headers."""
    child = Sandbox(parsers, size=1)
    atexit.register(child.close)
    return child


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    if _shared is not None:
        _shared.forget()
