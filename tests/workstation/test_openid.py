"""Log-ins by OpenID Connect, against a provider of the tests that can be made to lie."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from radweave.core.errors import InputError
from radweave.workstation.database import folded
from radweave.workstation.openid import provider_of
from radweave.workstation.settings import OpenId, Settings
from tests.workstation.providers import CLIENT, SECRET, Provider, provider
from tests.workstation.stations import ORIGIN, PASSWORD, running


@pytest.fixture
def oidc() -> Iterator[Provider]:
    with provider() as made:
        yield made


def with_provider(settings: Settings, made: Provider, **more: Any) -> Settings:
    secret = settings.state.with_name("secret")
    secret.write_text(SECRET)
    openid = OpenId(
        issuer=made.url, client_id=CLIENT, secret_file=secret, readers=("readers", "others"), admins=("chiefs",), **more
    )
    return settings.model_copy(update={"openid": openid, "public_url": ORIGIN, "logins": 1000})


@pytest.fixture
def admin(settings: Settings, oidc: Provider) -> Iterator[TestClient]:
    """The client of the first user, of a workstation with the provider."""
    with running(with_provider(settings, oidc)) as (client, _):
        yield client


@pytest.fixture
def browser(admin: TestClient) -> TestClient:
    return TestClient(admin.app, base_url=ORIGIN, follow_redirects=False)


def begin(browser: TestClient, wanted: str = "") -> dict[str, str]:
    """What the browser brings to the provider."""
    answer = browser.get("/login/openid", params={"next": wanted})
    assert answer.status_code == 303, answer.text
    return {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}


def come_back(browser: TestClient, code: str, state: str) -> Any:
    return browser.get("/login/openid/back", params={"code": code, "state": state})


def log_in(browser: TestClient, made: Provider, wanted: str = "") -> Any:
    return come_back(browser, *made.authorize(begin(browser, wanted)))


def who(browser: TestClient) -> dict[str, Any] | None:
    answer = browser.get("/api/v1/session")
    return answer.json() if answer.status_code == 200 else None


def test_a_user_of_a_group_is_created_and_logged_in(browser: TestClient, admin: TestClient, oidc: Provider) -> None:
    assert 'href="/login/openid"' in browser.get("/login").text
    answer = log_in(browser, oidc, "/account")
    assert answer.status_code == 200
    assert 'url=/account"' in answer.text
    session_user = who(browser)
    assert session_user is not None
    assert (session_user["user"], session_user["role"]) == ("anna", "reader")
    # Who comes again is the same user, with the role that its groups give now.
    oidc.claims["groups"] = ["x", "chiefs"]
    second_browser = TestClient(browser.app, base_url=ORIGIN, follow_redirects=False)
    log_in(second_browser, oidc)
    assert who(second_browser) == {**session_user, "role": "admin", "csrf": who(second_browser)["csrf"]}  # type: ignore[index]
    assert who(browser)["role"] == "admin"  # type: ignore[index]
    users = admin.get("/api/v1/users").json()["users"]
    assert [(one["name"], one["is_of_provider"]) for one in users] == [("admin", False), ("anna", True)]


@pytest.mark.parametrize("groups", [None, [], ["reader"], "readersx", {"readers": 1}, [["readers"]], [None, 1]])
def test_a_user_without_a_group_is_neither_logged_in_nor_created(
    groups: Any, browser: TestClient, admin: TestClient, oidc: Provider
) -> None:
    oidc.claims["groups"] = groups
    assert log_in(browser, oidc).status_code == 403
    assert who(browser) is None
    assert len(admin.get("/api/v1/users").json()["users"]) == 1
    entry = admin.get("/api/v1/log", params={"newest_first": True}).json()["entries"][0]
    assert entry["action"] == "login refused"
    assert "anna" not in str(entry)


def test_a_nested_claim_may_hold_the_groups(settings: Settings, oidc: Provider) -> None:
    oidc.claims = {"sub": "1", "realm": {"roles": ["others"]}}
    with running(with_provider(settings, oidc, claim="realm.roles")) as (client, _):
        browser = TestClient(client.app, base_url=ORIGIN, follow_redirects=False)
        assert log_in(browser, oidc).status_code == 200


def changed(**claims: Any) -> Callable[[Provider], None]:
    def plant(made: Provider) -> None:
        made.changed = lambda right: {**right, **claims}

    return plant


def otherwise(name: str) -> Callable[[Provider], None]:
    def plant(made: Provider) -> None:
        made.token = getattr(made, name)

    return plant


FAULTS: dict[str, Callable[[Provider], None]] = {
    "another nonce": changed(nonce="x"),
    "no nonce": changed(nonce=None),
    "another audience": changed(aud="another"),
    "no audience": changed(aud=None),
    "several audiences and another party": changed(aud=[CLIENT, "another"], azp="another"),
    "several audiences and no party": changed(aud=[CLIENT, "another"]),
    "another issuer": changed(iss="https://other.example"),
    "no issuer": changed(iss=None),
    "expired": changed(exp=int(time.time()) - 3_600),
    "no end": changed(exp=None),
    "an end that is no number": changed(exp="never"),
    "of the future": changed(nbf=int(time.time()) + 36_000),
    "no subject": changed(sub=None),
    "an empty subject": changed(sub=""),
    "a subject that is no text": changed(sub=["1"]),
    "a subject that is longer than any": changed(sub="1" * 256),
    "another access token": changed(at_hash="x"),
    "no signature": otherwise("unsigned"),
    "the public key as a secret": otherwise("signed_with_the_public_key"),
    "a shared secret": otherwise("signed_with_a_shared_secret"),
    "another's signature": otherwise("signed_by_another"),
    "no token": lambda made: setattr(made, "token", lambda claims: ""),
    "no text": lambda made: setattr(made, "token", lambda claims: 7),
    "encrypted nonsense": lambda made: setattr(made, "token", lambda claims: "a.b.c.d.e"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_token_of_another_login_is_refused(
    fault: str, browser: TestClient, admin: TestClient, oidc: Provider
) -> None:
    FAULTS[fault](oidc)
    assert log_in(browser, oidc).status_code == 403
    assert who(browser) is None
    assert len(admin.get("/api/v1/users").json()["users"]) == 1


def test_a_login_counts_once_and_in_the_browser_that_began_it(browser: TestClient, oidc: Provider) -> None:
    code, state = oidc.authorize(begin(browser))
    cookies_before = dict(browser.cookies)
    other_browser = TestClient(browser.app, base_url=ORIGIN, follow_redirects=False)
    assert come_back(other_browser, code, state).status_code == 403  # a login that was laid under somebody
    begin(other_browser)
    assert come_back(other_browser, code, state).status_code == 403
    assert come_back(browser, code, f"{state}x").status_code == 403
    browser.cookies.update(cookies_before)
    assert come_back(browser, code, state).status_code == 200
    replay = TestClient(
        browser.app,
        base_url=ORIGIN,
        follow_redirects=False,
        cookies={"radweave_openid": cookies_before["radweave_openid"]},
    )
    code, _ = oidc.authorize({**begin(other_browser), "state": state})
    assert come_back(replay, code, state).status_code == 403
    assert who(replay) is None


def test_a_callback_started_by_another_site_is_no_failed_login(settings: Settings, oidc: Provider) -> None:
    """Else a page that one reader opens keeps all of the house out, and fills the log of refused logins."""
    with running(with_provider(settings, oidc).model_copy(update={"logins": 1})) as (client, _):
        client.post("/api/v1/users", json={"name": "local", "password": PASSWORD})
        browser = TestClient(client.app, base_url=ORIGIN, follow_redirects=False)
        assert {come_back(browser, "x", f"state{number}").status_code for number in range(120)} == {403}
        assert browser.post("/api/v1/session", json={"name": "local", "password": PASSWORD}).status_code == 200
        assert log_in(browser, oidc).status_code == 200
        assert "login refused" not in client.get("/api/v1/log", params={"limit": 200}).text
        # What a browser began is counted, apart from passwords.
        session_user = [come_back(browser, "x", begin(browser)["state"]).status_code for _ in range(6)]
        assert session_user == [403] * 4 + [429] * 2
        assert browser.post("/api/v1/session", json={"name": "local", "password": PASSWORD}).status_code == 200


def test_many_unfinished_logins_do_not_block_others(
    browser: TestClient, oidc: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.workstation.openid._MOST_USED", 3)
    assert [come_back(browser, "x", begin(browser)["state"]).status_code for _ in range(5)] == [403] * 5
    assert log_in(browser, oidc).status_code == 200


def test_a_user_removed_from_all_groups_is_logged_out_at_once(
    browser: TestClient, admin: TestClient, oidc: Provider
) -> None:
    log_in(browser, oidc)
    number = who(browser)["id"]  # type: ignore[index]
    token = admin.post(f"/api/v1/users/{number}/token").json()["token"]
    oidc.claims["groups"] = []
    elsewhere = TestClient(browser.app, base_url=ORIGIN, follow_redirects=False)
    assert log_in(elsewhere, oidc).status_code == 403
    assert who(browser) is None
    assert admin.get("/api/v1/session", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    assert '"access ended"' in admin.get("/api/v1/log", params={"newest_first": True}).text


def test_a_forged_or_old_cookie_is_refused(
    browser: TestClient, oidc: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, state = oidc.authorize(begin(browser))
    for made_up in ("", "x", f"{state}.0.L3N0dWRpZXM.x", f"{state}...", "....", "ä"):
        other = TestClient(browser.app, base_url=ORIGIN, follow_redirects=False)
        head = {"Cookie": f"radweave_openid={made_up}".encode("latin-1")}
        answer = other.get("/login/openid/back", params={"code": code, "state": state}, headers=head)
        assert answer.status_code == 403, made_up
    monkeypatch.setattr("radweave.workstation.openid.TRY_S", -1)
    assert come_back(browser, code, state).status_code == 403


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example", "//evil.example", "/\\evil.example", "/studies/../../x", "/studies\n",
     "javascript:alert(1)", "/studies?x", "/login", "/account/"],
)  # fmt: skip
def test_a_login_redirects_to_own_pages_only(wanted: str, browser: TestClient, oidc: Provider) -> None:
    answer = log_in(browser, oidc, wanted)
    assert 'content="0; url=/studies"' in answer.text
    assert "evil" not in answer.text


def test_the_provider_sends_browsers_to_the_public_address_whatever_a_request_says(
    browser: TestClient, oidc: Provider
) -> None:
    head = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "Forwarded": "host=evil.example"}
    answer = browser.get("/login/openid", headers=head)
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    assert query["redirect_uri"] == [f"{ORIGIN}/login/openid/back"]
    assert answer.headers["location"].startswith(f"{oidc.url}/authorize?")


@pytest.mark.parametrize("name", ["admin", "ADMIN", "аdmin", "adm\u200bin", " admin ", "adrnin", "", "\u3164", 7, None])
def test_a_provider_name_like_a_local_user_is_another_user(
    name: Any, browser: TestClient, admin: TestClient, oidc: Provider
) -> None:
    oidc.claims["preferred_username"] = name
    assert log_in(browser, oidc).status_code == 200
    session_user = who(browser)
    assert session_user is not None
    assert (session_user["role"], session_user["id"]) == ("reader", 2)
    assert folded(session_user["user"]) != folded("admin")
    assert [one["role"] for one in admin.get("/api/v1/users").json()["users"]] == ["admin", "reader"]


def test_every_name_of_the_provider_gets_a_response(browser: TestClient, oidc: Provider) -> None:
    oidc.claims.update(sub="a\0b", preferred_username="\0", name="\0")
    assert log_in(browser, oidc).status_code == 200
    assert who(browser) is not None


def test_users_are_identified_by_subject_not_by_name(browser: TestClient, oidc: Provider) -> None:
    log_in(browser, oidc)
    first = who(browser)
    oidc.claims["sub"] = "2"
    log_in(browser, oidc)
    second = who(browser)
    oidc.claims.update(sub="1", preferred_username="another")
    log_in(browser, oidc)
    third = who(browser)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first["id"] == third["id"] != second["id"]
    assert first["user"] == third["user"] != second["user"]


def test_a_disabled_user_of_the_provider_is_refused(browser: TestClient, admin: TestClient, oidc: Provider) -> None:
    log_in(browser, oidc)
    number = who(browser)["id"]  # type: ignore[index]
    assert admin.patch(f"/api/v1/users/{number}", json={"disabled": True}).status_code == 204
    assert who(browser) is None
    assert log_in(browser, oidc).status_code == 403
    assert admin.patch(f"/api/v1/users/{number}", json={"disabled": False}).status_code == 204
    assert log_in(browser, oidc).status_code == 200


def test_a_user_of_the_provider_has_no_local_password(browser: TestClient, admin: TestClient, oidc: Provider) -> None:
    """It would outlast the provider's word."""
    log_in(browser, oidc)
    session_user = who(browser)
    assert session_user is not None
    place = f"/api/v1/users/{session_user['id']}/password"
    own = browser.put(place, json={"new": PASSWORD}, headers={"X-CSRF-Token": session_user["csrf"]})
    assert (own.status_code, admin.put(place, json={"new": PASSWORD}).status_code) == (400, 400)
    second_browser = TestClient(browser.app, base_url=ORIGIN)
    assert second_browser.post("/api/v1/session", json={"name": "anna", "password": PASSWORD}).status_code == 401


