"""Time limits of a connection: who sends slowly, or nothing, does not keep it.

uvicorn waits for ever for a request that was begun. A few hundred such connections cost their owner nothing, and
nobody else gets one. Here a request's head must come within ``head_s``, its body at ``LEAST_RATE`` bytes a second on
average (after ``body_s``), and an answer must be taken as fast (after ``ANSWER_S``), else the connection is cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import h11
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from radweave.serve.connections import Connections, Use

ANSWER_S: Final = 120.0
LINGER_S: Final = 2.0
"""How long a body is read that nobody wants any more: whoever sends it reads the answer after it."""
STOP_S: Final = 3.0
"""How long a server that stops waits for who sends or takes slowly."""
LEAST_RATE: Final = 16 << 10
"""Bytes a second: a slow radio link, and some 18 hours for the largest body that there is."""


def protocol(head_s: float, connections: Connections, spare: Callable[[ASGIApp], ASGIApp]) -> type[H11Protocol]:
    """Uvicorn's protocol with a limit for the head of a request; ``spare`` is what a connection of the reserve gets."""
    names = {"head_s": head_s, "all_connections": connections, "spare": staticmethod(spare)}
    return type("PatientProtocol", (_Protocol,), names)


class _Protocol(H11Protocol):
    head_s: float
    all_connections: Connections
    spare: Callable[[Any], Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._answer_begun, self._written, self._is_answering = 0.0, 0, False

    def connection_made(self, transport: Any) -> None:
        counted: Any = _Counted(transport, self._writes)
        super().connection_made(counted)
        if not self.all_connections.enter(self, self.client[0] if self.client else ""):
            self.app = self.spare(self.app)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._end(name)
        self.all_connections.leave(self)
        super().connection_lost(exc)

    def use(self) -> Use:
        """What the connection is kept for."""
        if self.cycle is None or self.cycle.response_complete:
            return Use.TAKING if self.transport.get_write_buffer_size() else Use.SILENT
        if self.conn.their_state is h11.SEND_BODY:
            return Use.SENDING
        return Use.TAKING if self.transport.get_write_buffer_size() else Use.WORKED_FOR

    def cut(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """Stop: what is worked for is finished, and nobody else is waited for long."""
        super().shutdown()
        self._begin("stop", STOP_S, self._cut_unless_worked_for)

    def _cut_unless_worked_for(self) -> None:
        self._end("stop")
        if self.use() is Use.WORKED_FOR:
            self._begin("stop", STOP_S, self._cut_unless_worked_for)
        else:
            self.cut()

    def on_response_complete(self) -> None:
        self._is_answering = False
        if self.conn.their_state is h11.SEND_BODY:
            self._begin("rest", LINGER_S, self.transport.close)
        super().on_response_complete()

    def _writes(self, size: int) -> None:
        """Before bytes of an answer are written: its time begins with the first, if nothing of older ones waits."""
        if not self._is_answering and not self.transport.get_write_buffer_size():
            self._end("answer")
        self._is_answering = True
        if "answer" not in self._timers:
            self._answer_begun, self._written = self.loop.time(), 0
            self._begin("answer", ANSWER_S, self._refuse_slow)
        self._written += size

    def _refuse_slow(self) -> None:
        """Cut the connection where too little was taken in the time; else look again when that would be so."""
        self._end("answer")
        waiting = self.transport.get_write_buffer_size()
        if not waiting:  # the client has all that there is so far
            return
        taken = max(0, self._written - waiting)
        left = self._answer_begun + ANSWER_S + taken / LEAST_RATE - self.loop.time()
        if left <= 0:
            self.transport.abort()
        else:
            self._begin("answer", left, self._refuse_slow)

    def _watch(self) -> None:
        """Wait for a head that is not there yet. Between two requests uvicorn's own limit holds."""
        if self.conn.their_state is h11.IDLE:
            self._begin("head", self.head_s, self.transport.abort)
        else:
            self._end("head")
        if self.conn.their_state is not h11.SEND_BODY:
            self._end("rest")

    def _begin(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, call)

    def _end(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


class _Counted:
    """A transport that tells how much is to be written."""

    def __init__(self, transport: Any, writes: Callable[[int], None]) -> None:
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:
        self._writes(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def patient(receive: Receive, body_s: float) -> Receive:
    """Wait for a body as long as its size so far allows.

    Raises:
        HTTPException: 408 from the call that waited too long.
    """
    begun, seen, whole = time.monotonic(), 0, False

    async def received() -> Message:
        nonlocal seen, whole
        if whole:  # what is waited for now is the client's end
            return await receive()
        left = begun + body_s + seen / LEAST_RATE - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, left))
        except TimeoutError:
            raise HTTPException(408, "the request came too slowly", {"Connection": "close"}) from None
        seen += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        return message

    return received
