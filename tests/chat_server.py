"""A stand-in for a served model that fails, stalls, drops and answers rubbish at stated rates."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RATES = {"fail": 0.1, "stall": 0.05, "drop": 0.1, "rubbish": 0.1}
"""Shares of requests: HTTP status 500 or 429, no answer in time, a closed connection, and 200 with what is none."""
RUBBISH = (b"<html>busy</html>", b'{"choices": [{"message": {"content": "The lu', b'{"choices": []}', b"\xff\xfe")


@dataclass
class ChatServer:
    """Address, bodies by their hash, requests, and whole answers by the hash of the body."""

    url: str = ""
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)


def report_for(key: str) -> str:
    """The report for the question of this hash."""
    return f"The lungs are clear. Opacity number {int(key[:8], 16)}."


@contextmanager
def serving_chat(
    rates: Mapping[str, float] | None = None,
    *,
    stall_s: float = 5.0,
    delay_s: float = 0.0,
    keep_bodies: bool = True,
    reply: Callable[[dict[str, Any]], str] | None = None,
) -> Iterator[ChatServer]:
    """Serve on a free port; each try of a question has its own fate, the same in every session.

    ``reply`` writes the answer to a body; without it every question gets its ``report_for``.
    """
    state, lock = ChatServer(), threading.Lock()

    def fate(key: str, number: int) -> str:
        share = int(hashlib.sha256(f"{key} {number}".encode()).hexdigest()[:8], 16) / 16**8
        for kind, rate in (rates or {}).items():
            if share < rate:
                return kind
            share -= rate
        return "answer"

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            key = hashlib.sha256(body).hexdigest()
            with lock:
                state.requests[key] += 1
                number = state.requests[key]
                kind = fate(key, number)
                state.kinds[kind] += 1
                state.headers.append(dict(self.headers))
                if keep_bodies:
                    state.bodies[key] = json.loads(body)
            time.sleep(delay_s)
            if kind == "drop":
                self.close_connection = True
                self.connection.close()
                return
            if kind == "stall":
                time.sleep(stall_s)
                return
            usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
            message = {"role": "assistant", "content": report_for(key) if reply is None else reply(json.loads(body))}
            answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
            status, data = 200, json.dumps(answer).encode()
            if kind == "fail":
                status, data = (500, b"") if number % 2 else (429, b"")
            elif kind == "rubbish":
                data = RUBBISH[number % len(RUBBISH)]
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            if kind == "answer":
                with lock:
                    state.answered[key] += 1

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: object) -> None:
            """Say nothing: clients are killed and close what they waited for."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
