"""What tests of the workstation share: an application with a worker that needs no model, and requests to it."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from radweave.workstation.app import create_app, listener
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from tests.workstation.fake_workers import IMAGE, fake_worker
from tests.workstation.load import free_port

ORIGIN = "http://127.0.0.1:8765"
NOTICE = "Research software, not a medical device"
PASSWORD = "long enough words"


@contextmanager
def running(settings: Settings, target: Any = fake_worker) -> Iterator[tuple[TestClient, Station]]:
    """A started workstation, and a client that bears the first token (on the first start)."""
    settings.state.mkdir(exist_ok=True)
    station = Station(settings, target=target)
    headers = {} if station.token is None else {"Authorization": f"Bearer {station.token}"}
    with TestClient(create_app(station), base_url=ORIGIN, headers=headers) as client:
        yield client, station


@contextmanager
def listening(settings: Settings, target: Any = fake_worker) -> Iterator[tuple[int, str]]:
    """A workstation on a port of its own: the port and a token."""
    port = free_port()
    settings.state.mkdir(exist_ok=True)
    station = Station(settings.model_copy(update={"port": port}), target=target)
    assert station.token is not None
    server = listener(station.settings, station)
    thread = threading.Thread(target=server.run)
    thread.start()
    end = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < end
        time.sleep(0.01)
    try:
        yield port, station.token
    finally:
        server.should_exit = True
        thread.join()


def upload(client: TestClient, *files: tuple[str, bytes], **more: Any) -> Any:
    parts = [("files", (name, io.BytesIO(data))) for name, data in files]
    return client.post("/api/v1/studies", files=parts, **more)


def wait_for(client: TestClient, study: str, *states: str, seconds: float = 60) -> dict[str, Any]:
    """The study once it has one of these states."""
    end = time.monotonic() + seconds
    while True:
        result: dict[str, Any] = client.get(f"/api/v1/studies/{study}").json()
        if result["state"] in states:
            return result
        assert time.monotonic() < end, result
        time.sleep(0.02)


def one_draft(client: TestClient, data: bytes = IMAGE) -> dict[str, Any]:
    """A study that was drafted."""
    (study,) = upload(client, ("chest.png", data)).json()["studies"]
    return wait_for(client, study, "drafted")


def left_behind(settings: Settings) -> list[Path]:
    # A folder may go while it is looked at, which rglob refuses.
    return [Path(folder, name) for folder, inner, files in os.walk(settings.files) for name in (*inner, *files)]


def log_in(client: TestClient, name: str) -> dict[str, str]:
    """Become another user with a browser's session; return what its changes must repeat."""
    client.post("/api/v1/users", json={"name": name, "password": PASSWORD})
    client.headers.pop("Authorization", None)
    answer = client.post("/api/v1/session", json={"name": name, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    return {"X-CSRF-Token": answer.json()["csrf"]}
