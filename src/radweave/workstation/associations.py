"""The server that the receiver listens with: it makes an association of what asks for one, whole and in time."""

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

# The receiver's connections: who may hold one, for how long, and who gives way where there are too many.
#
# A connection is a guest until its association is accepted. Guests are many and cheap: no association is made of one
# before its whole request is there, and where too many wait, the oldest of the address that has most goes. So who opens
# connections and says nothing holds up nobody who says something. Accepted associations are few: no peer takes the last
# places from peers that have none.


GUESTS: Final = 64
"""Connections without an association at once. Together with all else they stay below the 1024 files that the library
can watch (``select``)."""
GUEST_S: Final = 10.0
"""How long a connection may take to become an association, encryption included."""
SILENT_S: Final = 30.0
"""How long an association may say nothing."""
LARGEST_OBJECT: Final = 1 << 30
"""An object is held in memory until all of it came."""

Count = Callable[[str], None]


@dataclass(slots=True, eq=False)
class _Connection:
    """``peer`` is empty for a guest; ``heard`` is when the last whole message came."""

    socket: socket.socket
    address: str
    heard: float = field(default_factory=time.monotonic)
    peer: str = ""
    association: Association | None = None
    object_bytes: int = 0


class Connections:
    """All connections of a receiver that has ``places`` for associations of ``peers``. Safe to use from threads."""

    def __init__(self, places: int, peers: int, count: Count) -> None:
        self._places, self._peers, self._count = places, peers, count
        self._all: dict[int, _Connection] = {}
        self._of: dict[Association, _Connection] = {}
        self._ending: list[Association] = []
        self._lock = threading.Lock()

    def enter(self, connection: socket.socket, address: str) -> None:
        """Take a guest in; where there are too many, the oldest of the address that has most of them goes."""
        with self._lock:
            guests = [one for one in self._all.values() if not one.peer]
            if len(guests) >= GUESTS:
                most = Counter(one.address for one in guests).most_common(1)[0][0]
                self._cut(next(one for one in guests if one.address == most), "connections_crowded_out")
            self._all[id(connection)] = _Connection(connection, address)

    def join(self, connection: socket.socket, association: Association) -> None:
        """Note which association is made of a connection."""
        with self._lock:
            one = self._all.get(id(connection))
            if one is not None:
                one.association = association
                self._of[association] = one

    def accept(self, association: Association, peer: str) -> Literal["accepted", "full", "gone"]:
        """Give a guest one of the places; a place is kept free for each other peer that has none now."""
        with self._lock:
            one = self._of.get(association)
            if one is None:
                return "gone"
            held = Counter(other.peer for other in self._all.values() if other.peer)
            kept_free = self._peers - len(held) if held[peer] else 0
            if held.total() + kept_free >= self._places:
                return "full"
            one.peer, one.heard = peer, time.monotonic()
            return "accepted"

    def hear(self, association: Association, size: int) -> bool:
        """Note a whole message, a part of an object; False where that object is larger than may be."""
        one = self._of.get(association)
        if one is None:
            return True
        one.heard, one.object_bytes = time.monotonic(), one.object_bytes + size
        return one.object_bytes <= LARGEST_OBJECT

    def kept(self, association: Association) -> None:
        """Note that an object is whole: what comes now is another one."""
        one = self._of.get(association)
        if one is not None:
            one.heard, one.object_bytes = time.monotonic(), 0

    def leave(self, connection: socket.socket) -> bool:
        """Free the place of a connection that was closed; its association may still be at work.

        Whether it had one still: who was cut has none.
        """
        with self._lock:
            one = self._all.get(id(connection))
            self._leave(one)
            return one is not None

    def closed(self, association: Association) -> None:
        """See ``leave``."""
        with self._lock:
            self._leave(self._of.get(association))

    def cut(self, association: Association, why: str) -> None:
        """Close the connection of an association that does what may not be."""
        with self._lock:
            if association in self._of:
                self._cut(self._of[association], why)

    def ended(self) -> list[Association]:
        """Cut what took too long; the associations that are done with since the last call, however they ended."""
        with self._lock:
            now = time.monotonic()
            for one in list(self._all.values()):
                if one.association is not None and _is_over(one.association):
                    self._leave(one)
                # Who says nothing is asked to go by the library; here goes who says a part and nothing more.
                elif now - one.heard > (2 * SILENT_S if one.peer else GUEST_S):
                    self._cut(one, "connections_late")
            done = [one for one in self._ending if _is_over(one)]
            self._ending = [one for one in self._ending if one not in done]
        return done

    def cut_all(self) -> None:
        with self._lock:
            for one in list(self._all.values()):
                self._cut(one, None)

    def _leave(self, one: _Connection | None) -> None:
        if one is not None and self._all.pop(id(one.socket), None) is not None and one.association is not None:
            del self._of[one.association]
            self._ending.append(one.association)
            if not one.peer:  # its thread would wait for a request that cannot come any more
                one.association.dul.to_user_queue.put(None)  # type: ignore[arg-type]

    def _cut(self, one: _Connection, why: str | None) -> None:
        self._leave(one)
        if why is not None:
            self._count(why)
        # Whoever waits for it wakes up and closes it. What is encrypted is cut below its encryption.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(one.socket, socket.SHUT_RDWR)


def _is_over(association: Association) -> bool:
    return association.ident is not None and not association.is_alive()


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
