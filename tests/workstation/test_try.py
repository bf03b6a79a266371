"""``radweave serve RUN --try``: no log-in, this machine alone, nothing kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.app import create_app
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from tests.command_line import radweave
from tests.workstation.fake_workers import IMAGE, fake_worker
from tests.workstation.stations import NOTICE, ORIGIN


@pytest.fixture
def visitor(settings: Settings) -> Any:
    """A browser without a token, at a workstation to try."""
    tried = settings.model_copy(update={"try_out": True})
    tried.state.mkdir(exist_ok=True)
    with TestClient(create_app(Station(tried, target=fake_worker)), base_url=ORIGIN) as client:
        yield client


def test_a_browser_is_let_in_without_log_in(visitor: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert visitor.get("/api/v1/studies").status_code == 401
    page = visitor.get("/")
    assert page.status_code == 200
    page = visitor.get("/studies")
    assert "Nothing is kept" in page.text
    assert NOTICE in page.text
    assert "Log out" not in page.text
    csrf = page.text.split('name="csrf" content="')[1].split('"')[0]
    answer = visitor.post("/api/v1/studies", files=[("files", ("a.png", IMAGE))], headers={"X-CSRF-Token": csrf})
    assert answer.status_code == 202
    # The greeting stays in sight: other events are written, requests are not.
    events = capsys.readouterr().err
    assert '"event": "submitted"' in events
    assert '"event": "request"' not in events


def test_another_page_s_address_and_a_change_without_its_token_are_refused(visitor: TestClient) -> None:
    assert visitor.get("/", headers={"Host": "elsewhere.example"}).status_code in (400, 403, 421)
    visitor.get("/")
    assert visitor.post("/api/v1/studies", files=[("files", ("a.png", IMAGE))]).status_code == 403


@pytest.mark.parametrize(
    "more", [("--host", "0.0.0.0"), ("--public-url", "https://x.example"), ("--behind-proxy", "10.0.0.5")]
)
def test_other_machines_are_never_served(more: tuple[str, str], toy_run: Path) -> None:
    refused = radweave("serve", toy_run, "--try", *more)
    assert refused.returncode != 0
    assert "serves this machine alone" in refused.stderr


def test_nothing_is_left_and_what_keeps_something_is_refused(
    toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Settings] = []

    def serve(settings: Settings) -> None:
        begun.append(settings)
        (settings.state / "image").write_bytes(b"x")

    monkeypatch.setattr("radweave.workstation.serve", serve)
    assert radweave("serve", toy_run, "--try", "--queue", "3").returncode == 0
    assert begun[0].try_out
    assert begun[0].limits.waiting == 3
    assert not begun[0].state.exists()
    refused = radweave("serve", toy_run, "--try", "--watch", tmp_path)
    assert refused.returncode != 0
    assert "--watch" in refused.stderr
    assert len(begun) == 1
