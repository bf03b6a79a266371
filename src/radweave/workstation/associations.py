"""The server behind the C-STORE receiver: it bounds the number, duration and size of associations."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import select
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from socketserver import BaseServer
from typing import Any, Final, Literal

from pynetdicom import AE
from pynetdicom.association import Association
from pynetdicom.presentation import PresentationContext
from pynetdicom.transport import RequestHandler, ThreadedAssociationServer

# A connection is pending until its association is accepted. Pending connections are many and cheap: an association is
# made only after its whole request came, and at the limit the oldest connection of the busiest address is closed.
# Silent connections therefore delay nobody else. Accepted associations are few; a slot stays reserved for each peer
# without one.

MOST_PENDING: Final = 64
"""Pending connections at once; with all others they stay below the 1024 files of ``select``."""
PENDING_S: Final = 10.0
"""Seconds from a connection to its accepted association, encryption included."""
SILENT_S: Final = 30.0
"""Seconds that an association may be silent."""
LARGEST_OBJECT: Final = 1 << 30
"""Bytes of an object, which stays in memory until it is complete."""

Count = Callable[[str], None]


@dataclass(slots=True, eq=False)
class _Connection:
    """``peer`` is empty while pending; ``heard`` is the time of the last whole message."""

    socket: socket.socket
    address: str
    heard: float = field(default_factory=time.monotonic)
    peer: str = ""
    association: Association | None = None
    object_bytes: int = 0


class Connections:
    """All connections of a receiver with ``slots`` for associations of ``peers`` peers. Thread-safe."""

    def __init__(self, slots: int, peers: int, count: Count) -> None:
        self._slots, self._peers, self._count = slots, peers, count
        self._all: dict[int, _Connection] = {}
        self._of: dict[Association, _Connection] = {}
        self._ending: list[Association] = []
        self._lock = threading.Lock()

    def enter(self, connection: socket.socket, address: str) -> None:
        """Add a pending connection; at the limit, close the oldest one of the busiest address."""
        with self._lock:
            pending = [entry for entry in self._all.values() if not entry.peer]
            if len(pending) >= MOST_PENDING:
                most = Counter(entry.address for entry in pending).most_common(1)[0][0]
                self._cut(next(entry for entry in pending if entry.address == most), "connections_crowded_out")
            self._all[id(connection)] = _Connection(connection, address)

    def join(self, connection: socket.socket, association: Association) -> None:
        """Record the association of a connection."""
        with self._lock:
            entry = self._all.get(id(connection))
            if entry is not None:
                entry.association = association
                self._of[association] = entry

    def accept(self, association: Association, peer: str) -> Literal["accepted", "full", "gone"]:
        """Give a pending association a slot; one stays reserved for each other peer without any."""
        with self._lock:
            entry = self._of.get(association)
            if entry is None:
                return "gone"
            held = Counter(other.peer for other in self._all.values() if other.peer)
            reserved = self._peers - len(held) if held[peer] else 0
            if held.total() + reserved >= self._slots:
                return "full"
            entry.peer, entry.heard = peer, time.monotonic()
            return "accepted"

    def hear(self, association: Association, size: int) -> bool:
        """Record a whole message, a part of an object; False if that object is too large."""
        entry = self._of.get(association)
        if entry is None:
            return True
        entry.heard, entry.object_bytes = time.monotonic(), entry.object_bytes + size
        return entry.object_bytes <= LARGEST_OBJECT

    def object_done(self, association: Association) -> None:
        """Record the end of an object."""
        entry = self._of.get(association)
        if entry is not None:
            entry.heard, entry.object_bytes = time.monotonic(), 0

    def leave(self, connection: socket.socket) -> bool:
        """Free the slot of a closed connection, whose association may still run; False if it was cut before."""
        with self._lock:
            entry = self._all.get(id(connection))
            self._leave(entry)
            return entry is not None

    def closed(self, association: Association) -> None:
        """Free the slot of an association whose connection was closed."""
        with self._lock:
            self._leave(self._of.get(association))

    def cut(self, association: Association, why: str) -> None:
        """Close the connection of an association that broke a limit."""
        with self._lock:
            if association in self._of:
                self._cut(self._of[association], why)

    def ended(self) -> list[Association]:
        """Close late connections; return the associations that have ended since the last call."""
        with self._lock:
            now = time.monotonic()
            for entry in list(self._all.values()):
                if entry.association is not None and _is_over(entry.association):
                    self._leave(entry)
                # The library closes silent associations; here those are closed that stop within a message.
                elif now - entry.heard > (2 * SILENT_S if entry.peer else PENDING_S):
                    self._cut(entry, "connections_late")
            done = [association for association in self._ending if _is_over(association)]
            self._ending = [association for association in self._ending if association not in done]
        return done

    def cut_all(self) -> None:
        with self._lock:
            for entry in list(self._all.values()):
                self._cut(entry, None)

    def _leave(self, entry: _Connection | None) -> None:
        if entry is not None and self._all.pop(id(entry.socket), None) is not None and entry.association is not None:
            del self._of[entry.association]
            self._ending.append(entry.association)
            if not entry.peer:  # else its thread would wait for a request for ever
                entry.association.dul.to_user_queue.put(None)  # type: ignore[arg-type]

    def _cut(self, entry: _Connection, why: str | None) -> None:
        self._leave(entry)
        if why is not None:
            self._count(why)
        # The waiting thread wakes up and closes it. TLS is closed at the TCP level.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(entry.socket, socket.SHUT_RDWR)


def _is_over(association: Association) -> bool:
    return association.ident is not None and not association.is_alive()


LONGEST_REQUEST: Final = 1 << 18
"""Bytes of a request: 128 contexts with all their syntaxes are below 100 KB."""
LONGEST_MESSAGE: Final = 1 << 20
"""Bytes of a message after acceptance; 16 KB are negotiated."""
AHEAD: Final = 16
"""Unprocessed messages that are read ahead."""
_REQUEST: Final = 0x01
_HEAD: Final = 6
_LOOK_S: Final = 0.1
_AHEAD_S: Final = 0.002
_COLLECT_EVERY: Final = 64
"""Ended associations between garbage collections: each is a reference cycle."""


_LOG = logging.getLogger(__name__)


class _Shared(list[PresentationContext]):
    """Immutable presentation contexts: the library would copy some 190 of them for each connection."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


