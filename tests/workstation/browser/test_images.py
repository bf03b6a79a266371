"""Images in a browser: their grey is what Python computes, a CT is scrolled through, all by keys as well."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import BrowserContext, Page, expect
from stations import listening
from steps import dicom, open_study, upload

from radweave.data.dataset import Dataset
from radweave.io import viewer
from radweave.workstation.settings import Settings


def _drawn(page: Page) -> tuple[dict[str, str], np.ndarray[Any, Any]]:
    """What the canvas says of itself, and its grey values (rows, columns)."""
    facts, url = page.evaluate(
        """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
             const canvas = document.querySelector(".rv-canvas");
             done([{...canvas.dataset}, canvas.toDataURL("image/png")]); })))"""
    )
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB"))
    assert (drawn == drawn[..., :1]).all(), "not grey"
    return facts, drawn[..., 0]


def test_a_window_s_pixels_are_python_s(page: Page, tmp_path: Path) -> None:
    image = dicom(rows=300, columns=450)
    (tmp_path / "chest.dcm").write_bytes(image)
    read = viewer.read_words(tmp_path / "chest.dcm")
    open_study(page, data=image)
    page.locator(".rv-canvas[data-center]").wait_for()
    page.wait_for_load_state("networkidle")  # the page has its final widths
    page.locator(".rv-stage").focus()
    page.keyboard.press("1")
    observed = []

    def compare() -> None:
        facts, grey = _drawn(page)
        assert float(facts["scale"]) == pytest.approx(1)
        preset = {name: float(facts[name]) for name in ("center", "width")} | {"function": facts["function"]}
        expected = viewer.shown_bytes(read.words, read.about, preset, inverted=facts["inverted"] == "true")
        left, top = int(facts["left"]), int(facts["top"])
        rows, columns = expected.shape
        np.testing.assert_array_equal(grey[top : top + rows, left : left + columns], expected)
        observed.append((facts["center"], facts["width"], facts["inverted"]))

    compare()
    box = page.locator(".rv-stage").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 140, steps=3)
    page.mouse.up()
    compare()
    page.keyboard.press("i")
    compare()
    page.keyboard.press("n")
    compare()
    for field, value in (("Level", "1000"), ("Width", "700")):
        page.get_by_label(field, exact=True).fill(value)
        page.keyboard.press("Enter")
    page.locator(".rv-stage").focus()
    compare()
    assert len(set(observed)) == 5
    page.keyboard.press("r")
    page.keyboard.press("1")
    assert _drawn(page)[0]["center"] == observed[0][0]


def test_keys_pan_and_zoom_the_image(page: Page) -> None:
    open_study(page)
    page.locator(".rv-canvas[data-center]").wait_for()
    page.locator(".rv-stage").focus()
    first = _drawn(page)[0]
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    moved = _drawn(page)[0]
    assert float(moved["scale"]) == pytest.approx(1.25 * float(first["scale"]))
    assert moved["left"] != first["left"]
    page.keyboard.press("r")
    assert _drawn(page)[0]["scale"] == first["scale"]


@pytest.fixture
def ct_page(toy_ct_run: Path, tmp_path: Path, watched: Callable[..., BrowserContext]) -> Any:
    settings = Settings(run=toy_ct_run, state=tmp_path / "state", drain_s=1.0)
    with listening(settings) as (port, token):
        page = watched(f"http://127.0.0.1:{port}").new_page()
        page.goto(f"/login#token={token}")
        page.wait_for_url("**/studies")
        yield page


def test_a_scan_is_scrolled_through(ct_page: Page, toy_ct_dataset: Dataset) -> None:
    study = next(iter(toy_ct_dataset.studies("test")))
    page = ct_page
    upload(page, "scan.nii.gz", toy_ct_dataset.image_path(study.images[0].path).read_bytes())
    page.locator("tr[data-state=drafted] .study-link").click()
    canvas = page.locator("canvas[data-axial]")
    canvas.wait_for(timeout=60_000)
    first = int(canvas.get_attribute("data-axial") or 0)
    canvas.focus()
    page.keyboard.press("ArrowUp")
    expect(canvas).to_have_attribute("data-axial", str(first + 1))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(canvas).to_have_attribute("data-axial", str(first - 1))
    page.keyboard.press("2")
    expect(canvas).to_have_attribute("data-planes", "axial")
    before = canvas.screenshot()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, 100)
    expect(canvas).not_to_have_attribute("data-axial", str(first - 1))
    assert canvas.screenshot() != before
    for preset in ("lung", "mediastinum", "bone"):
        page.get_by_label("Window").select_option(preset)
        wanted = next(one for one in viewer.SCAN_PRESETS if one["name"] == preset)
        expect(canvas).to_have_attribute("data-center", f"{wanted['center']:.0f}")
        expect(canvas).to_have_attribute("data-width", f"{wanted['width']:.0f}")
