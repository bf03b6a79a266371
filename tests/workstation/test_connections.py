"""Silent and slow connections: however many there are, probes and readers are answered."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest

from radweave.workstation.connections import RESERVE, Connections, Proxies, Use, _CountedTransport
from radweave.workstation.disk import ConcurrencyLimit
from radweave.workstation.settings import Settings
from tests.workstation.stations import listening

PROBES = 28


def ask(port: int, path: str = "/healthz", *, more: str = "", source: str = "127.0.0.1") -> int:
    """The status of a request on a connection of its own; 0 where there is none."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{more}\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0)) as client:
            client.sendall(head.encode())
            received = b""
            while part := client.recv(1 << 16):
                received += part
    except OSError:
        return 0
    return int(received.split()[1]) if received else 0


def crowd(stack: ExitStack, port: int, number: int, data: bytes, *sources: str) -> list[socket.socket]:
    """Connections that say so much and no more, from these addresses in turn."""
    clients = []
    for one in range(number):
        source = (sources[one % len(sources)], 0)
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20, source_address=source))
        client.sendall(data)
        clients.append(client)
    return clients


SLOW_BODY = (
    b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
)
IDLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
KINDS = {"silent": b"", "a slow head": b"GET /he", "a slow body": SLOW_BODY, "idle after an answer": IDLE}


@pytest.mark.parametrize("kind", KINDS)
def test_500_connections_of_one_client_do_not_block_others(kind: str, settings: Settings) -> None:
    """The attacker's own address is the probe's: a proxy, or a machine of many users."""
    with listening(settings) as (port, token), ExitStack() as stack:
        clients = crowd(stack, port, 500, KINDS[kind], "127.0.0.1")
        assert [ask(port) for _ in range(PROBES)] == [200] * PROBES
        bearer = f"Authorization: Bearer {token}\r\n"
        assert ask(port, "/api/v1/session", more=bearer, source="127.0.0.2") == 200
        if kind != "a slow body":
            assert ask(port, "/api/v1/session", more=bearer) == 200
        assert len(clients) == 500


def test_many_slow_clients_do_not_block_others(settings: Settings) -> None:
    with listening(settings) as (port, token), ExitStack() as stack:
        crowd(stack, port, 700, SLOW_BODY, *(f"127.0.0.{number}" for number in range(2, 8)))
        assert [ask(port) for _ in range(PROBES)] == [200] * PROBES
        bearer = f"Authorization: Bearer {token}\r\n"
        assert [ask(port, "/api/v1/session", more=bearer) for _ in range(5)] == [200] * 5


def test_connections_in_processing_and_of_clients_with_fewer_are_not_cut() -> None:
    counted: Counter[str] = Counter()
    connections = Connections(6, 4, Proxies(()), lambda name: counted.update([name]))

    class One:
        def __init__(self, use: Use) -> None:
            self._use, self.is_cut = use, False

        def use(self) -> Use:
            return self._use

        def cut(self) -> None:
            self.is_cut = True

    def enter(address: str, *uses: Use) -> list[One]:
        made = [One(use) for use in uses]
        for one in made:
            connections.enter(one, address)
        return made

    a = enter("10.0.0.1", Use.WORKED_FOR, Use.SENDING, Use.SILENT, Use.SILENT)
    (more,) = enter("10.0.0.1", Use.SENDING)  # the fifth of one: its own oldest silent one goes
    assert [one.is_cut for one in a] == [False, False, True, False]
    b = enter("10.0.0.2", Use.SENDING, Use.SENDING)
    (c,) = enter("10.0.0.3", Use.SENDING)  # the seventh of all: a silent one of who has most
    assert [one.is_cut for one in a] == [False, False, True, True]
    (d,) = enter("10.0.0.4", Use.SENDING)  # none is silent: one of who has more
    assert [one.is_cut for one in (*a, more)] == [False, True, True, True, False]
    assert not any(one.is_cut for one in (*b, c, d))
    for one in (*a, more, *b, c, d):
        one._use = Use.WORKED_FOR
    spare = [One(Use.WORKED_FOR) for _ in range(RESERVE + 1)]
    assert not any(connections.enter(one, "10.0.0.5") for one in spare)
    assert [one.is_cut for one in spare] == [True] + [False] * RESERVE
    assert counted["connections_cut"] == 4
    for one in (*a, more, *b, c, d, *spare):
        connections.leave(one)
        connections.leave(one)
    assert len(connections) == 0
    assert not connections._held