class _Bounded(RequestHandler):
    """Creates associations with bounded messages."""

    server: AssociationServer

    def _create_association(self) -> Association:
        association = super()._create_association()
        self.server.connections.join(self.request, association)
        bound(association)
        # Both threads may raise anything on untrusted bytes, and a traceback may quote them.
        for thread in (association, association.dul):
            thread.run = self._without_traceback(thread.run)  # type: ignore[method-assign]
        return association

    def _without_traceback(self, run: Callable[[], None]) -> Callable[[], None]:
        """Count and name errors of the library instead of printing them."""

        def quiet() -> None:
            try:
                run()
            except Exception as error:
                self.server.count(_named(error))

        return quiet


def bound(association: Association, most: float = math.inf) -> None:
    """Bound the messages of an association: ``LONGEST_MESSAGE`` bytes each, ``most`` bytes in all, few read ahead."""
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


class AssociationServer(ThreadedAssociationServer):
    """Listens from ``start`` to ``shutdown``; calls ``ended`` with each association that is over."""

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
        """Stop listening and close all connections."""
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
        if self._uncleared >= _COLLECT_EVERY:
            self._uncleared = 0
            gc.collect()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.enter(request, str(client_address[0]))
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if _has_request(request, time.monotonic() + PENDING_S):
                request.settimeout(SILENT_S)
                self.finish_request(request, client_address)
                return
            why = "connections_without_request"
        except ssl.SSLError:
            why = "encryption_refused"
        except OSError:
            why = "connections_without_request"
        except Exception as error:  # the library would print the address
            why = _named(error)
        if self.connections.leave(request):  # else it was cut and counted before
            self.count(why)
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the kind of an error instead of a traceback with the address."""
        error = sys.exception()
        if isinstance(error, Exception):
            self.count(_named(error))

    def close_request(self, request: Any) -> None:
        self.connections.leave(request)
        super().close_request(request)


def _named(error: Exception) -> str:
    """Log the kind of an error, never its text; return the name of its counter."""
    kind = type(error).__name__
    _LOG.error("an association failed: %s", kind, extra={"kind": kind})
    return "connections_failed"


def _has_request(request: socket.socket, end: float) -> bool:
    """Wait for the whole request of an association; under TLS for its first bytes.

    Raises:
        OSError: if it is late.
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
    """The first bytes, left in the buffer; fewer at the end of the stream."""
    request.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    return request.recv(size, socket.MSG_PEEK)
