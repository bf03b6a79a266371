"""The page of ``radweave explain`` in a browser: from a file, without a server; with scripts and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from radweave.core.study import RESEARCH_ONLY, Report
from radweave.engine.restore import restore
from radweave.inference.explain import explain_files, write_explanation
from radweave.inference.explain.maps import ScanSubject
from tests.all_evidence import stubbed
from tests.workstation.browser.steps import AXE, dicom, grave_problems

Open = Callable[..., Page]
STICKING_OUT = """document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth && !one.closest(".scroll"))
  .map((one) => `${one.tagName} ${one.id} ${one.className.baseVal ?? one.className} ${one.textContent.slice(0, 40)}`)"""


@pytest.fixture
def explained(toy_run: Path, tmp_path: Path) -> Path:
    """The page of a radiograph of twelve bits, with all kinds of evidence."""
    (tmp_path / "chest.dcm").write_bytes(dicom(rows=300, columns=450))
    run = restore(toy_run)
    return explain_files(run, stubbed(run), [tmp_path / "chest.dcm"], tmp_path / "out", force=True)


@pytest.fixture
def scanned(toy_run: Path, tmp_path: Path) -> Path:
    """The page of a scan."""
    voxels = np.random.default_rng(0).random((6, 8, 10), np.float32)
    weights = np.zeros((1, 3, 4, 5))
    weights[0, 2, 1, 3] = 1.0
    evidence = {"attention_maps": {"Edema": weights.tolist()}, "class_probabilities": {"Edema": 0.9}}
    subject = ScanSubject("CT", voxels, (2.0, 1.0, 1.0))
    run = restore(toy_run)
    return write_explanation(run, Report("Edema.", "s", evidence), [subject], tmp_path / "scan")


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens a page from its file; nothing may be asked for, and nothing fail."""
    made, requested, failed = [], [], []

    def open_page(path: Path, **options: Any) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        made.append(context)
        context.on("request", lambda request: requested.append(request.url))
        context.on("weberror", lambda error: failed.append(str(error.error)))
        context.on("console", lambda message: failed.append(message.text) if message.type == "error" else None)
        if options.get("java_script_enabled", True):
            context.add_init_script(path=AXE)
        page = context.new_page()
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in made:
        context.close()
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []
    assert failed == []


def test_a_map_fades_and_is_hidden(explained: Path, opened: Open) -> None:
    page = opened(explained)
    figure = page.locator("#map-cardiomegaly")
    figure.get_by_label("Opacity of the map of Cardiomegaly").fill("0.25")
    heat = figure.locator("image.heat").first
    assert heat.evaluate("(one) => getComputedStyle(one).opacity") == "0.25"
    figure.get_by_role("checkbox").uncheck()
    assert heat.evaluate("(one) => getComputedStyle(one).visibility") == "hidden"


def test_draft_and_findings_are_copied_with_the_notice(explained: Path, opened: Open) -> None:
    page = opened(explained, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy draft").click()
    expect(page.locator("#said")).to_have_text("Copied: draft.")
    assert RESEARCH_ONLY in page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("button", name="Copy Cardiomegaly").click()
    expect(page.locator("#said")).to_contain_text("Cardiomegaly")
    assert page.evaluate("navigator.clipboard.readText()").startswith("Cardiomegaly: probability 0.90")


def test_the_page_is_complete_without_scripts(explained: Path, opened: Open) -> None:
    page = opened(explained, java_script_enabled=False)
    for text in (RESEARCH_ONLY, "What supports each sentence", "Does not show:"):
        expect(page.locator("body")).to_contain_text(text)
    assert page.locator(".top svg.picture").first.is_visible()
    for control in page.locator("button, input[type=range]").all():
        assert not control.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_is_cut_on_a_narrow_screen(
    scheme: str, explained: Path, scanned: Path, opened: Open
) -> None:
    for path in (explained, scanned):
        page = opened(path, color_scheme=scheme, viewport={"width": 360, "height": 800})
        assert grave_problems(page) == []
        assert page.evaluate(STICKING_OUT) == []
