"""The page of ``radweave explain`` in a browser: from a file, without a server; with scripts and without."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from radweave.core.study import RESEARCH_ONLY, Report
from radweave.engine.restore import restore
from radweave.inference.explain import explain_files, write_explanation
from radweave.inference.explain.maps import ScanSubject
from radweave.io import viewer
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
def scanned(toy_run: Path, tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    """The page of a scan, and its Hounsfield units (z, y, x)."""
    hu = np.random.default_rng(0).integers(-900, 900, (6, 8, 10)).astype(np.int16)
    weights = np.zeros((1, 3, 4, 5))
    weights[0, 2, 1, 3] = 1.0
    evidence = {"attention_maps": {"Edema": weights.tolist()}, "class_probabilities": {"Edema": 0.9}}
    subject = ScanSubject("CT", (hu + 900).astype(np.float32) / 1800, (2.0, 1.0, 1.0), hu)
    run = restore(toy_run)
    return write_explanation(run, Report("Edema.", "s", evidence), [subject], tmp_path / "scan"), hu


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


def _drawn(page: Page) -> tuple[dict[str, str], np.ndarray[Any, Any]]:
    """What the canvas says of itself, and its grey values (rows, columns)."""
    facts, url = page.evaluate(
        """() => new Promise((done) => setTimeout(() => requestAnimationFrame(() => {
             const canvas = document.querySelector(".rv-canvas");
             done([{...canvas.dataset}, canvas.toDataURL("image/png")]); }), 100))"""
    )
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB"))
    return facts, drawn[..., 0]


def test_the_window_is_over_the_file_s_own_values(explained: Path, opened: Open) -> None:
    read = viewer.read_words(explained.parents[1] / "chest.dcm")
    page = opened(explained)
    page.locator(".rv-canvas[data-center]").wait_for()
    assert page.locator("#plain").is_hidden()
    page.locator(".rv-stage").focus()
    page.keyboard.press("1")
    observed = []
    for key in ("i", "Shift+ArrowUp", "Shift+ArrowRight"):
        page.keyboard.press(key)
        facts, grey = _drawn(page)
        preset = {name: float(facts[name]) for name in ("center", "width")} | {"function": facts["function"]}
        expected = viewer.shown_bytes(read.words, read.about, preset, inverted=facts["inverted"] == "true")
        left, top = int(facts["left"]), int(facts["top"])
        rows, columns = expected.shape
        inside = grey[max(top, 0) : top + rows, max(left, 0) : left + columns]
        wanted = expected[max(-top, 0) :, max(-left, 0) :][: inside.shape[0], : inside.shape[1]]
        np.testing.assert_array_equal(inside, wanted)
        observed.append(tuple(facts[name] for name in ("center", "width", "inverted")))
    assert len(set(observed)) == 3
    scale = float(facts["scale"])
    page.keyboard.press("+")
    assert float(_drawn(page)[0]["scale"]) > scale


def test_a_map_is_laid_over_the_image_and_fades(explained: Path, opened: Open) -> None:
    page = opened(explained)
    page.locator(".rv-canvas[data-center]").wait_for()
    figure = page.locator("#map-cardiomegaly")
    figure.get_by_role("button", name="Show in the viewer").click()
    page.locator(".rv-canvas[data-map=true]").wait_for()
    expect(page.locator(".rv-status")).to_contain_text("not a lesion boundary")
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


def test_a_scan_is_gone_through_by_sliders_and_keys(scanned: tuple[Path, np.ndarray[Any, Any]], opened: Open) -> None:
    path, hu = scanned
    page = opened(path)
    canvas = page.locator(".rv-canvas[data-image=axial]")
    canvas.wait_for()
    slider = page.get_by_role("slider", name="axial slice")
    assert slider.input_value() == "4"
    page.locator(".rv-stage").focus()
    page.keyboard.press("PageUp")
    assert slider.input_value() == "5"
    slider.fill("2")
    facts, grey = _drawn(page)
    left, top = int(facts["left"]), int(facts["top"])
    center, width = float(facts["center"]), float(facts["width"])
    expected = np.floor(np.clip((hu[1] - center) / width + 0.5, 0, 1) * 255 + 0.5)
    scale = float(facts["scale"])
    rows, columns = ((np.arange(count) + 0.5) * scale for count in expected.shape)
    result = grey[np.ix_((top + rows).astype(int), (left + columns).astype(int))].astype(int)
    assert np.abs(result - expected).max() <= 1
    page.get_by_label("Image of radiograph 1").select_option("coronal")
    page.locator(".rv-canvas[data-image=coronal]").wait_for()
    page.get_by_role("slider", name="coronal slice").fill("3")
    assert _drawn(page)[0]["image"] == "coronal"
    page.get_by_label("Map of a finding").select_option("Edema")
    page.locator(".rv-canvas[data-map=true]").wait_for()
    assert [
        page.get_by_role("slider", name=f"{name} slice").input_value() for name in ("axial", "coronal", "sagittal")
    ] == ["6", "4", "8"]


def test_the_page_is_complete_without_scripts(explained: Path, opened: Open) -> None:
    page = opened(explained, java_script_enabled=False)
    for text in (RESEARCH_ONLY, "What supports each sentence", "Does not show:"):
        expect(page.locator("body")).to_contain_text(text)
    assert page.locator("#plain svg.picture").first.is_visible()
    for control in page.locator("button, input[type=range]").all():
        assert not control.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_is_cut_on_a_narrow_screen(
    scheme: str, explained: Path, scanned: tuple[Path, np.ndarray[Any, Any]], opened: Open
) -> None:
    for path in (explained, scanned[0]):
        page = opened(path, color_scheme=scheme, viewport={"width": 360, "height": 800})
        page.locator(".rv-canvas[data-center]").wait_for()
        assert grave_problems(page) == []
        assert page.evaluate(STICKING_OUT) == []
