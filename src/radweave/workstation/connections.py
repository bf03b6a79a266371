"""Limits of connections per client and in all, trusted proxies, time limits and TLS.

A new connection is always accepted. Above a limit an older one is cut: first silent ones, then those in a handshake,
then those that send their request slowly, then those that receive their response slowly. So idle connections give way
to used ones. If none can be cut, the new connection serves health probes only; there are ``RESERVE`` of these, and the
oldest is cut.

Connections of trusted proxies count towards the total only: ``access.Guard`` counts the clients behind them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

import h11
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from radweave.core.errors import InputError

# Trusted proxies: X-Forwarded-For, -Proto and -Host are read from their addresses alone.
#
# Every proxy appends its peer's address to X-Forwarded-For. The list is read from the right while entries are trusted
# proxies; the first other entry is the client, and entries left of it are the client's own claim. The header
# ``Forwarded`` (RFC 7239) is not read: a proxy that sets the others passes a client's ``Forwarded`` on unchanged.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_MOST_HOPS: Final = 32
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PORT: Final = re.compile(r"(?:\[(?P<six>[^\]]*)\](?::[0-9]{1,5})?|(?P<four>[0-9.]+):[0-9]{1,5})")
_DROPPED: Final = (b"forwarded", b"x-real-ip")


def address_of(text: str) -> Address | None:
    """The address in a text, with or without a port; None if there is none. IPv4-mapped IPv6 counts as IPv4."""
    text = text.strip()
    stated = _PORT.fullmatch(text)
    if stated is not None:
        text = stated["six"] or stated["four"] or ""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id else address.ipv4_mapped or address
    return address


def peer_of(text: str) -> str:
    """Key under which a client is counted: the IPv4 address, or the /64 network of the IPv6 address."""
    address = address_of(text)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return text if address is None else str(address)


class Proxies:
    """The addresses whose forwarded headers are trusted."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def __contains__(self, address: object) -> bool:
        parsed = address_of(str(address))
        return parsed is not None and any(
            parsed in network for network in self._networks if network.version == parsed.version
        )

    def seen_through(self, scope: Scope) -> tuple[Scope, bool]:
        """The request as the client sent it, and True if it came through a trusted proxy.

        Forwarded headers of all others are removed.
        """
        peer = scope["client"][0] if scope.get("client") else ""
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if not name.startswith(b"x-forwarded-") and name not in _DROPPED
        ]
        if peer not in self:
            return {**scope, "headers": headers}, False
        client, hops = self._client(peer, _listed(scope, b"x-forwarded-for"))
        changed: dict[str, Any] = {"headers": headers, "client": (client, 0)}
        scheme = _at_hop(_listed(scope, b"x-forwarded-proto"), hops).lower()
        if scheme in ("http", "https"):
            changed["scheme"] = scheme
        host = _at_hop(_listed(scope, b"x-forwarded-host"), hops)
        if _HOST.fullmatch(host):
            changed["headers"] = [(b"host", host.encode()), *(one for one in headers if one[0] != b"host")]
        return {**scope, **changed}, True

    def _client(self, peer: str, chain: Sequence[str]) -> tuple[str, int]:
        """Address of the client, and the number of trusted proxies in between."""
        client, hops = peer, 1
        for entry in reversed(chain[-_MOST_HOPS:]):
            address = address_of(entry)
            if address is None:  # the proxy is the last known address
                break
            client = str(address)
            if client not in self:
                break
            hops += 1
        return client, hops


def _listed(scope: Scope, name: bytes) -> list[str]:
    """The entries of a header that may be repeated (RFC 9110, 5.3)."""
    lines = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]


def _at_hop(entries: Sequence[str], hops: int) -> str:
    """Entry of the outermost trusted proxy: ``hops`` from the right, or the first if inner proxies replace it."""
    return entries[-min(hops, len(entries))] if entries else ""


RESERVE: Final = 32


class Use(IntEnum):
    """Activity of a connection. The least active is cut first, and one in processing never."""

    SILENT = 0
    SHAKING = 1
    """In a handshake that has begun."""
    SENDING = 2
    TAKING = 3
    WORKED_FOR = 4


class Connection(Protocol):
    """A connection that can be counted and cut."""

    def use(self) -> Use: ...
    def cut(self) -> None: ...


