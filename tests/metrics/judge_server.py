"""A fake OpenAI-compatible server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from radweave.metrics.judge import DIMENSIONS

Reply = tuple[int, dict[str, str], bytes]


def answer(slot: str, **evidence: list[str]) -> str:
    lists = {"reference_key_findings": ["normal"], "first_report_spans": [], "second_report_spans": [], **evidence}
    return json.dumps({**dict.fromkeys(DIMENSIONS, slot), "evidence": lists, "reason": "because"})


def completion(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@dataclass
class Server:
    """What the fake server was asked, and its address."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serving(reply: Callable[[int, dict[str, Any]], Reply]) -> Iterator[Server]:
    """Serve ``reply(number of the request, body)`` on a free port."""
    observed = Server("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            observed.requests.append({"path": self.path, **body})
            observed.headers.append(dict(self.headers))
            status, headers, data = reply(len(observed.requests), body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    observed.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield observed
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def prefers_b(_: int, body: dict[str, Any]) -> Reply:
    """A fair judge: chooses system B wherever it stands."""
    texts = json.loads(body["messages"][1]["content"])
    return 200, {}, completion(answer("first" if "of b" in texts["first_report"] else "second"))
