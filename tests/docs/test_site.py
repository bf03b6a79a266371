"""The site of the documentation: every page has its place, nothing comes from elsewhere, no page lacks the notice."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

import radweave
from tests.toys import ROOT

NOTICE = "Research software, not a medical device"
LOADED = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "input": "src", "object": "data", "script": "src",
    "source": "src", "track": "src", "video": "src",
}  # fmt: skip
"""Elements that load what an attribute names; of links, those of these kinds:"""
LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest"}
FOREIGN = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"""(?:@import\s+|url\()\s*['"]?((?:https?:)?//[^'")\s]+)""", re.IGNORECASE)
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


class _Loads(HTMLParser):
    """What a page loads when it is opened, and whether something would fetch a program for pictures of code."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADED:
            self.loaded.append(values.get(LOADED[tag], ""))
            self.loaded += values.get("srcset", "").split(",")
        if tag == "link" and set(values.get("rel", "").split()) & LINKS:
            self.loaded.append(values.get("href", ""))
        if "mermaid" in values.get("class", "").split():
            self.loaded.append("//mermaid, which the theme would fetch")
        self.loaded += IN_STYLES.findall(values.get("style", ""))


def foreign(page: str) -> list[str]:
    """What a page loads from elsewhere."""
    loads = _Loads()
    loads.feed(page)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", page, re.DOTALL)
    return [address for address in loads.loaded if FOREIGN.match(address)] + IN_STYLES.findall(" ".join(styles))


def named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from named(item)


def test_every_page_and_notebook_has_its_place_in_the_navigation() -> None:
    docs = ROOT / "docs"
    page_names = {str(path.relative_to(docs)) for kind in ("*.md", "*.ipynb") for path in docs.rglob(kind)}
    listed = list(named(CONFIG["nav"]))
    assert sorted(listed) == sorted(page_names)


def test_the_foot_of_every_page_has_the_notice_and_the_version() -> None:
    assert NOTICE in CONFIG["copyright"]
    assert f"Radweave {radweave.__version__}," in CONFIG["copyright"]
    assert CONFIG["theme"]["font"] is False


def test_a_warning_is_an_error_where_the_site_is_built() -> None:
    """With --quiet mkdocs hides its warnings from itself: a broken link passed --strict."""
    (line,) = (line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if "mkdocs build" in line)
    assert "--strict" in line
    assert not re.search(r"--quiet| -q\b", line)


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://a.org/x.js"></script>', "<img src='//a.org/x.png'>", '<img srcset="x.png, //a.org/x 2x">',
        '<link rel="stylesheet" href="https://a.org/x.css">', "<style>@import 'https://a.org/x.css';</style>",
        '<p style="background: url(https://a.org/x.png)">', '<pre class="mermaid">', '<object data="//a.org/x.svg">',
    ],
)  # fmt: skip
def test_external_resources_are_detected(page: str) -> None:
    assert foreign(page)
    assert not foreign('<a href="https://a.org"></a><img src="x.png"><link rel="canonical" href="https://a.org">')


@pytest.fixture(scope="module")
def site() -> Path:
    return Path(os.environ.get("RADWEAVE_SITE", ROOT / "build/site"))


@pytest.mark.site
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    assert {page.name: loaded for page in pages if (loaded := foreign(page.read_text("utf-8")))} == {}
    styles = {page.name: IN_STYLES.findall(page.read_text("utf-8")) for page in site.rglob("*.css")}
    assert {name: loaded for name, loaded in styles.items() if loaded} == {}


@pytest.mark.site
def test_every_page_has_the_notice_and_its_notebook(site: Path) -> None:
    lacking = [page.name for page in site.rglob("*.html") if NOTICE not in page.read_text("utf-8")]
    assert lacking == []
    for name in named(CONFIG["nav"]):
        page = re.sub(r"(README)?\.(md|ipynb)$", lambda loaded: "index.html" if loaded[1] else ".html", name)
        assert (site / page).is_file(), name
        assert not name.endswith(".ipynb") or (site / name).is_file(), name


@pytest.mark.site
def test_it_can_be_searched_from_the_disk(site: Path) -> None:
    index = (site / "search/search_index.js").read_text("utf-8")
    entries = json.loads(index.partition("=")[2])["docs"]
    assert any(entry["location"].startswith("faq.html#") for entry in entries)
    for page in ("index.html", "api/radweave.html"):
        (loaded,) = re.findall(r'<script src="([^"]*worker\.js)">', (site / page).read_text("utf-8"))
        assert (site / page).parent.joinpath(loaded).resolve() == (site / "site/worker.js").resolve()