class Connections:
    """All connections of a server, in the order of arrival; used from one event loop."""

    def __init__(self, most: int, most_of_one: int, proxies: Proxies, count: Callable[[str], None]) -> None:
        self._most, self._most_of_one, self._proxies, self._count = most, most_of_one, proxies, count
        self._peers: dict[Connection, str] = {}
        self._held: Counter[str] = Counter()
        self._spare: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._peers) + len(self._spare)

    def enter(self, connection: Connection, address: str) -> bool:
        """Accept a connection; False if it may use the probes only."""
        peer = peer_of(address)
        is_bounded = address not in self._proxies
        while (is_bounded and self._held[peer] >= self._most_of_one) or len(self._peers) >= self._most:
            of_one = is_bounded and self._held[peer] >= self._most_of_one
            gone = self._first_to_go(peer if of_one else None, peer)
            if gone is None:
                if len(self._spare) >= RESERVE:
                    self._end(next(iter(self._spare)))
                self._spare[connection] = None
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
        """The connection to cut: one of the client ``of``, or of the client with the most.

        Of another client only connections without a request are cut, unless it has more than the newcomer: else two
        clients would end each other's requests forever.
        """
        fair = self._held[newcomer] + 1

        def order(connection: Connection) -> tuple[int, int]:
            return connection.use(), -self._held[self._peers[connection]]

        def may_go(connection: Connection) -> bool:
            use, peer = connection.use(), self._peers[connection]
            if of is not None:
                return peer == of and use <= Use.SHAKING
            return use <= Use.SHAKING or (use is not Use.WORKED_FOR and self._held[peer] > fair)

        return min(filter(may_go, self._peers), key=order, default=None)

    def _end(self, connection: Connection) -> None:
        self._count("connections_cut")
        self.leave(connection)
        connection.cut()


# Time limits against slow clients.
#
# uvicorn waits forever for a request that was begun, so that a few hundred idle connections would block all others.
# Here the head of a request must arrive within ``head_s``, its body at an average of ``LEAST_RATE`` bytes a second
# (after ``body_s``), and a response must be received as fast (after ``ANSWER_S``), else the connection is cut.

ANSWER_S: Final = 120.0
LINGER_S: Final = 2.0
"""Time for which a rejected body is still read: clients read the response after sending it."""
STOP_S: Final = 3.0
"""Time for which a stopping server waits for slow clients."""
LEAST_RATE: Final = 16 << 10
"""Bytes a second: a slow radio link, and 18 hours for the largest body allowed."""


def protocol(head_s: float, connections: Connections, spare: Callable[[ASGIApp], ASGIApp]) -> type[H11Protocol]:
    """Protocol class with time limits; ``spare`` makes the application of reserve connections."""
    names = {"head_s": head_s, "all_connections": connections, "spare": staticmethod(spare)}
    return type("PatientProtocol", (_TimedProtocol,), names)


class _TimedProtocol(H11Protocol):
    head_s: float
    all_connections: Connections
    spare: Callable[[Any], Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._answer_begun, self._written, self._is_answering = 0.0, 0, False

    def connection_made(self, transport: Any) -> None:
        counted: Any = _CountedTransport(transport, self._writes)
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
        """Current activity."""
        if self.cycle is None or self.cycle.response_complete:
            return Use.TAKING if self.transport.get_write_buffer_size() else Use.SILENT
        if self.conn.their_state is h11.SEND_BODY:
            return Use.SENDING
        return Use.TAKING if self.transport.get_write_buffer_size() else Use.WORKED_FOR

    def cut(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """Stop: requests in processing are finished, slow clients are cut soon."""
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
        """Count bytes of a response; its time begins with the first, once older bytes are sent."""
        if not self._is_answering and not self.transport.get_write_buffer_size():
            self._end("answer")
        self._is_answering = True
        if "answer" not in self._timers:
            self._answer_begun, self._written = self.loop.time(), 0
            self._begin("answer", ANSWER_S, self._refuse_slow)
        self._written += size

    def _refuse_slow(self) -> None:
        """Cut the connection if too little was received in time; else set the timer anew."""
        self._end("answer")
        waiting = self.transport.get_write_buffer_size()
        if not waiting:  # the client has received all bytes so far
            return
        taken = max(0, self._written - waiting)
        left = self._answer_begun + ANSWER_S + taken / LEAST_RATE - self.loop.time()
        if left <= 0:
            self.transport.abort()
        else:
            self._begin("answer", left, self._refuse_slow)

    def _watch(self) -> None:
        """Time an incomplete head. Between two requests uvicorn's own limit applies."""
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


class _CountedTransport:
    """A transport that reports the bytes to be written."""

    def __init__(self, transport: Any, writes: Callable[[int], None]) -> None:
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:
        self._writes(len(data))
        self._transport.write(data)

    def close(self) -> None:
        """Close once: of TLS a second time forgets the connection, which can then be neither read nor aborted."""
        if not self._transport.is_closing():
            self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def bounded_body(receive: Receive, body_s: float) -> Receive:
    """Receive a body, waiting as long as its size so far allows.

    Raises:
        HTTPException: 408 if it takes longer.
    """
    begun, received_bytes, whole = time.monotonic(), 0, False

    async def received() -> Message:
        nonlocal received_bytes, whole
        if whole:  # the next message is the disconnection
            return await receive()
        left = begun + body_s + received_bytes / LEAST_RATE - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, left))
        except TimeoutError:
            raise HTTPException(408, "the request came too slowly", {"Connection": "close"}) from None
        received_bytes += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        return message

    return received


