"""Passwords that are changed, tokens that are taken back, and who may."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from radweave.workstation import access, users
from radweave.workstation.access import RateLimit
from radweave.workstation.disk import BusyError
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import ORIGIN, PASSWORD, log_in, one_draft, upload

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


def test_a_revoked_token_is_refused(client: TestClient) -> None:
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
def test_an_ambiguous_token_name_revokes_nothing(name: str, client: TestClient) -> None:
    assert client.delete(f"/api/v1/users/1/tokens/{name}").status_code in (404, 422)
    assert client.get("/api/v1/session").status_code == 200


def test_readers_cannot_change_other_accounts(client: TestClient) -> None:
    csrf = log_in(client, "r")
    for method, path, body in (
        ("PUT", "/password", {"new": OTHER}), ("GET", "/tokens", None), ("DELETE", "/tokens/0123456789abcdef", None),
    ):  # fmt: skip
        assert client.request(method, f"/api/v1/users/1{path}", json=body, headers=csrf).status_code == 403


def test_an_admin_sets_a_password_without_the_old_one(client: TestClient) -> None:
    number = client.post("/api/v1/users", json={"name": "r", "password": PASSWORD}).json()["id"]
    assert client.put(f"/api/v1/users/{number}/password", json={"new": OTHER}).status_code == 204
    assert client.post("/api/v1/session", json={"name": "r", "password": OTHER}).status_code == 200
    assert client.put("/api/v1/users/99/password", json={"new": OTHER}).status_code == 400


def test_guesses_of_the_old_password_are_counted(client: TestClient) -> None:
    csrf = log_in(client, "r")
    number = client.get("/api/v1/session").json()["id"]
    columns_wanted = {"old": "wrong", "new": OTHER}
    tries = [client.put(f"/api/v1/users/{number}/password", json=columns_wanted, headers=csrf) for _ in range(6)]
    assert [answer.status_code for answer in tries] == [400] * 5 + [429]


def of(client: TestClient, name: str, address: str = "192.0.2.1") -> TestClient:
    """A browser elsewhere."""
    return TestClient(client.app, base_url=ORIGIN, client=(address, 5), headers={"X-Name": name})


def tried(browser: TestClient, name: str, password: str) -> int:
    return browser.post("/api/v1/session", json={"name": name, "password": password}).status_code


def added(client: TestClient, name: str, **more: str) -> int:
    answer = client.post("/api/v1/users", json={"name": name, "password": PASSWORD, **more})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def test_tokens_end_with_the_password(client: TestClient) -> None:
    number, other = added(client, "r"), added(client, "other")
    tokens = [client.post(f"/api/v1/users/{one}/token").json()["token"] for one in (number, number, other)]

    def known() -> list[int]:
        return [client.get("/api/v1/session", headers={"Authorization": f"Bearer {one}"}).status_code for one in tokens]

    assert known() == [200] * 3
    assert client.put(f"/api/v1/users/{number}/password", json={"new": "short"}).status_code == 400
    assert known() == [200] * 3
    assert client.put(f"/api/v1/users/{number}/password", json={"new": OTHER}).status_code == 204
    assert known() == [401, 401, 200]


def test_a_disabled_user_is_logged_out_at_once_and_can_be_enabled(client: TestClient) -> None:
    number, other = added(client, "r"), added(client, "other")
    tokens = [client.post(f"/api/v1/users/{one}/token").json()["token"] for one in (number, other)]
    browsers = [of(client, name) for name in ("r", "other")]
    assert [tried(browser, name, PASSWORD) for browser, name in zip(browsers, ("r", "other"), strict=True)] == [200] * 2
    assert client.patch(f"/api/v1/users/{number}", json={"disabled": True}).status_code == 204
    assert [browser.get("/api/v1/session").status_code for browser in browsers] == [401, 200]
    heads = [{"Authorization": f"Bearer {token}"} for token in tokens]
    assert [of(client, "").get("/api/v1/session", headers=head).status_code for head in heads] == [401, 200]
    assert tried(browsers[0], "r", PASSWORD) == 401
    assert of(client, "").post("/api/v1/session", json={"token": tokens[0]}).status_code == 401
    assert client.post(f"/api/v1/users/{number}/token").status_code == 400
    assert {one["name"]: one["disabled"] for one in client.get("/api/v1/users").json()["users"]} == {
        "admin": False, "r": True, "other": False,
    }  # fmt: skip
    assert client.patch(f"/api/v1/users/{number}", json={"disabled": False}).status_code == 204
    assert tried(browsers[0], "r", PASSWORD) == 200
    # What ended stays ended.
    assert of(client, "").get("/api/v1/session", headers=heads[0]).status_code == 401
    done = [one["action"] for one in client.get("/api/v1/log", params={"limit": 200}).json()["entries"]]
    assert (done.count("user disabled"), done.count("user enabled")) == (1, 1)


def test_the_last_admin_cannot_be_disabled(client: TestClient) -> None:
    assert client.patch("/api/v1/users/1", json={"disabled": True}).status_code == 400
    added(client, "reader")
    assert client.patch("/api/v1/users/1", json={"disabled": True}).status_code == 400
    second = added(client, "second", role="admin")
    assert client.patch(f"/api/v1/users/{second}", json={"disabled": True}).status_code == 204
    assert client.patch("/api/v1/users/1", json={"disabled": True}).status_code == 400
    assert client.patch(f"/api/v1/users/{second}", json={"disabled": False}).status_code == 204
    assert client.patch("/api/v1/users/1", json={"disabled": True}).status_code == 204
    assert client.get("/api/v1/users").status_code == 401
    assert client.patch("/api/v1/users/99", json={"disabled": True}).status_code == 401


@pytest.mark.parametrize(
    "name",
    ["Reader.One", "reader.one ", " reader.one", "reader.0ne", "rеader.one", "reader\u200b.one", "ｒｅａｄｅｒ.one",
     "reader.one\ufe0f", "READER.ONE", "reader.onе", "\u202ereader.one", "rea\u00adder.one", "reader.one\u3164"],
)  # fmt: skip
def test_look_alike_names_are_one_name(name: str, client: TestClient) -> None:
    added(client, "reader.one")
    answer = client.post("/api/v1/users", json={"name": name, "password": OTHER})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "name")
    # And who types it so means the one that there is.
    assert tried(of(client, ""), name, PASSWORD) == 200
    assert tried(of(client, ""), name, OTHER) == 401


@pytest.mark.parametrize(
    "name",
    [
        "Zoë",
        "李雷",
        "Иван Петров",
        "o'neill",
        "a.b_c-d@example.org",
        "やまだ 太郎",
        "김철수",
        "reader.two",
        "राम शर्मा",
        "สมชาย ใจดี",
        "Ọlá̀",
    ],
)
def test_names_of_all_alphabets_are_accepted(name: str, client: TestClient) -> None:
    added(client, "reader.one")
    added(client, name)
    assert tried(of(client, ""), name, PASSWORD) == 200


@pytest.mark.parametrize("name", ["ki\u0307m", "k\u0333im", "kim\u17d2", "kim\u1039", "kim\u0e3a", "kim\u2d7f"])
def test_combining_marks_do_not_make_another_name(name: str, client: TestClient) -> None:
    added(client, "kim")
    answer = client.post("/api/v1/users", json={"name": name, "password": OTHER})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "name")


@pytest.mark.parametrize("busy", [True, False])
def test_a_login_refused_as_busy_is_not_counted_as_a_failure(
    busy: bool, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(client, "r")

    def refused(*_: Any) -> Any:
        raise BusyError if busy else sa.exc.OperationalError("", {}, Exception())

    with monkeypatch.context() as patched:
        patched.setattr(access if busy else users, "one_password" if busy else "by_password", refused)
        assert [tried(of(client, ""), "r", PASSWORD) for _ in range(7)] == [503] * 7
    assert tried(of(client, ""), "r", PASSWORD) == 200


def test_a_user_disabled_during_a_request_changes_nothing(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for the database, and for its files, after it was looked at who asks."""
    client = started[0]
    study = one_draft(client)["id"]
    number = client.post("/api/v1/users", json={"name": "chief", "role": "admin"}).json()["id"]
    with started[1].database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE studies SET owner_id = {number}")
        users.set_disabled(connection, number, is_disabled=True)
    monkeypatch.setattr(users, "by_token", lambda *_: users.User(number, "chief", "admin"))
    place = f"/api/v1/studies/{study}"
    for method, path, body in (
        ("PATCH", f"{place}/sentences", {"version": 1, "edits": [{"op": "remove", "key": 1}]}),
        ("POST", f"{place}/looked", {"version": 1, "sentences": [1]}),
        ("POST", f"{place}/sign", {"version": 1, "seconds": 1}),
        ("POST", f"{place}/addenda", {"after": 0, "text": "More."}),
        ("POST", f"{place}/reject", {"version": 1, "reason": "A leg."}),
        ("GET", f"{place}/report?format=text", None),
        ("POST", "/api/v1/users", {"name": "other", "password": PASSWORD}),
        ("POST", f"/api/v1/users/{number}/token", {}), ("POST", "/api/v1/users/1/token", {}),
        ("PUT", "/api/v1/users/1/password", {"new": OTHER}), ("PATCH", "/api/v1/users/1", {"disabled": True}),
        ("DELETE", "/api/v1/template", None),
    ):  # fmt: skip
        assert client.request(method, path, json=body).status_code == 401, path
    assert upload(client, ("chest.png", IMAGE)).status_code == 401


