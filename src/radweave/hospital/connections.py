"""The receiver's connections: who may hold one, for how long, and who gives way where there are too many.

A connection is a guest until its association is accepted. Guests are many and cheap: no association is made of one
before its whole request is there, and where too many wait, the oldest of the address that has most goes. So who opens
connections and says nothing holds up nobody who says something. Accepted associations are few: no peer takes the last
places from peers that have none.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from pynetdicom.association import Association

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
