"""Hostile requests: whatever is sent, wherever, nothing fails; and slow ones give their place to others."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.connections import _TimedProtocol
from radweave.workstation.settings import Settings
from tests.workstation.stations import listening, one_draft

STRANGE: tuple[Any, ...] = (
    "\0", "\ud800", "' OR 1=1 --", "x" * 3_000, 1 << 31, 1 << 63, 1 << 70, -1, None, [[]], {"\ud800": "\0"},
)  # fmt: skip
IN_PATHS = ("%00", "%ud800", "..%2f..%2fetc", "%F0%28", "9" * 400, "<script>", str(1 << 31), str(1 << 63), "-1")


def _bodies(value: Any, version: int) -> Iterator[tuple[str, str, Any]]:
    """Requests with a value where the interface expects another, on the newest version."""
    edits: list[Any] = [value, {"op": "insert", "text": value}, {"op": "restore", "version": value}]
    edits += [{"op": "replace", "key": value, "text": "a"}, {"op": "insert", "text": "a", "after": value}]
    edits += [{"op": "insert", "text": "a", "recalled": value}]
    for edit in edits:
        yield "PATCH", "/sentences", {"version": version, "edits": [edit]}
    yield "PATCH", "/sentences", {"version": value, "edits": [{"op": "remove", "key": 0}], str(value): value}
    yield "POST", "/looked", {"version": version, "sentences": [value]}
    yield "POST", "/sign", {"version": value, "seconds": value}
    yield "POST", "/sign", value
    yield "POST", "/cancel", value


def test_no_value_makes_the_server_fail(client: TestClient) -> None:
    study = one_draft(client)["id"]
    place = f"/api/v1/studies/{study}"
    for value in STRANGE:
        version = client.get(place).json()["version"]
        for method, end, body in _bodies(value, version):
            head = {"Content-Type": "application/json"}
            answer = client.request(method, place + end, content=json.dumps(body), headers=head)
            assert answer.status_code < 500, (method, end, body)
            version += end == "/sentences" and answer.status_code == 200
        for body in ({"token": value}, {"name": value, "role": value}):
            where = "/api/v1/users" if "role" in body else "/api/v1/session"
            assert client.post(where, content=json.dumps(body)).status_code < 500, (where, body)
        text = str(value)[:200].encode("utf-8", "replace").decode()
        requested = client.get("/api/v1/studies", params=dict.fromkeys(("search", "state", "offset"), text))
        assert requested.status_code < 500, value
        assert client.get("/api/v1/studies", params={"search": text}).status_code < 500, value
    assert client.get(place).json()["state"] == "edited"
    assert client.get("/api/v1/log/check").json()["broken_at"] is None


def test_no_path_makes_the_server_fail(client: TestClient) -> None:
    study = one_draft(client)["id"]
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods if "{" in path]
    assert len(routes) > 8
    for (method, path), word in itertools.product(routes, IN_PATHS):
        start, end = path.rindex("{"), path.rindex("}")
        place = (path[:start] + word + path[end + 1 :]).replace("{study}", study)
        answer = client.request(method, place, json={"version": 1, "sentences": [0]} if method != "GET" else None)
        assert answer.status_code < 500, (method, place)


DIGITS = b'{"version": ' + b"9" * 5_000 + b"}"
NO_JSON = b"[" * 100_000, DIGITS, b"\xff\xfe", b"", b"NaN", b'{"version": 1', b"\x00" * 1_000


@pytest.mark.parametrize("body", NO_JSON)
def test_a_body_that_is_no_json(body: bytes, client: TestClient) -> None:
    for path in ("/api/v1/session", "/api/v1/users", "/api/v1/studies", "/api/v1/studies/a/sign"):
        for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=x", "text/plain", ""):
            answer = client.post(path, content=body, headers={"Content-Type": kind})
            assert 400 <= answer.status_code < 500, (path, kind)
            assert "application/json" in answer.headers["content-type"]


def _sent(port: int, data: bytes, *, last: bytes = b"") -> bytes:
    """What comes back until the server closes the connection; ``last`` is sent again and again."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(data)
        received = b""
        client.settimeout(0.05)
        end = time.monotonic() + 60
        while True:
            assert time.monotonic() < end, "the connection is kept"
            try:
                part = client.recv(1 << 16)
                if not part:
                    return received
                received += part
            except TimeoutError:
                try:
                    client.sendall(last)
                except OSError:
                    return received
            except OSError:
                return received


