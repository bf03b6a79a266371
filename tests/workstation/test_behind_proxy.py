"""Forwarded headers: of trusted addresses they count, of all others they do not."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.connections import Proxies, address_of, peer_of
from radweave.workstation.settings import Settings
from tests.command_line import radweave
from tests.workstation.stations import PASSWORD, running

PROXY, OUTSIDER, NAME = "10.0.0.1", "192.0.2.9", "radweave.example"


def client_and_scheme(peer: str, *trusted: str, **headers: str | list[str]) -> tuple[str, str, str]:
    """Client, scheme and host of a request as it is seen."""
    rows = [(b"host", b"inside:8765")]
    for name, values in headers.items():
        for value in [values] if isinstance(values, str) else values:
            rows.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    scope: dict[str, Any] = {"type": "http", "scheme": "http", "client": (peer, 5), "headers": rows}
    result, _ = Proxies(trusted).seen_through(scope)
    assert not [name for name, _ in result["headers"] if b"forwarded" in name or name == b"x-real-ip"]
    (host,) = [value.decode() for name, value in result["headers"] if name == b"host"]
    return result["client"][0], result["scheme"], host


@pytest.mark.parametrize(
    ("peer", "chain", "client"),
    [
        (PROXY, "192.0.2.1", "192.0.2.1"),
        (OUTSIDER, "192.0.2.1", OUTSIDER),
        (PROXY, "203.0.113.7, 192.0.2.1", "192.0.2.1"),  # what stands left is the client's own word
        (PROXY, "10.0.0.1, 192.0.2.1", "192.0.2.1"),
        (PROXY, "203.0.113.7, 192.0.2.1, 10.1.0.2", "192.0.2.1"),  # two proxies
        (PROXY, "203.0.113.7, 192.0.2.1, 10.1.0.2, 10.1.0.3", "192.0.2.1"),
        (PROXY, "10.1.0.2, 10.1.0.3", "10.1.0.2"),  # all are ours
        (PROXY, "192.0.2.1:4711", "192.0.2.1"),
        (PROXY, "[2001:db8::1]:4711", "2001:db8::1"),
        (PROXY, "2001:db8::1", "2001:db8::1"),
        (PROXY, "[2001:db8::1]", "2001:db8::1"),
        (PROXY, "::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("fd00::5", "192.0.2.1", "192.0.2.1"),
        ("fe00::5", "192.0.2.1", "fe00::5"),
        (PROXY, "", PROXY),
        (PROXY, ", ,", PROXY),
        (PROXY, "unknown", PROXY),
        (PROXY, "192.0.2.1, unknown", PROXY),
        (PROXY, "192.0.2.1, _hidden, 10.1.0.2", "10.1.0.2"),
        (PROXY, "fe80::1%eth0", PROXY),
        (PROXY, "192.0.2.1; DROP", PROXY),
        (PROXY, "0xC0000201", PROXY),
        (PROXY, "192.0.2.1, " * 5_000, "192.0.2.1"),
        (PROXY, "10.1.0.2, " * 5_000, "10.1.0.2"),
        ("", "192.0.2.1", ""),
    ],
)  # fmt: skip
def test_the_client_is_the_rightmost_untrusted_address(peer: str, chain: str, client: str) -> None:
    assert client_and_scheme(peer, PROXY, "10.1.0.0/16", "fd00::/8", x_forwarded_for=chain)[0] == client


def test_repeated_headers_are_one_list() -> None:
    lines = ["203.0.113.7", "192.0.2.1, 10.1.0.2"]
    assert client_and_scheme(PROXY, PROXY, "10.1.0.2", x_forwarded_for=lines)[0] == "192.0.2.1"


@pytest.mark.parametrize(
    ("peer", "more", "scheme", "host"),
    [
        (PROXY, {"x_forwarded_proto": "https", "x_forwarded_host": NAME}, "https", NAME),
        (OUTSIDER, {"x_forwarded_proto": "https", "x_forwarded_host": NAME}, "http", "inside:8765"),
        (PROXY, {"x_forwarded_proto": "HTTPS"}, "https", "inside:8765"),
        (PROXY, {"x_forwarded_proto": "https, http"}, "http", "inside:8765"),  # the client claims, one proxy appends
        (PROXY, {"x_forwarded_proto": "gopher", "x_forwarded_host": "a b"}, "http", "inside:8765"),
        (PROXY, {"x_forwarded_host": f"{NAME}:8443"}, "http", f"{NAME}:8443"),
        (PROXY, {"x_forwarded_host": "[2001:db8::1]:443"}, "http", "[2001:db8::1]:443"),
        (PROXY, {"x_forwarded_host": "evil.example/"}, "http", "inside:8765"),
        (PROXY, {"x_forwarded_host": "user@evil.example"}, "http", "inside:8765"),
        (PROXY, {"x_forwarded_host": "evil\r\nset-cookie: a"}, "http", "inside:8765"),
        (PROXY, {"forwarded": f"for=1.2.3.4;proto=https;host={NAME}"}, "http", "inside:8765"),
        (PROXY, {"x_forwarded_ssl": "on", "x_forwarded_port": "443"}, "http", "inside:8765"),
    ],
)  # fmt: skip
def test_scheme_and_host_are_read_from_a_trusted_proxy(peer: str, more: dict[str, str], scheme: str, host: str) -> None:
    assert client_and_scheme(peer, PROXY, x_forwarded_for="192.0.2.1", **more)[1:] == (scheme, host)


def test_the_outer_of_two_proxies_states_the_scheme() -> None:
    chain = {"x_forwarded_for": "192.0.2.1, 10.1.0.2", "x_forwarded_proto": "https, http"}
    assert client_and_scheme(PROXY, PROXY, "10.1.0.2", **chain)[1] == "https"
    spoofed = {"x_forwarded_for": "9.9.9.9, 192.0.2.1, 10.1.0.2", "x_forwarded_proto": "https, http, http"}
    assert client_and_scheme(PROXY, PROXY, "10.1.0.2", **spoofed)[1] == "http"


def test_addresses_are_compared_as_addresses() -> None:
    assert [str(address_of(text)) for text in ("127.0.0.1", "[::1]:1", "1.2.3.4:5")] == ["127.0.0.1", "::1", "1.2.3.4"]
    assert [address_of(text) for text in ("", "x", "1.2.3", "[]", "[1.2.3.4", "1.2.3.4:", "::1%1", "1.2.3.4:a")] == [
        None
    ] * 8
    assert peer_of("2001:db8::1") == peer_of("2001:db8::ffff") != peer_of("2001:db8:0:1::1")
    assert peer_of("::ffff:192.0.2.1") == "192.0.2.1"


@pytest.fixture
def passed_on(settings: Settings) -> Any:
    """A client whose requests come as those of a proxy with TLS; ``client`` is the test's own name of its address."""
    with running(settings.model_copy(update={"behind_proxy": (PROXY,)})) as (client, _):
        yield client


