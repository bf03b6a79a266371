"""A thread that looks again and again, whatever goes wrong once."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final

from radweave.serve.events import say_failure

STOP_S: Final = 8.0
"""How long a look that is under way may go on when the server stops. What it leaves is as after a kill."""


class Again(ABC):
    """Looks every ``pause_s`` seconds, and at once where there is more to do.

    An error does not end it: a disk that is full, a folder or a database that is away may come back. It is said as
    the event ``failed``.
    """

    def __init__(self, name: str, *, pause_s: float, failed: str) -> None:
        self._pause_s, self._failed = pause_s, failed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def look(self) -> int:
        """Look once; 0 if there is nothing more to do now."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the look that is under way, or after ``STOP_S`` without it."""
        self._stopping.set()
        if self._thread.ident:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            more = 0
            try:
                more = self.look()
            except Exception as error:
                say_failure(self._failed, error)
            if not more:
                self._stopping.wait(self._pause_s)