def test_look_alike_names_of_whole_other_alphabets_are_one_name(client: TestClient) -> None:
    added(client, "раса")  # Cyrillic
    assert client.post("/api/v1/users", json={"name": "paca", "password": PASSWORD}).status_code == 400


def test_successful_logins_are_not_counted(client: TestClient) -> None:
    added(client, "r")
    assert [tried(of(client, ""), "r", PASSWORD) for _ in range(30)] == [200] * 30


def test_failures_from_other_addresses_do_not_lock_a_user_out(client: TestClient) -> None:
    """Of one attacker with one address, with several, and beside the user."""
    added(client, "r")
    assert [tried(of(client, "", "192.0.2.9"), "r", "wrong") for _ in range(6)] == [401] * 5 + [429]
    assert tried(of(client, "", "192.0.2.1"), "r", PASSWORD) == 200
    # Look-alike spellings have one count.
    spelled = [tried(of(client, "", "192.0.2.8"), name, "wrong") for name in ("r", "R", " r", "r\u200b", "ｒ", "r ")]
    assert spelled == [401] * 5 + [429]
    # A browser in which the user logged in before gets in from the attacker's own address.
    known = of(client, "", "192.0.2.9")
    device = of(client, "", "192.0.2.1")
    assert tried(device, "r", PASSWORD) == 200
    known.cookies.update({"radweave_device": device.cookies["radweave_device"]})
    assert tried(known, "r", PASSWORD) == 200


