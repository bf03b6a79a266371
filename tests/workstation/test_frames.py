"""The pages: frames for those who are logged in, and nothing in them that a file or a user says."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.station import Station
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import NOTICE, PASSWORD, log_in, one_draft, upload


@pytest.fixture
def browser(started: tuple[TestClient, Station]) -> TestClient:
    """The first user, who came in by the link with the token."""
    client, station = started
    del client.headers["Authorization"]
    assert client.post("/api/v1/session", json={"token": station.token}).status_code == 200
    return client


def csrf_of(page: str) -> dict[str, str]:
    result = re.search('name="csrf" content="([^"]+)"', page)
    assert result is not None
    return {"X-CSRF-Token": result[1]}


@pytest.mark.parametrize("path", ["/studies", "/studies/0123", "/account", "/log"])
def test_pages_redirect_to_the_login_and_back(path: str, client: TestClient) -> None:
    # A program's token opens no page: a page's changes repeat what only a session has.
    answer = client.get(path, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={path}")


def test_every_page_has_the_notice_the_model_and_nothing_inline(browser: TestClient) -> None:
    study = upload(browser, ("chest.png", IMAGE), headers=csrf_of(browser.get("/account").text)).json()["studies"][0]
    pages = ["/studies", f"/studies/{study}", "/account", "/log", "/studies/none"]
    for page in [*map(browser.get, pages), TestClient(browser.app, base_url=str(browser.base_url)).get("/login")]:
        assert page.text.count(NOTICE) == 2
        assert "Drafts are made by baseline" in page.text
        assert 'lang="en"' in page.text
        assert "<noscript>" in page.text
        assert not re.search(r"<script(?![^>]* src=\"/static/)|<style|style=| on[a-z]+=|https?://", page.text)
        for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
            assert browser.get(path).status_code == 200, path


def test_file_names_are_not_in_the_pages(browser: TestClient) -> None:
    csrf = csrf_of(browser.get("/studies").text)
    name = "<script>alert(1)</script>.png"
    study = upload(browser, (name, IMAGE), headers=csrf).json()["studies"][0]
    assert browser.get(f"/api/v1/studies/{study}").json()["name"] == name.rpartition("/")[2]
    for page in ("/studies", f"/studies/{study}"):
        assert "alert(1)" not in browser.get(page).text


def test_a_user_name_is_escaped(client: TestClient) -> None:
    refused = client.post("/api/v1/users", json={"name": '"><img src=x onerror=alert(1)>', "password": PASSWORD})
    assert refused.status_code == 400, refused.text
    log_in(client, "o'neil")
    page = client.get("/studies").text
    assert "o'neil" not in page
    assert "o&#39;neil" in page


def test_readers_see_neither_other_users_studies_nor_the_log(client: TestClient) -> None:
    study = one_draft(client)["id"]
    log_in(client, "r")
    assert client.get(f"/studies/{study}").status_code == 404
    assert client.get("/log").status_code == 403
    assert 'href="/log"' not in client.get("/studies").text


def test_a_missing_path_is_a_page_for_browsers_and_json_for_programs(browser: TestClient) -> None:
    page = browser.get("/nowhere", headers={"Accept": "text/html"})
    assert (page.status_code, NOTICE in page.text) == (404, True)
    assert browser.get("/nowhere").json()["error"]["reason"] == "Not Found"
    assert browser.get("/api/v1/nowhere", headers={"Accept": "text/html"}).json()["error"]["reason"] == "Not Found"


@pytest.mark.parametrize("path", ["../pages.py", "%2e%2e/pages.py", "..%2fpages.py", "viewer", ""])
def test_static_files_are_those_of_the_package_alone(path: str, client: TestClient) -> None:
    assert client.get(f"/static/{path}").status_code == 404


def test_scripts_insert_external_values_as_text() -> None:
    """No script of ours has a way from a string to markup or to code."""
    own = [path for path in files("radweave.workstation").joinpath("static").iterdir() if path.name.endswith(".js")]
    assert len(own) > 10
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\(|new Function|javascript:"
    for path in own:
        assert re.search(ways, path.read_text("utf-8")) is None, path.name


def test_a_built_package_has_every_file_that_pages_load() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["radweave"]
    place = Path(str(files("radweave.workstation")))
    for path in (path for name in ("static", "templates") for path in (place / name).rglob("*") if path.is_file()):
        assert any(path.match(pattern) for pattern in patterns), path.name


def test_counts_cover_visible_studies_only(client: TestClient) -> None:
    one_draft(client)
    assert client.get("/api/v1/studies").json()["counts"]["drafted"] == 1
    log_in(client, "r")
    assert set(client.get("/api/v1/studies").json()["counts"].values()) == {0}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_sufficient_contrast(scheme: int) -> None:
    """WCAG 2.2: 4.5 : 1 for words (1.4.3), 3 : 1 for the edges of what is used and for the focus (1.4.11)."""
    sheet = files("radweave.workstation").joinpath("static/station.css").read_text("utf-8")
    result = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", sheet)
    colour = {name: pair[scheme] for name, *pair in result}
    grounds = ("page", "card", "tint", "chosen")
    for words in ("ink", "soft", "link", "good", "bad", "doubt"):
        for ground in grounds:
            assert contrast(colour[words], colour[ground]) >= 4.5, (words, ground)
    assert contrast(colour["on-main"], colour["main"]) >= 4.5
    for edge in ("edge", "main"):
        assert min(contrast(colour[edge], colour[ground]) for ground in ("page", "card")) >= 3, edge


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of the luminances of two colours, given as #rgb or #rrggbb."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    shares = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
