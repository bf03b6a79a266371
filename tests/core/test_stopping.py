"""Two signals, one error: at once, or when asked."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from radweave.core.stopping import STOP_SIGNALS, StoppedError, asked_to_stop, stopped_at_once


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_at_once_unwinds_and_has_the_exit_code_of_the_signal(number: signal.Signals, code: int) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    cleaned = []
    with pytest.raises(StoppedError) as stop, stopped_at_once():
        try:
            send(number)
        finally:
            send(signal.SIGTERM)  # launchers send several: the first one's cleaning goes on
            cleaned.append(True)
    assert cleaned == [True]
    assert stop.value.exit_code == code
    assert number.name in str(stop.value)
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_stopped_error_is_no_exception() -> None:
    assert not issubclass(StoppedError, Exception)


def test_a_stop_request_returns_the_signal_and_a_second_interrupt_raises() -> None:
    with asked_to_stop() as received:
        assert received() == 0
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert received() == signal.SIGTERM
    with asked_to_stop() as received:
        send(signal.SIGTERM)
        send(signal.SIGINT)  # a launcher's terminal after the scheduler: the exit code is that of the first
        assert received() == signal.SIGTERM
    with pytest.raises(StoppedError), asked_to_stop() as received:
        send(signal.SIGINT)
        assert received() == signal.SIGINT
        send(signal.SIGINT)


def test_other_threads_leave_signal_handlers_unchanged() -> None:
    before, signals = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with asked_to_stop() as received, stopped_at_once():
            signals.append((received(), signal.getsignal(signal.SIGTERM) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signals == [(0, True)]
