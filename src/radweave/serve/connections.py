"""How many connections there may be, in all and of one client, and which go where one more comes.

A new connection is always let in. Where its client has as many as one may have, or all have as many as there may be, an
older one goes: first one that says nothing, then one that sends its request slowly, then one that takes its answer
slowly. So who holds connections loses them to who uses them. Where none can go, the new one answers the probes of
health alone; of such there are ``RESERVE``, and the oldest goes.

Connections of trusted proxies are counted in all only: the clients behind them are counted by ``guard``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from radweave.serve.forwarded import Proxies, peer_of

RESERVE: Final = 32


class Use(IntEnum):
    """What a connection is kept for; the least goes first, and one that is worked for never goes."""

    SILENT = 0
    SENDING = 1
    TAKING = 2
    WORKED_FOR = 3


class Connection(Protocol):
    """What is known of a connection."""

    def use(self) -> Use: ...
    def cut(self) -> None: ...


class Connections:
    """All connections of a server; of one event loop, in the order in which they came."""

    def __init__(self, most: int, most_of_one: int, proxies: Proxies, count: Callable[[str], None]) -> None:
        self._most, self._most_of_one, self._proxies, self._count = most, most_of_one, proxies, count
        self._peers: dict[Connection, str] = {}
        self._held: Counter[str] = Counter()
        self._spare: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._peers) + len(self._spare)

    def enter(self, connection: Connection, address: str) -> bool:
        """Let a connection in; False where it may ask for the probes only."""
        peer = peer_of(address)
        is_bounded = address not in self._proxies
        while (is_bounded and self._held[peer] >= self._most_of_one) or len(self._peers) >= self._most:
            of_one = is_bounded and self._held[peer] >= self._most_of_one
            gone = self._first_to_go(peer if of_one else None, peer)
            if gone is None:
                self._spare_one(connection)
                return False
            self._end(gone)
        self._peers[connection] = peer
        self._held[peer] += 1
        return True

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._spare.pop(connection, None)
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._held[peer] -= 1
            if not self._held[peer]:
                del self._held[peer]

    def _first_to_go(self, of: str | None, newcomer: str) -> Connection | None:
        """The connection that makes room: of one client, or of the one that has most.

        Of another client only silent ones go, unless it has more than the newcomer: else two clients would end each
        other's requests for ever.
        """
        fair = self._held[newcomer] + 1

        def order(connection: Connection) -> tuple[int, int]:
            return connection.use(), -self._held[self._peers[connection]]

        def may_go(connection: Connection) -> bool:
            use, peer = connection.use(), self._peers[connection]
            if of is not None:
                return peer == of and use is Use.SILENT
            return use is Use.SILENT or (use is not Use.WORKED_FOR and self._held[peer] > fair)

        return min(filter(may_go, self._peers), key=order, default=None)

    def _spare_one(self, connection: Connection) -> None:
        if len(self._spare) >= RESERVE:
            self._end(next(iter(self._spare)))
        self._spare[connection] = None

    def _end(self, connection: Connection) -> None:
        self._count("connections_cut")
        self.leave(connection)
        connection.cut()