def test_an_admin_of_the_provider_is_not_the_last_one(browser: TestClient, admin: TestClient, oidc: Provider) -> None:
    oidc.claims["groups"] = ["chiefs"]
    log_in(browser, oidc)
    session_user = who(browser)
    assert session_user is not None
    refused = browser.patch("/api/v1/users/1", json={"disabled": True}, headers={"X-CSRF-Token": session_user["csrf"]})
    assert refused.status_code == 400


def test_keys_may_rotate(browser: TestClient, oidc: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log_in(browser, oidc).status_code == 200
    oidc.rotate()
    # Newer keys are asked for once in a while only: a made-up key must not make the server ask again and again.
    assert log_in(browser, oidc).status_code == 403
    num_key_requests = oidc.requests.count("/keys")
    monkeypatch.setattr("radweave.workstation.openid._AGAIN_S", 0.0)
    log_in(browser, oidc)
    time.sleep(0.01)
    station = browser.app.state.station  # type: ignore[attr-defined]
    station.provider._newer_from = 0.0
    assert log_in(browser, oidc).status_code == 200
    assert oidc.requests.count("/keys") == num_key_requests + 1


def test_logging_out_returns_the_logout_of_the_provider(browser: TestClient, admin: TestClient, oidc: Provider) -> None:
    log_in(browser, oidc)
    csrf = {"X-CSRF-Token": who(browser)["csrf"]}  # type: ignore[index]
    answer = browser.delete("/api/v1/session", headers=csrf)
    assert answer.json()["provider"].startswith(f"{oidc.url}/logout?client_id={CLIENT}&post_logout_redirect_uri=")
    assert who(browser) is None
    admin.post("/api/v1/users", json={"name": "local", "password": PASSWORD})
    csrf = {
        "X-CSRF-Token": browser.post("/api/v1/session", json={"name": "local", "password": PASSWORD}).json()["csrf"]
    }
    assert browser.delete("/api/v1/session", headers=csrf).status_code == 204


def test_local_login_works_while_the_provider_is_down(
    browser: TestClient, admin: TestClient, oidc: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.post("/api/v1/users", json={"name": "local", "password": PASSWORD})
    oidc.is_down = True
    for _ in range(5):
        assert browser.get("/login/openid").status_code == 503
    assert len(oidc.requests) == 1  # and it is not asked for each who comes
    assert browser.post("/api/v1/session", json={"name": "local", "password": PASSWORD}).status_code == 200
    browser.cookies.clear()
    oidc.is_down = False
    browser.app.state.station.provider._not_before = 0.0  # type: ignore[attr-defined]
    query = begin(browser)
    oidc.is_down = True
    assert come_back(browser, *oidc.authorize(query)).status_code in (403, 503)
    assert who(browser) is None


@pytest.mark.parametrize(
    "about",
    [{"issuer": "https://other.example"}, {"token_endpoint": "http://other.example/t"}, {"jwks_uri": None},
     {"authorization_endpoint": "javascript:alert(1)"}],
)  # fmt: skip
def test_invalid_metadata_of_the_provider_is_refused(
    about: dict[str, Any], browser: TestClient, oidc: Provider
) -> None:
    oidc.about = about
    assert browser.get("/login/openid").status_code == 503


def test_without_a_provider_its_routes_are_missing(client: TestClient) -> None:
    assert "openid" not in client.get("/login").text
    assert client.get("/login/openid").status_code == client.get("/login/openid/back").status_code == 404


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"issuer": "http://provider.example"}, "--oidc-issuer"), ({"issuer": "ftp://a"}, "--oidc-issuer"),
        ({"readers": (), "admins": ()}, "--oidc-readers"), ({"secret_file": Path("none")}, "--oidc-secret-file"),
    ],
)  # fmt: skip
def test_unsafe_provider_settings_are_refused(
    changed: dict[str, Any], field: str, settings: Settings, oidc: Provider
) -> None:
    right = with_provider(settings, oidc)
    assert provider_of(right) is not None
    assert right.openid is not None
    with pytest.raises(InputError) as refused:
        provider_of(right.model_copy(update={"openid": right.openid.model_copy(update=changed)}))
    assert refused.value.field == field
    for url in (None, "http://radweave.example"):
        with pytest.raises(InputError) as refused:
            provider_of(right.model_copy(update={"public_url": url}))
        assert refused.value.field == "--public-url"
