"""A stand-in for a Qdrant server on this machine: the REST paths that are used, over the client's own memory.

It shows what is sent and how answers are read. It builds no graph.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qdrant_client import QdrantClient, models

Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Server:
    """Its address, what it holds, and what it was asked."""

    url: str = ""
    store: QdrantClient = field(default_factory=lambda: QdrantClient(":memory:"))
    asked: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def uploads(self) -> int:
        return sum(method == "PUT" and path.partition("?")[0].endswith("/points") for method, path in self.asked)

    def result(self, method: str, path: str, body: Any) -> Any:
        _, _, name, *rest = [*path.partition("?")[0].split("/"), ""]
        match method, [part for part in rest if part]:
            case "GET", [] if not name:
                return {"collections": []}
            case "GET", ["exists"]:
                return {"exists": self.store.collection_exists(name)}
            case "GET", []:
                return self.store.get_collection(name)
            case "PUT", []:
                return self.store.create_collection(name, models.VectorParams(**body["vectors"]))
            case "POST", ["points", "count"]:
                return self.store.count(name)
            case "PUT", ["points"]:
                return self.store.upsert(name, models.Batch(**body["batch"]))
            case "POST", ["points"]:
                return self.store.retrieve(name, body["ids"], with_payload=False, with_vectors=True)
            case "POST", ["points", "query", "batch"]:
                searches = [models.QueryRequest(query=one["query"], limit=one["limit"]) for one in body["searches"]]
                return self.store.query_batch_points(name, searches)
        raise AssertionError(f"nobody asks {method} {path}")


@contextmanager
def serving(instead: Callable[[str], Reply | None] = lambda path: None) -> Iterator[Server]:
    """Serve on a free port; ``instead`` answers a path in its own way."""
    seen = Server()

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.asked.append((self.command, self.path))
            seen.bodies.append(body)
            seen.headers.append(dict(self.headers))
            status, headers, data = instead(self.path) or (200, {}, self._answer(body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self, body: bytes) -> bytes:
            result = seen.result(self.command, self.path, json.loads(body or b"null"))
            return json.dumps({"status": "ok", "time": 0.0, "result": result}, default=plain).encode()

        do_GET = do_PUT = do_POST = _reply  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def plain(value: Any) -> Any:
    return value.model_dump(mode="json")