def test_behind_a_proxy_the_cookie_is_secure_and_the_origin_is_the_outer_one(passed_on: TestClient) -> None:
    passed_on.post("/api/v1/users", json={"name": "r", "password": PASSWORD})
    login = {"name": "r", "password": PASSWORD}
    right = {"Host": NAME, "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https", "Origin": f"https://{NAME}"}
    browser = TestClient(passed_on.app, base_url="http://127.0.0.1:8765", client=(PROXY, 5))
    answer = browser.post("/api/v1/session", json=login, headers=right)
    assert answer.status_code == 200, answer.text
    assert all("; Secure" in cookie for cookie in answer.headers.get_list("set-cookie"))
    for wrong in (f"http://{NAME}", "https://evil.example", "null"):
        assert browser.post("/api/v1/session", json=login, headers={**right, "Origin": wrong}).status_code == 403
    # Of a stranger the same headers say nothing, and the name is another one than this server's.
    outsider = TestClient(passed_on.app, base_url="http://127.0.0.1:8765", client=(OUTSIDER, 5))
    assert outsider.post("/api/v1/session", json=login, headers=right).status_code == 400
    spoofed = {name: value for name, value in right.items() if name not in ("Host", "Origin")}
    answer = outsider.post("/api/v1/session", json=login, headers=spoofed)
    assert answer.status_code == 200
    assert not any("; Secure" in cookie for cookie in answer.headers.get_list("set-cookie"))


def test_behind_a_proxy_one_client_does_not_lock_out_the_others(passed_on: TestClient) -> None:
    passed_on.post("/api/v1/users", json={"name": "r", "password": PASSWORD})
    browser = TestClient(passed_on.app, base_url="http://127.0.0.1:8765", client=(PROXY, 5))

    def tried(client: str, password: str) -> int:
        head = {"X-Forwarded-For": f"198.51.100.1, {client}"}
        result = browser.post("/api/v1/session", json={"name": "r", "password": password}, headers=head).status_code
        browser.cookies.clear()
        return result

    assert [tried("192.0.2.1", "wrong") for _ in range(6)] == [401] * 5 + [429]
    assert tried("192.0.2.2", PASSWORD) == 200
    assert [tried("192.0.2.3", PASSWORD) for _ in range(30)] == [200] * 30  # who is right is not counted
    entries = passed_on.get("/api/v1/log", params={"newest_first": True, "limit": 200}).json()["entries"]
    assert {one["details"]["address"] for one in entries if one["action"] == "login refused"} == {"192.0.2.1"}


def test_with_a_public_url_other_host_names_are_refused(settings: Settings) -> None:
    changes = {"behind_proxy": (PROXY,), "public_url": f"https://{NAME}", "host": "0.0.0.0"}
    with running(settings.model_copy(update=changes)) as (client, _):
        for peer in (PROXY, OUTSIDER):
            proxied = TestClient(client.app, base_url="http://127.0.0.1:8765", client=(peer, 5))
            hosts = (
                NAME,
                f"{NAME}:443",
                NAME.upper(),
                "127.0.0.1:8765",
                "evil.example",
                f"{NAME}.evil",
                f"{NAME}:8443",
            )
            result = [proxied.get("/login", headers={"Host": host}).status_code for host in hosts]
            assert result == [200] * 4 + [400] * 3
            # Who probes calls the server by an address.
            assert proxied.get("/healthz", headers={"Host": "10.2.3.4:8765"}).status_code == 200


@pytest.mark.parametrize("changes", ["nobody", "10.0.0.0/33", "10.0.0.1,x", "0.0.0.0/0", "::/0", "10.0.0.1:80"])
def test_an_invalid_proxy_address_is_refused(changes: str, tmp_path: Any) -> None:
    done = radweave("serve", tmp_path / "run", "--behind-proxy", changes)
    assert done.returncode == 2
    assert "--behind-proxy" in done.stderr


@pytest.mark.parametrize(
    "changes", ["radweave.example", "ftp://a", "https://a/b", "https://a@b", "https://a:x", "https://"]
)
def test_an_invalid_public_url_is_refused(changes: str, tmp_path: Any) -> None:
    done = radweave("serve", tmp_path / "run", "--public-url", changes)
    assert done.returncode == 2
    assert "--public-url" in done.stderr