# TLS: certificate checks, and a handshake with the time limit of a request's head.
#
# A connection counts from its first packet, not from the end of its handshake. Plain HTTP to this port is answered once
# in HTTP, with a hint to use https.

_HANDSHAKE: Final = b"\x16"
"""The first byte of a TLS record that begins a handshake (RFC 8446, 5.1)."""
_CLOSE_S: Final = 5.0
_REASON: Final = b"this port speaks TLS: use https"
_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_REASON), _REASON)
)


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Context for TLS 1.2 or newer; None without certificate and key.

    Raises:
        InputError: if one of them is missing, is no PEM, does not fit the other, is encrypted, or is out of date.
    """
    if certificate is None and key is None:
        return None
    chain, secret = _read(certificate, "--tls-cert"), _read(key, "--tls-key")
    if b"ENCRYPTED" in secret:
        raise InputError(
            "is encrypted: the server cannot ask for its password",
            file=key,
            field="--tls-key",
            expected="a plain PEM key",
        )
    _refuse_outdated(chain, certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    assert certificate is not None
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InputError("is not the key of the certificate", file=key, field="--tls-key") from None
        raise InputError("is no key that can be used", file=key, field="--tls-key", expected="PEM") from None
    return context


def _read(file: Path | None, field: str) -> bytes:
    if file is None:
        raise InputError("is missing: a certificate and its key go together", field=field)
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file, field=field) from None


def _refuse_outdated(chain: bytes, file: Path | None) -> None:
    from cryptography import x509

    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
    except ValueError:
        raise InputError("is no certificate", file=file, field="--tls-cert", expected="PEM") from None
    now = datetime.now(UTC)
    if leaf.not_valid_after_utc < now:
        raise InputError(f"is out of date since {leaf.not_valid_after_utc:%Y-%m-%d}", file=file, field="--tls-cert")
    if leaf.not_valid_before_utc > now:
        raise InputError(f"holds from {leaf.not_valid_before_utc:%Y-%m-%d} on", file=file, field="--tls-cert")


def handshakes(
    inner: Callable[..., Any], context: ssl.SSLContext, seconds: float, connections: Connections
) -> Callable[..., asyncio.Protocol]:
    """Uvicorn's factory of protocols, with a handshake before each connection."""

    def made(**options: Any) -> asyncio.Protocol:
        return _Handshake(inner(**options), context, seconds, connections, options["server_state"].connections)

    return made


class _Handshake(asyncio.Protocol):
    """A connection before encryption. It reads nothing, so that the handshake receives all bytes.

    Data that arrives with the last packet of the handshake is passed to the inner protocol.
    """

    def __init__(
        self, inner: Any, context: ssl.SSLContext, seconds: float, connections: Connections, known: set[Any]
    ) -> None:
        self._inner, self._context, self._seconds = inner, context, seconds
        self._connections, self._known = connections, known
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None
        self._early, self._is_lost, self._has_begun = b"", False, False

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.pause_reading()
        peer = transport.get_extra_info("peername")
        self._connections.enter(self, str(peer[0]) if peer else "")
        self._known.add(self)  # uvicorn closes known connections when it stops
        self._task = asyncio.get_running_loop().create_task(self._shake())

    def use(self) -> Use:
        return Use.SHAKING if self._has_begun else Use.SILENT

    def cut(self) -> None:
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    shutdown = cut

    async def _shake(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                first = await _first_byte(loop, self._transport)
                if first != _HANDSHAKE:
                    if first:
                        self._transport.write(_NO_TLS)
                    self._transport.close()
                    return
                self._has_begun = True
                encrypted = await loop.start_tls(
                    self._transport, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds,
                    ssl_shutdown_timeout=_CLOSE_S,
                )  # fmt: skip
        except (OSError, TimeoutError, ValueError):  # ssl.SSLError is an OSError
            self._transport.abort()
            return
        finally:
            self._known.discard(self)
            self._connections.leave(self)
        if encrypted is None or self._is_lost:
            return
        encrypted.set_protocol(self._inner)
        self._inner.connection_made(encrypted)
        if self._early:
            self._inner.data_received(self._early)


async def _first_byte(loop: asyncio.AbstractEventLoop, transport: Any) -> bytes:
    """The first byte, without consuming it; empty if the peer closed the connection."""
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same:
        readable = asyncio.Event()
        loop.add_reader(same.fileno(), readable.set)
        try:
            await readable.wait()
            return same.recv(1, socket.MSG_PEEK)
        finally:
            loop.remove_reader(same.fileno())