def test_a_known_browser_has_its_own_limit_for_one_user(client: TestClient) -> None:
    number, _ = added(client, "r"), added(client, "other")
    browser = of(client, "")
    assert tried(browser, "r", PASSWORD) == 200
    cookie = browser.cookies["radweave_device"]
    guesser = of(client, "", "192.0.2.9")
    guesser.cookies.update({"radweave_device": cookie})
    assert [tried(guesser, "r", "wrong") for _ in range(6)] == [401] * 5 + [429]
    # It opens nothing for others, nor with a name that was put into it.
    assert [tried(guesser, "other", "wrong") for _ in range(6)] == [401] * 5 + [429]
    nonce, _, signed = cookie.partition(".")
    for made_up in (f"x{nonce}.{signed}", f"{nonce}.{signed[::-1]}x", ".", "", nonce):
        forger = of(client, "", "192.0.2.7")
        forger.cookies.update({"radweave_device": made_up})
        tried(forger, "r", "wrong")
    assert tried(of(client, "", "192.0.2.7"), "r", PASSWORD) == 429
    # A new password makes strangers of all browsers.
    assert client.put(f"/api/v1/users/{number}/password", json={"new": OTHER}).status_code == 204
    stale = of(client, "", "192.0.2.7")
    stale.cookies.update({"radweave_device": cookie})
    assert tried(stale, "r", OTHER) == 429


