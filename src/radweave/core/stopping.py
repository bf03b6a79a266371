"""Termination by SIGTERM (a scheduler) or SIGINT (Ctrl-C): at once by an error, or at a point chosen by the caller."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StoppedError(BaseException):
    """The job was stopped by ``signal``; finished work remains.

    Like KeyboardInterrupt it is no ``Exception``, so that code that continues after a failed study or run does stop.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}")

    @property
    def exit_code(self) -> int:
        """Exit code of a process ended by the signal: 143 for SIGTERM, 130 for SIGINT."""
        return 128 + self.signal


@contextmanager
def stopped_at_once() -> Iterator[None]:
    """Raise StoppedError in the main thread, which unwinds and removes partial files.

    A repeated SIGTERM is ignored meanwhile, since launchers send several; another Ctrl-C is not.
    """
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping and number == signal.SIGTERM:
            return
        stopping = True
        raise StoppedError(number)

    with _handled(stop):
        yield


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], int]]:
    """Give a function that returns the received signal, 0 for none.

    A second Ctrl-C raises StoppedError at once.
    """
    received = 0

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received == number == signal.SIGINT:
            raise StoppedError(number)
        received = received or number

    with _handled(remember):
        yield lambda: received


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Set the handler of both signals during the block, in the main thread only."""
    old: dict[int, object] = {}
    try:
        for number in STOP_SIGNALS:
            old[number] = signal.signal(number, handler)
    except ValueError:
        pass
    try:
        yield
    finally:
        for handled, before in old.items():
            signal.signal(handled, signal.SIG_DFL if before is None else before)  # type: ignore[arg-type]
