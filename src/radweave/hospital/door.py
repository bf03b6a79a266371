"""The server that the receiver listens with: it makes an association of what asks for one, whole and in time."""

from __future__ import annotations

import gc
import logging
import math
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from socketserver import BaseServer
from typing import Any, Final

from pynetdicom import AE
from pynetdicom.association import Association
from pynetdicom.presentation import PresentationContext
from pynetdicom.transport import RequestHandler, ThreadedAssociationServer

from radweave.hospital.connections import GUEST_S, SILENT_S, Connections, Count

LONGEST_REQUEST: Final = 1 << 18
"""Of an association: 128 contexts with all their syntaxes are below 100 KB."""
LONGEST_MESSAGE: Final = 1 << 20
"""Of an accepted association; 16 KB is what is agreed on."""
AHEAD: Final = 16
"""Messages that are read before those that came earlier are worked off."""
_REQUEST: Final = 0x01
_HEAD: Final = 6
_LOOK_S: Final = 0.1
_AHEAD_S: Final = 0.002
_CLEARED: Final = 64
"""After so many associations that ended their memory is collected: each is a ring of objects that hold each other."""


_LOG = logging.getLogger(__name__)


class _Shared(list[PresentationContext]):
    """What is offered, which nothing changes. The library would copy some 190 of them for each connection."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


class _Bounded(RequestHandler):
    """Makes an association whose messages may not be longer than agreed, by far."""

    server: Door

    def _create_association(self) -> Association:
        association = super()._create_association()
        self.server.connections.join(self.request, association)
        bound(association)
        # Both threads may raise anything on bytes that a stranger sends, and a traceback may quote them.
        for thread in (association, association.dul):
            thread.run = self._without_traceback(thread.run)  # type: ignore[method-assign]
        return association

    def _without_traceback(self, run: Callable[[], None]) -> Callable[[], None]:
        """Count and name what the library cannot do with a message."""

        def quiet() -> None:
            try:
                run()
            except Exception as error:
                self.server.count(_named(error))

        return quiet


def bound(association: Association, most: float = math.inf) -> None:
    """Let an association read no message longer than agreed on, ``most`` bytes in all, and few messages ahead."""
    connection = association.dul.socket
    assert connection is not None
    whole, total = connection.recv, 0

    def recv(size: int) -> bytearray:
        nonlocal total
        total += size
        if size > LONGEST_MESSAGE or total > most:
            raise OSError("a message is longer than was agreed on")
        while association.dimse.msg_queue.qsize() >= AHEAD and not association._kill:
            time.sleep(_AHEAD_S)
        return whole(size)

    connection.recv = recv  # type: ignore[method-assign,assignment]


class Door(ThreadedAssociationServer):
    """Listens from ``start`` to ``shutdown``. ``ended`` is told of each association when nothing more comes of it."""

    request_queue_size = 128

    def __init__(
        self, entity: AE, address: tuple[str, int], connections: Connections, handlers: Sequence[Any],
        encryption: ssl.SSLContext | None, ended: Callable[[Association], None], count: Count,
    ) -> None:  # fmt: skip
        self.connections, self.count, self._ended = connections, count, ended
        self._next_sweep, self._uncleared = 0.0, 0
        contexts = _Shared(entity.supported_contexts)
        super().__init__(entity, address, entity.ae_title, contexts, encryption, list(handlers), _Bounded)
        self._thread = threading.Thread(target=self.serve_forever, args=(_LOOK_S,), name="receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shutdown(self) -> None:
        """Listen no more, and cut what is open."""
        BaseServer.shutdown(self)
        self.connections.cut_all()
        self.server_close()

    def service_actions(self) -> None:
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + _LOOK_S
        ended = self.connections.ended()
        for association in ended:
            self._ended(association)
        self._uncleared += len(ended)
        if self._uncleared >= _CLEARED:
            self._uncleared = 0
            gc.collect()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.enter(request, str(client_address[0]))
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if _asks(request, time.monotonic() + GUEST_S):
                request.settimeout(SILENT_S)
                self.finish_request(request, client_address)
                return
            why = "connections_without_request"
        except ssl.SSLError:
            why = "encryption_refused"
        except OSError:
            why = "connections_without_request"
        except Exception as error:  # a request that the library cannot take must not print an address
            why = _named(error)
        if self.connections.leave(request):  # else it was cut by us, and is counted
            self.count(why)
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Name what went wrong with a connection, instead of a traceback with its address."""
        error = sys.exception()
        if isinstance(error, Exception):
            self.count(_named(error))

    def close_request(self, request: Any) -> None:
        self.connections.leave(request)
        super().close_request(request)


def _named(error: Exception) -> str:
    """Log of what kind an error is, never what it says; what it counts as."""
    kind = type(error).__name__
    _LOG.error("an association failed: %s", kind, extra={"kind": kind})
    return "connections_failed"


def _asks(request: socket.socket, end: float) -> bool:
    """Whether all of a request for an association is there; of an encrypted one, whether anything is.

    Raises:
        OSError: if it does not come in time.
    """
    request.settimeout(max(0.0, end - time.monotonic()))
    if isinstance(request, ssl.SSLSocket):
        request.do_handshake()
        waiting = select.poll()
        waiting.register(request, select.POLLIN)
        return bool(request.pending() or waiting.poll(1000 * max(0.0, end - time.monotonic())))
    head = _peeked(request, _HEAD)
    size = int.from_bytes(head[2:], "big")
    if len(head) < _HEAD or head[0] != _REQUEST or size > LONGEST_REQUEST:
        return False
    request.settimeout(max(0.0, end - time.monotonic()))
    is_whole = len(_peeked(request, _HEAD + size)) == _HEAD + size
    request.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return is_whole


def _peeked(request: socket.socket, size: int) -> bytes:
    """The first bytes, which stay to be read; fewer where no more will come."""
    request.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    return request.recv(size, socket.MSG_PEEK)
