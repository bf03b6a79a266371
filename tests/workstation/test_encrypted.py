"""TLS in the server itself: what it begins with, what it refuses, and who never shakes hands."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from radweave.core.errors import InputError
from radweave.workstation.app import run
from radweave.workstation.connections import tls_context
from radweave.workstation.settings import Settings
from tests.workstation.certificates import certificate, encrypted
from tests.workstation.stations import PASSWORD, listening


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path)


@pytest.fixture
def encrypted_server(settings: Settings, files: tuple[Path, Path]) -> Iterator[tuple[int, str]]:
    changes = {"tls_cert": files[0], "tls_key": files[1], "head_s": 1.0}
    with listening(settings.model_copy(update=changes)) as place:
        yield place


def requested(port: int, request: bytes, files: tuple[Path, Path], **versions: Any) -> bytes:
    context = ssl.create_default_context(cafile=str(files[0]))
    for name, value in versions.items():
        setattr(context, name, value)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(request)
        received = b""
        while part := client.recv(1 << 16):
            received += part
        return received


def get(port: int, path: str = "/healthz", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{more}\r\n".encode()


def test_tls_requests_are_answered_with_a_secure_cookie(
    encrypted_server: tuple[int, str], files: tuple[Path, Path]
) -> None:
    port, token = encrypted_server
    answer = requested(port, get(port), files)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"strict-transport-security: max-age=31536000" in answer
    body = f'{{"token": "{token}"}}'
    login = (
        f"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\nOrigin: https://127.0.0.1:{port}\r\n\r\n{body}"
    )
    answer = requested(port, login.encode(), files)
    assert answer.startswith(b"HTTP/1.1 200")
    cookies = [line for line in answer.splitlines() if line.lower().startswith(b"set-cookie")]
    assert len(cookies) == 2
    assert all(b"; secure" in cookie.lower() for cookie in cookies)
    # A page of the same name without encryption is another site.
    assert requested(port, login.replace("Origin: https", "Origin: http").encode(), files).startswith(b"HTTP/1.1 403")


def test_older_versions_are_refused(encrypted_server: tuple[int, str], files: tuple[Path, Path]) -> None:
    port, _ = encrypted_server
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert b" 200 " in requested(port, get(port), files, minimum_version=version, maximum_version=version)
    old = {"minimum_version": ssl.TLSVersion.TLSv1, "maximum_version": ssl.TLSVersion.TLSv1_1}
    with pytest.warns(DeprecationWarning, match="TLSv1"), pytest.raises((ssl.SSLError, ConnectionResetError)):
        requested(port, get(port), files, **old)


def test_plain_http_to_the_tls_port_is_answered_once(
    encrypted_server: tuple[int, str], files: tuple[Path, Path]
) -> None:
    port, _ = encrypted_server
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(get(port))
        answer = client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"https" in answer
    assert b" 200 " in requested(port, get(port), files)


@pytest.mark.parametrize("start", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\x16" + b"a" * 4_000])
def test_an_unfinished_handshake_is_cut(
    start: bytes, encrypted_server: tuple[int, str], files: tuple[Path, Path]
) -> None:
    port, _ = encrypted_server
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(160)]
        for client in clients:
            client.sendall(start)
        assert b" 200 " in requested(port, get(port), files)
        for client in clients:
            try:
                while client.recv(1 << 16):
                    pass
            except ConnectionResetError:
                pass


def test_a_request_in_the_last_packet_of_a_handshake_is_not_lost(
    encrypted_server: tuple[int, str], files: tuple[Path, Path]
) -> None:
    """The client's last words of the handshake and its request, sent as one."""
    port, _ = encrypted_server
    come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(files[0]))
    tls = context.wrap_bio(come, go, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(go.read())
                come.write(client.recv(1 << 16))
        tls.write(get(port))
        client.sendall(go.read())
        received, end = b"", time.monotonic() + 30
        while b"HTTP/1.1 200" not in received:
            assert time.monotonic() < end
            part = client.recv(1 << 16)
            assert part, "the connection ended without an answer"
            come.write(part)
            with suppress(ssl.SSLWantReadError):
                while words := tls.read(1 << 16):  # empty where the server has closed
                    received += words


def refused_files(folder: Path, kind: str) -> tuple[Path | None, Path | None, str, str]:
    """Files of which one is wrong, the option that is named, and a word of the reason."""
    right, key = certificate(folder)
    (folder / "text").write_text("no PEM")
    other = certificate(folder, "other")[1]
    old, old_key = certificate(folder, "old", from_days=-3, to_days=-1)
    young, young_key = certificate(folder, "young", from_days=1, to_days=3)
    return {
        "no certificate": (None, key, "--tls-cert", "missing"),
        "no key": (right, None, "--tls-key", "missing"),
        "absent certificate": (folder / "none", key, "--tls-cert", "cannot be read"),
        "absent key": (right, folder / "none", "--tls-key", "cannot be read"),
        "a text as certificate": (folder / "text", key, "--tls-cert", "no certificate"),
        "a text as key": (right, folder / "text", "--tls-key", "no key"),
        "exchanged": (key, right, "--tls-cert", "no certificate"),
        "another's key": (right, other, "--tls-key", "not the key"),
        "an encrypted key": (right, encrypted(key, folder / "locked"), "--tls-key", "encrypted"),
        "out of date": (old, old_key, "--tls-cert", "out of date"),
        "not yet": (young, young_key, "--tls-cert", "holds from"),
        "a folder": (folder, key, "--tls-cert", "cannot be read"),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["no certificate", "no key", "absent certificate", "absent key", "a text as certificate", "a text as key",
     "exchanged", "another's key", "an encrypted key", "out of date", "not yet", "a folder"],
)  # fmt: skip
def test_unusable_certificates_are_refused_before_the_start(kind: str, settings: Settings, tmp_path: Path) -> None:
    cert, key, field, reason = refused_files(tmp_path, kind)
    with pytest.raises(InputError, match=reason) as refused:
        run(settings.model_copy(update={"tls_cert": cert, "tls_key": key}))
    assert refused.value.field == field
    assert PASSWORD not in str(refused.value)
    assert not settings.state.exists()


def test_without_files_there_is_no_tls(files: tuple[Path, Path]) -> None:
    assert tls_context(None, None) is None
    context = tls_context(*files)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