def test_a_connection_is_closed_once() -> None:
    """A second close of TLS loses its state: a stopping server then failed on who had not read its answer."""
    plain = Mock(is_closing=Mock(side_effect=[False, True]))
    counted = _CountedTransport(plain, lambda size: None)
    counted.close()
    counted.close()
    plain.close.assert_called_once()


def test_a_handshake_outlasts_silent_connections_of_the_same_client() -> None:
    """Else a probe beside a burst of silent connections would be cut within its handshake."""
    connections = Connections(9, 3, Proxies(()), lambda name: None)
    cut: list[str] = []

    def enter(name: str, use: Use) -> None:
        one = type("One", (), {"use": lambda self: use, "cut": lambda self: cut.append(name)})()
        assert connections.enter(one, "10.0.0.1")

    enter("probe", Use.SHAKING)
    for number in range(4):
        enter(f"silent {number}", Use.SILENT)
    assert cut == ["silent 0", "silent 1"]
    for number in range(3):
        enter(f"shaking {number}", Use.SHAKING)
    assert cut[2:] == ["silent 2", "silent 3", "probe"], "handshakes that are never finished keep nobody out"


def test_a_proxy_has_no_limit_of_one_client_and_an_ipv6_network_is_one() -> None:
    def silent() -> Any:
        return type("One", (), {"use": lambda self: Use.SENDING, "cut": lambda self: None})()

    connections = Connections(100, 3, Proxies(("10.0.0.1",)), lambda name: None)
    assert all(connections.enter(silent(), "10.0.0.1") for _ in range(20))
    assert [connections.enter(silent(), f"2001:db8::{number}") for number in range(4)] == [True] * 3 + [False]
    assert connections.enter(silent(), "2001:db8:0:1::1")
    assert [connections.enter(silent(), f"::ffff:10.0.0.{number}") for number in (2, 3)] == [True] * 2


def test_the_clients_behind_a_proxy_are_counted_one_by_one(settings: Settings) -> None:
    limits = settings.limits.model_copy(update={"connections_of_one": 3})
    changes = {"behind_proxy": ("127.0.0.1",), "limits": limits, "body_s": 20.0}
    with listening(settings.model_copy(update=changes)) as (port, token), ExitStack() as stack:
        body = SLOW_BODY.replace(b"Content-Type", b"X-Forwarded-For: 192.0.2.1\r\nContent-Type")
        crowd(stack, port, 3, body, "127.0.0.1")
        bearer = f"Authorization: Bearer {token}\r\n"
        end = time.monotonic() + 20
        while (received := ask(port, "/api/v1/session", more=f"{bearer}X-Forwarded-For: 192.0.2.1\r\n")) != 503:
            assert time.monotonic() < end, received
        assert ask(port, "/api/v1/session", more=f"{bearer}X-Forwarded-For: 192.0.2.2\r\n") == 200
        assert ask(port, more="X-Forwarded-For: 192.0.2.1\r\n") == 200


def test_slow_clients_do_not_delay_a_stop(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("radweave.workstation.connections.STOP_S", 0.2)
    changes = settings.model_copy(update={"drain_s": 8.0, "head_s": 60.0, "body_s": 60.0})
    with ExitStack() as stack, listening(changes) as (port, _):
        for data in (b"", b"GET /he", SLOW_BODY):
            crowd(stack, port, 2, data, "127.0.0.1")
        assert ask(port) == 200
    assert "library-error" not in capfd.readouterr().err  # "graceful shutdown exceeded"


def test_waiting_logins_leave_threads_to_other_requests(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread would wait for a place to hash a password, of which there are two."""
    monkeypatch.setattr(
        "radweave.workstation.access._passwords", places := ConcurrencyLimit(1, most_waiting=20, wait_s=20.0)
    )
    with listening(settings) as (port, token), ExitStack() as stack, places.slot():
        for number in range(60):
            body = f'{{"name": "n{number}", "password": "wrong"}}'
            head = "POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            data = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
            crowd(stack, port, 1, data, f"127.0.0.{2 + number // 4}")
        assert ask(port, "/api/v1/session", more=f"Authorization: Bearer {token}\r\n") == 200
