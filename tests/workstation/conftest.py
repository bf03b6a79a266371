"""Workstations for tests. Most of them have a worker without a model, so that nothing is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from fastapi.testclient import TestClient

from radweave.workstation.database import Database
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from tests.workstation import postgres
from tests.workstation.stations import running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    if postgres.REQUEST_VARIABLE not in os.environ:
        pytest.skip(f"tests of PostgreSQL alone run with {postgres.REQUEST_VARIABLE}: make test-postgres")
    with postgres.server() as started:
        yield started


@pytest.fixture(autouse=True)
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password costs tens of milliseconds by design, which tests do not look at."""
    monkeypatch.setattr("radweave.workstation.users._hasher", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@pytest.fixture
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """An empty database: a file of SQLite, or one of a PostgreSQL server where that is asked for."""
    if postgres.REQUEST_VARIABLE not in os.environ:
        return f"sqlite:///{tmp_path / 'a.db'}"
    server: postgres.PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the threads of the hospital run every 20 ms."""
    for name in ("SENDER_PAUSE_S", "PAUSE_S"):
        monkeypatch.setattr(f"radweave.workstation.hospital.{name}", 0.02)


@pytest.fixture
def settings(toy_run: Path, tmp_path: Path, url: str) -> Settings:
    return Settings(run=toy_run, state=tmp_path / "state", database=None if url.startswith("sqlite") else url)


@pytest.fixture
def started(settings: Settings) -> Iterator[tuple[TestClient, Station]]:
    with running(settings) as both:
        yield both


@pytest.fixture
def client(started: tuple[TestClient, Station]) -> TestClient:
    return started[0]