def test_silent_and_slow_connections_are_cut(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.workstation.connections.LINGER_S", 0.2)
    with listening(settings.model_copy(update={"head_s": 0.3, "body_s": 0.3})) as (port, token):
        head = f"POST /api/v1/studies HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        form = "Content-Type: multipart/form-data; boundary=x\r\n"
        assert _sent(port, b"") == b""
        assert _sent(port, b"GET / HT", last=b"T") == b""
        assert _sent(port, head.encode(), last=b"X-A: b\r\n") == b""
        slow = _sent(port, f"{head}{form}Content-Length: 100000\r\n\r\n--x\r\n".encode(), last=b"a")
        assert b" 408 " in slow.splitlines()[0]
        assert b"content-security-policy" in slow
        wrong = _sent(port, f"{head}{form}Content-Length: 100000\r\n\r\na".encode(), last=b"a")
        assert b" 400 " in wrong.splitlines()[0]  # and then the rest of it is not waited for
        unsized = _sent(port, f"{head}{form}Transfer-Encoding: chunked\r\n\r\n5\r\n--x\r\n\r\n".encode())
        assert b" 408 " in unsized.splitlines()[0]
        # A second request on a connection has no more time than the first.
        repeated = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\nGET /heal".encode()
        assert _sent(port, repeated, last=b"t").count(b"HTTP/1.1 200") == 1


def _taken(port: int, path: str, *, bytes_a_turn: int, pause_s: float) -> int:
    """How much of an answer a client gets that reads so much and then waits so long."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        client.settimeout(30)
        client.connect(("127.0.0.1", port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        taken = 0
        try:
            while part := client.recv(bytes_a_turn):
                taken += len(part)
                time.sleep(pause_s)
        except ConnectionResetError:
            pass
        return taken


def test_slow_readers_are_cut(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of minutes and KiB a second, scaled down to a second and MiB. Reading on does not begin them anew."""
    made = _TimedProtocol.connection_made

    def with_little_room(self: _TimedProtocol, transport: Any) -> None:
        # A kernel that takes all at once would hide who reads slowly.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        made(self, transport)

    monkeypatch.setattr(_TimedProtocol, "connection_made", with_little_room)
    monkeypatch.setattr("radweave.workstation.connections.ANSWER_S", 1.0)
    script = "/static/vendor/cornerstone/cornerstone.js"
    with listening(settings) as (port, _):
        whole = _taken(port, script, bytes_a_turn=1 << 20, pause_s=0)
        assert whole > 1_500_000
        monkeypatch.setattr("radweave.workstation.connections.LEAST_RATE", 1 << 24)
        assert _taken(port, script, bytes_a_turn=1 << 12, pause_s=0.005) < whole
        assert b" 200 " in _sent(port, f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())


def test_a_too_large_body_is_refused_early(settings: Settings) -> None:
    with listening(settings) as (port, token):
        head = f"POST /api/v1/studies HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        stated = _sent(port, f"{head}Content-Length: {2 << 30}\r\n\r\n".encode(), last=b"a")
        assert b" 413 " in stated.splitlines()[0]
        assert b"1073741824" in stated
        huge = _sent(port, head.encode() + b"X-A: " + b"b" * 200_000 + b"\r\n\r\n")
        assert huge == b"" or b" 400 " in huge.splitlines()[0]
        many = _sent(port, head.encode() + b"X-A: b\r\n" * 20_000 + b"\r\n")
        assert many == b"" or b" 400 " in many.splitlines()[0]
