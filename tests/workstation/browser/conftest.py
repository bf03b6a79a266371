"""Debian's Chromium on a workstation that listens, as its users have it: ``make test-browser``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from radweave.workstation.settings import Settings
from tests.workstation.stations import listening

Origin = str
expect.set_options(timeout=20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    result = os.environ.get("RADWEAVE_TEST_BROWSER") or shutil.which("chromium")
    assert result is not None, "there is no Chromium (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        # Containers have no place for its sandbox. Without a GPU there is no WebGL, and drawing is the same everywhere.
        options = ["--no-sandbox", "--disable-gpu"]
        yield playwright.chromium.launch(executable_path=result, args=options)


@pytest.fixture
def settings(toy_run: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    more = getattr(request, "param", {})
    return Settings(run=toy_run, state=tmp_path / "state", drain_s=1.0, logins=100, **more)


@pytest.fixture
def station(settings: Settings) -> Iterator[tuple[Origin, str]]:
    """Where a workstation listens, and its first token."""
    with listening(settings) as (port, token):
        yield f"http://127.0.0.1:{port}", token


@pytest.fixture
def watched(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Makes browsers that note what they ask for and what fails in them; in the end nothing of either may be there."""
    made: list[BrowserContext] = []
    requested: list[tuple[str, str]] = []
    failed: list[str] = []

    def make(origin: Origin, **options: object) -> BrowserContext:
        context = browser.new_context(base_url=origin, **options)  # type: ignore[arg-type]
        context.set_default_timeout(20_000)
        context.on("request", lambda request: requested.append((origin, request.url)))
        context.on("weberror", lambda error: failed.append(str(error.error)))
        context.on("dialog", lambda shown: (failed.append(f"dialog {shown.message}"), shown.accept()))
        context.on(
            "console",
            lambda logged: failed.append(logged.text) if "Security Policy" in logged.text else None,
        )
        made.append(context)
        return context

    yield make
    for context in made:
        context.close()
    elsewhere = [url for origin, url in requested if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc
                 != urlsplit(origin).netloc]  # fmt: skip
    assert elsewhere == []
    assert failed == []


@pytest.fixture
def page(station: tuple[Origin, str], watched: Callable[..., BrowserContext]) -> Page:
    """A page of the first user, who came by the link that the server prints."""
    origin, token = station
    page = watched(origin).new_page()
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")
    return page
