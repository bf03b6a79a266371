"""TLS in the server itself: what a certificate must be, and a handshake that is as bounded as a request's head.

A connection is counted from its first packet on, not from the end of its handshake: who never shakes hands holds no
more than who says nothing. Who speaks HTTP to this port is answered in HTTP, once, with where to go.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from radweave.base.errors import InputError
from radweave.serve.connections import Connections, Use

_HANDSHAKE: Final = b"\x16"
"""The first byte of a TLS record that begins a handshake (RFC 8446, 5.1)."""
_CLOSE_S: Final = 5.0
_REASON: Final = b"this port speaks TLS: use https"
_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_REASON), _REASON)
)


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What connections are encrypted with, TLS 1.2 or newer; None where neither file is named.

    Raises:
        InputError: if one of them is missing, is no PEM, does not fit the other, is encrypted, or is out of date.
    """
    if certificate is None and key is None:
        return None
    chain, secret = _read(certificate, "--tls-cert"), _read(key, "--tls-key")
    if b"ENCRYPTED" in secret:
        raise InputError(
            "is encrypted, and nobody can be asked", file=key, field="--tls-key", expected="a plain PEM key"
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
        found = x509.load_pem_x509_certificates(chain)[0]
    except ValueError:
        raise InputError("is no certificate", file=file, field="--tls-cert", expected="PEM") from None
    now = datetime.now(UTC)
    if found.not_valid_after_utc < now:
        raise InputError(f"is out of date since {found.not_valid_after_utc:%Y-%m-%d}", file=file, field="--tls-cert")
    if found.not_valid_before_utc > now:
        raise InputError(f"holds from {found.not_valid_before_utc:%Y-%m-%d} on", file=file, field="--tls-cert")


def handshakes(
    inner: Callable[..., Any], context: ssl.SSLContext, seconds: float, connections: Connections
) -> Callable[..., asyncio.Protocol]:
    """Uvicorn's factory of protocols, with a handshake before each connection."""

    def made(**options: Any) -> asyncio.Protocol:
        return _Handshake(inner(**options), context, seconds, connections, options["server_state"].connections)

    return made


class _Handshake(asyncio.Protocol):
    """A connection before it is encrypted. It reads nothing itself: the handshake finds all bytes where they were.

    What comes with the last packet of the handshake is kept for the protocol within.
    """

    def __init__(
        self, inner: Any, context: ssl.SSLContext, seconds: float, connections: Connections, known: set[Any]
    ) -> None:
        self._inner, self._context, self._seconds = inner, context, seconds
        self._connections, self._known = connections, known
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None
        self._early, self._is_lost = b"", False

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.pause_reading()
        peer = transport.get_extra_info("peername")
        self._connections.enter(self, str(peer[0]) if peer else "")
        self._known.add(self)  # uvicorn ends what is known to it when it stops
        self._task = asyncio.get_running_loop().create_task(self._shake())

    def use(self) -> Use:
        return Use.SILENT

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
    """The first byte that came, which stays where it is; none where the other side hung up."""
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same:
        readable = asyncio.Event()
        loop.add_reader(same.fileno(), readable.set)
        try:
            await readable.wait()
            return same.recv(1, socket.MSG_PEEK)
        finally:
            loop.remove_reader(same.fileno())
