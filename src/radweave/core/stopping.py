"""Being asked to stop, by SIGTERM (a scheduler) or SIGINT (Ctrl-C): one error for both, at once or at a good moment."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StoppedError(BaseException):
    """The job was asked to stop by ``signal``; what it had finished is kept.

    It is no ``Exception``, as KeyboardInterrupt is none: code that goes on after a study or a run that failed must not
    go on after this.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}")

    @property
    def exit_code(self) -> int:
        """What a shell gives a process that a signal has ended: 143 for SIGTERM, 130 for SIGINT."""
        return 128 + self.signal


@contextmanager
def stopped_at_once() -> Iterator[None]:
    """Raise StoppedError wherever the main thread is, so that what is half written is removed on the way out.

    While that goes on another SIGTERM is passed over, as launchers send several; another Ctrl-C is not.
    """
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGTERM:
            return
        asked = True
        raise StoppedError(number)

    with _handled(stop):
        yield


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], int]]:
    """Turn both signals into a question: which one came, 0 for none.

    A second Ctrl-C does not wait for the answer and raises StoppedError.
    """
    asked = 0

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked == number == signal.SIGINT:
            raise StoppedError(number)
        asked = asked or number

    with _handled(remember):
        yield lambda: asked


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle both signals so while the block runs. Only the main thread can; in another the caller's handling stays."""
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
