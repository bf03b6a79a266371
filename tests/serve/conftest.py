"""Workstations for tests. Most of them have a worker without a model, so that nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from stations import running

from radweave.serve.settings import Settings
from radweave.serve.station import Station


@pytest.fixture
def settings(toy_run: Path, tmp_path: Path) -> Settings:
    return Settings(run=toy_run, state=tmp_path / "state")


@pytest.fixture
def started(settings: Settings) -> Iterator[tuple[TestClient, Station]]:
    with running(settings) as both:
        yield both


@pytest.fixture
def client(started: tuple[TestClient, Station]) -> TestClient:
    return started[0]
