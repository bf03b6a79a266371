"""The nginx example of the documentation, run as it stands there but for its ports and files."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from radweave.workstation.settings import Settings
from tests.toys import ROOT
from tests.workstation.certificates import certificate
from tests.workstation.load import free_port
from tests.workstation.stations import PASSWORD, listening

pytestmark = pytest.mark.programs


@pytest.fixture
def proxied(settings: Settings, tmp_path: Path) -> Iterator[tuple[int, int, str, Path]]:
    """The proxy before a workstation: its port, the workstation's, the first token, the certificate."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    outer = free_port()
    changes = {"behind_proxy": ("127.0.0.1",), "public_url": f"https://127.0.0.1:{outer}"}
    cert, key = certificate(tmp_path)
    with listening(settings.model_copy(update=changes)) as (inner, token):
        (block,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "deploying.md").read_text("utf-8"), re.DOTALL)
        block = block.replace("listen 443", f"listen 127.0.0.1:{outer}").replace("127.0.0.1:8765", f"127.0.0.1:{inner}")
        block = block.replace("/etc/nginx/radweave.pem", str(cert)).replace("/etc/nginx/radweave.key", str(key))
        # The test's name of the server has a port, which $host leaves out.
        block = block.replace("$host;", "$http_host;")
        places = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        head = f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}"
        file = tmp_path / "nginx.conf"
        file.write_text(f"{head} http {{ access_log off; {places} {block} }}")
        process = subprocess.Popen(["nginx", "-c", str(file), "-p", str(tmp_path)], stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 30
            while True:
                assert time.monotonic() < end
                assert process.poll() is None, (tmp_path / "error.log").read_text()
                try:
                    socket.create_connection(("127.0.0.1", outer), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield outer, inner, token, cert
        finally:
            process.terminate()
            process.wait(30)


def response_to(port: int, cert: Path | None, method: str, path: str, body: str = "", **headers: str) -> str:
    """The answer to a request; over TLS where there is a certificate."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    if body:
        more += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    request = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{more}\r\n{body}"
    # Another address than the proxy's, which is trusted.
    client = socket.create_connection(("127.0.0.1", port), timeout=30, source_address=("127.0.0.2", 0))
    if cert is not None:
        client = ssl.create_default_context(cafile=str(cert)).wrap_socket(client, server_hostname="127.0.0.1")
    with client:
        client.sendall(request.encode())
        received = b""
        while part := client.recv(1 << 16):
            received += part
    return received.decode()


def test_the_example_logs_in_securely_and_counts_each_client(proxied: tuple[int, int, str, Path]) -> None:
    outer, inner, token, cert = proxied
    bearer = f"Bearer {token}"
    user = f'{{"name": "r", "password": "{PASSWORD}"}}'
    assert " 201 " in response_to(outer, cert, "POST", "/api/v1/users", user, Authorization=bearer)
    origin = f"https://127.0.0.1:{outer}"
    spoofed = {"X_Forwarded_For": "203.0.113.7", "X_Forwarded_Proto": "http", "X_Forwarded_Host": "evil.example"}
    answer = response_to(outer, cert, "POST", "/api/v1/session", user, Origin=origin, **spoofed)
    assert " 200 " in answer.splitlines()[0]
    cookies = [line for line in answer.splitlines() if line.lower().startswith("set-cookie")]
    assert len(cookies) == 2
    assert all("; Secure" in line for line in cookies)
    assert (
        " 403 "
        in response_to(outer, cert, "POST", "/api/v1/session", user, Origin="https://evil.example").splitlines()[0]
    )
    wrong = user.replace(PASSWORD, "wrong")
    for _ in range(3):
        assert " 401 " in response_to(outer, cert, "POST", "/api/v1/session", wrong, **spoofed).splitlines()[0]
    log = response_to(outer, cert, "GET", "/api/v1/log?newest_first=true", Authorization=bearer)
    assert log.count('"login refused"') == log.count('"address": "127.0.0.2"') + log.count('"address":"127.0.0.2"') == 3
    assert " 403 " in response_to(outer, cert, "GET", "/metrics").splitlines()[0]
    assert " 200 " in response_to(inner, None, "GET", "/metrics").splitlines()[0]
    assert " 200 " in response_to(outer, cert, "GET", "/healthz").splitlines()[0]
