"""What holds for every route there is, the newest too: who may ask, what it leaves in the log."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.workstation.fake_workers import IMAGE
from tests.workstation.load import until
from tests.workstation.stations import PASSWORD, log_in, one_draft, upload

OF_A_STUDY = "/api/v1/studies/{study}"
OPEN = {("POST", "/api/v1/session"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")}
FOR_ADMINS = {
    ("GET", "/api/v1/log"), ("GET", "/api/v1/log/check"), ("GET", "/api/v1/users"), ("POST", "/api/v1/users"),
    ("POST", "/api/v1/users/{number}/token"), ("GET", "/api/v1/users/{number}/tokens"),
    ("PUT", "/api/v1/macros/site"), ("PUT", "/api/v1/template"), ("DELETE", "/api/v1/template"),
    ("DELETE", "/api/v1/users/{number}/tokens/{token}"), ("GET", "/api/v1/learning"), ("GET", "/api/v1/reader-study"),
    ("PUT", "/api/v1/users/{number}/password"), ("PATCH", "/api/v1/users/{number}"),
}  # fmt: skip
BODIES: dict[str, Any] = {
    "/sentences": {"version": 1, "edits": [{"op": "remove", "key": 0}]}, "/looked": {"version": 1, "sentences": [0]},
    "/sign": {"version": 1}, "/addenda": {"after": 0, "text": "More."}, "/reopen": {"version": 1},
    "/reject": {"version": 1, "reason": "No chest."}, "/password": {"new": PASSWORD}, "/users": {"name": "x"},
    "/users/1": {"disabled": True}, "/prior": {"prior": None}, "/template": {"html": ""},
    "/macros/own": {"macros": {}}, "/macros/site": {"macros": {}},
    "/anyway": {"refusal": "unfamiliar"}, "/lock": {}, "/priority": {"priority": "high"},
}  # fmt: skip
VALUES = {"name": "0", "finding": "Edema", "version": "1", "number": "1", "token": "a" * 16}


def routes(client: TestClient) -> list[tuple[str, str]]:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def ask(client: TestClient, method: str, path: str, study: str, **more: Any) -> Any:
    for name, value in {**VALUES, "study": study}.items():
        path = path.replace(f"{{{name}}}", value)
    body = next((body for end, body in BODIES.items() if path.endswith(end)), None) if method != "GET" else None
    return client.request(method, path, json=body, **more)


@pytest.fixture
def other_user(client: TestClient) -> dict[str, str]:
    """The token of another reader, as a header."""
    reader = client.post("/api/v1/users", json={"name": "other", "password": PASSWORD}).json()["id"]
    token = client.post(f"/api/v1/users/{reader}/token").json()["token"]
    return {"Authorization": f"Bearer {token}"}


def test_no_route_shows_another_users_study(client: TestClient, other_user: dict[str, str]) -> None:
    study = one_draft(client)["id"]
    study_routes = [route for route in routes(client) if route[1].startswith(OF_A_STUDY)]
    assert len(study_routes) > 14
    for method, path in study_routes:
        answer = ask(client, method, path, study, headers=other_user)
        assert (answer.status_code, "no such study" in answer.text) == (404, True), (method, path)
    assert client.get(f"/api/v1/studies/{study}").json()["version"] == 1


def test_no_route_but_the_probes_answers_without_a_token(client: TestClient) -> None:
    study = one_draft(client)["id"]
    for method, path in routes(client):
        for header in ("", "Bearer wrong", "Basic YTpi"):
            answer = ask(client, method, path, study, headers={"Authorization": header})
            assert (answer.status_code == 401) is ((method, path) not in OPEN), (method, path, header)


def test_admin_routes_are_refused_to_readers(client: TestClient, other_user: dict[str, str]) -> None:
    known = {
        route
        for route in routes(client)
        if any(end in route[1] for end in ("/users", "/log", "/template", "/macros/site", "/learning", "/reader-study"))
    }
    assert known - {("GET", f"{OF_A_STUDY}/log"), ("GET", "/api/v1/template")} == FOR_ADMINS
    for method, path in FOR_ADMINS:
        assert ask(client, method, path, "x", headers=other_user).status_code == 403, (method, path)


def test_every_change_by_a_browser_needs_the_csrf_token(client: TestClient) -> None:
    csrf = log_in(client, "reader")
    study = one_draft_of(client, csrf)
    changes = [(method, path) for method, path in routes(client) if method != "GET" and (method, path) not in OPEN]
    assert len(changes) > 9
    for headers in ({}, {"X-CSRF-Token": "wrong"}, {"X-CSRF-Token": "ä"}, {**csrf, "Origin": "http://evil.example"}):
        raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        for method, path in changes:
            assert ask(client, method, path, study, headers=raw).status_code == 403, (method, path, headers)
    assert client.get(f"/api/v1/studies/{study}").json()["version"] == 1


def one_draft_of(client: TestClient, csrf: dict[str, str]) -> str:
    client.headers.update(csrf)
    study: str = one_draft(client)["id"]
    client.headers.pop("X-CSRF-Token")
    return study


def test_every_reader_of_a_draft_is_logged(client: TestClient) -> None:
    """Each route alone: what was read before must not speak for it."""
    for method, path in routes(client):
        end = path.removeprefix(OF_A_STUDY)
        if method != "GET" or not path.startswith(OF_A_STUDY) or end in ("/log", "/sent", "/prior", "/priors"):
            continue
        study = one_draft_by_api(client)
        answer = ask(client, method, path, study, params={"format": "text"} if end == "/report" else None)
        done = [entry["action"] for entry in client.get(f"/api/v1/studies/{study}/log").json()["entries"]]
        is_ok = answer.status_code == 200
        assert len(done) > 2 or not is_ok, (path, answer.status_code, done)


def one_draft_by_api(client: TestClient) -> str:
    """A study with a draft that nobody opened."""
    (study,) = upload(client, ("chest.png", IMAGE)).json()["studies"]
    until(lambda: client.get("/api/v1/studies").json()["studies"][0]["state"] == "drafted")
    return str(study)


def test_every_export_is_logged(client: TestClient) -> None:
    study = one_draft(client)["id"]
    for _ in range(2):
        assert client.get(f"/api/v1/studies/{study}/report", params={"format": "text"}).status_code == 200
    entries = client.get(f"/api/v1/studies/{study}/log").json()["entries"]
    taken = [entry["details"] for entry in entries if entry["action"] == "report taken"]
    assert taken == [{"format": "text", "version": 1}] * 2


@pytest.mark.parametrize("header", [{"Host": "["}, {"Origin": "http://["}, {"Content-Length": "9" * 5_000}])
def test_a_malformed_request_head_is_refused(header: dict[str, str], client: TestClient) -> None:
    assert client.post("/api/v1/session", headers=header).status_code in (400, 403, 413)