def test_failures_of_many_addresses_together_are_limited(client: TestClient) -> None:
    added(client, "r")
    browser = of(client, "", "198.51.100.1")
    assert tried(browser, "r", PASSWORD) == 200
    row_of = [tried(of(client, "", f"203.0.113.{number // 5}"), "r", "wrong") for number in range(101)]
    assert row_of == [401] * 100 + [429]
    assert tried(browser, "r", PASSWORD) == 200


def test_refused_logins_are_logged_without_names_and_in_bounded_number(client: TestClient) -> None:
    number = added(client, "known.name")
    for name in ("known.name", "Mueller^Anna 1960-04-12"):
        tried(of(client, "", "192.0.2.1"), name, "wrong")
    for index in range(20):
        tried(of(client, "", "192.0.2.2"), f"n{index}", "wrong")
    tried(of(client, "", "192.0.2.3"), "x", "wrong")
    entries = client.get("/api/v1/log", params={"limit": 200}).json()["entries"]
    refused = [one["details"] for one in entries if one["action"] == "login refused"]
    assert refused[:2] == [{"address": "192.0.2.1", "of_user": number}, {"address": "192.0.2.1"}]
    assert sum(one["address"] == "192.0.2.2" for one in refused) == 10
    assert refused[-1] == {"address": "192.0.2.3", "not_logged_before": 10}
    assert "Mueller" not in str(entries)
    assert "radweave_logins_refused_total 23" in client.get("/metrics").text


def test_the_number_of_counted_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateLimit, "MOST_KEYS", 50)
    limit = RateLimit()
    for number in range(1_000):
        assert limit.begin({f"key {number}": 1}) == 0
    assert len(limit._times) == 50
    assert 0 < limit.begin({"key 999": 1}) <= 61
    limit.succeed("key 999", "never counted")
    assert len(limit._times) == 49
    assert limit.begin({"key 999": 1}) == 0


def test_a_password_changed_during_a_login_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    number = added(client, "r")
    token = client.post(f"/api/v1/users/{number}/token").json()["token"]
    looked_at = {"password": users.by_password, "token": users.by_token}

    def changed(kind: str) -> Any:
        def row_of(connection: Any, *columns_wanted: str) -> Any:
            user = looked_at[kind](connection, *columns_wanted)
            monkeypatch.undo()
            with client.app.state.station.database.writing() as other:  # type: ignore[attr-defined]
                users.set_password(other, number, OTHER)
            return user

        return row_of

    monkeypatch.setattr("radweave.workstation.users.by_password", changed("password"))
    assert tried(of(client, ""), "r", PASSWORD) == 401
    with client.app.state.station.database.writing() as connection:  # type: ignore[attr-defined]
        users.set_password(connection, number, PASSWORD)
        token = users.new_token(connection, number)
    monkeypatch.setattr("radweave.workstation.users.by_token", changed("token"))
    browser = of(client, "")
    assert browser.post("/api/v1/session", json={"token": token}).status_code == 401
    assert browser.get("/api/v1/session").status_code == 401
