"""Passwords that are changed, tokens that are taken back, and who may."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from stations import ORIGIN, PASSWORD, log_in

OTHER = "other long words"


def test_a_changed_password_ends_the_other_sessions(client: TestClient) -> None:
    csrf = log_in(client, "r")
    number = client.get("/api/v1/session").json()["id"]
    elsewhere = TestClient(client.app, base_url=ORIGIN)
    assert elsewhere.post("/api/v1/session", json={"name": "r", "password": PASSWORD}).status_code == 200
    place = f"/api/v1/users/{number}/password"
    wrong = client.put(place, json={"old": "wrong", "new": OTHER}, headers=csrf)
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "old")
    assert client.put(place, json={"old": PASSWORD, "new": "short"}, headers=csrf).status_code == 400
    assert elsewhere.get("/api/v1/session").status_code == 200
    assert client.put(place, json={"old": PASSWORD, "new": OTHER}, headers=csrf).status_code == 204
    assert (client.get("/api/v1/session").status_code, elsewhere.get("/api/v1/session").status_code) == (200, 401)
    assert elsewhere.post("/api/v1/session", json={"name": "r", "password": PASSWORD}).status_code == 401
    assert elsewhere.post("/api/v1/session", json={"name": "r", "password": OTHER}).status_code == 200


def test_a_token_that_was_taken_back_lets_nobody_in(client: TestClient) -> None:
    number = client.post("/api/v1/users", json={"name": "r"}).json()["id"]
    tokens = [client.post(f"/api/v1/users/{number}/token").json()["token"] for _ in range(2)]
    program = TestClient(client.app, base_url=ORIGIN)
    assert program.post("/api/v1/session", json={"token": tokens[0]}).status_code == 200
    listed = client.get(f"/api/v1/users/{number}/tokens").json()["tokens"]
    assert not any(token in str(listed) for token in tokens)
    place = f"/api/v1/users/{number}/tokens"
    assert client.delete(f"{place}/{listed[0]['id']}").status_code == 204
    assert client.delete(f"{place}/{listed[0]['id']}").status_code == 404
    known = [
        client.get("/api/v1/session", headers={"Authorization": f"Bearer {token}"}).status_code for token in tokens
    ]
    assert known == [401, 200]
    # The session that was opened with it ended too.
    assert program.get("/api/v1/session").status_code == 401


@pytest.mark.parametrize("name", ["%25", "____", "a" * 15, "a" * 64, "________________"])
def test_a_name_that_fits_many_tokens_takes_none_back(name: str, client: TestClient) -> None:
    assert client.delete(f"/api/v1/users/1/tokens/{name}").status_code in (404, 422)
    assert client.get("/api/v1/session").status_code == 200


def test_readers_change_nobody_elses_way_in(client: TestClient) -> None:
    csrf = log_in(client, "r")
    for method, path, body in (
        ("PUT", "/password", {"new": OTHER}), ("GET", "/tokens", None), ("DELETE", "/tokens/0123456789abcdef", None),
    ):  # fmt: skip
        assert client.request(method, f"/api/v1/users/1{path}", json=body, headers=csrf).status_code == 403


def test_an_admin_gives_another_password_without_the_old_one(client: TestClient) -> None:
    number = client.post("/api/v1/users", json={"name": "r", "password": PASSWORD}).json()["id"]
    assert client.put(f"/api/v1/users/{number}/password", json={"new": OTHER}).status_code == 204
    assert client.post("/api/v1/session", json={"name": "r", "password": OTHER}).status_code == 200
    assert client.put("/api/v1/users/99/password", json={"new": OTHER}).status_code == 400


def test_guesses_of_the_old_password_are_counted(client: TestClient) -> None:
    csrf = log_in(client, "r")
    number = client.get("/api/v1/session").json()["id"]
    given = {"old": "wrong", "new": OTHER}
    tries = [client.put(f"/api/v1/users/{number}/password", json=given, headers=csrf) for _ in range(6)]
    assert [answer.status_code for answer in tries] == [400] * 5 + [429]
