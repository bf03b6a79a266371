"""Images in a browser: their values and grey are what Python computes, and what is measured is what the file says."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import BrowserContext, Locator, Page, expect

from radweave.data.dataset import Dataset
from radweave.io import viewer
from radweave.workstation.settings import Settings
from tests.image_files import shown_bytes
from tests.workstation.browser.steps import dicom, open_study, open_two_views, upload
from tests.workstation.fake_workers import worker_with_maps
from tests.workstation.stations import listening

VALUES = """async (number) => {
  const { shown } = await import("/static/viewer/films.js");
  const film = [...shown][number];
  const bytes = new Uint8Array(film.values().buffer);
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return [film.size.height, film.size.width, btoa(text)];
}"""


def _values(page: Page, film: int = 0) -> NDArray[np.float64]:
    """Values of the image in a film (rows, columns), by the viewer's own interface."""
    rows, columns, packed = page.evaluate(VALUES, film)
    return np.frombuffer(base64.b64decode(packed), np.float64).reshape(rows, columns)


def _drawn(page: Page) -> tuple[dict[str, str], NDArray[np.uint8]]:
    """What the first film says of itself, and the grey values of its canvas (rows, columns)."""
    facts, url = page.evaluate(
        """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
             const film = document.querySelector(".rv-film");
             done([{...film.dataset}, film.querySelector(".rv-view canvas").toDataURL("image/png")]); })))"""
    )
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB"))
    assert (drawn == drawn[..., :1]).all(), "not grey"
    return facts, drawn[..., 0]


def _film(page: Page) -> Locator:
    film = page.locator(".rv-film[data-center]").first
    film.wait_for(timeout=60_000)
    page.wait_for_load_state("networkidle")  # the page has its final widths
    return film


def _drag(page: Page, start: tuple[float, float], end: tuple[float, float], button: Any = "left") -> None:
    """From one place of the page to another one, as a hand does it."""
    page.mouse.move(*start)
    page.mouse.down(button=button)
    page.mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, steps=3)
    page.mouse.move(*end, steps=3)
    page.wait_for_timeout(150)  # statistics are computed ten times a second at most
    page.mouse.up(button=button)


FIELDS: dict[str, dict[str, Any]] = {
    "whole": {"RescaleSlope": 1, "RescaleIntercept": -1024},
    "fraction": {"RescaleSlope": 0.37, "RescaleIntercept": 3.5},
    "padded": {"PixelPaddingValue": 0, "PhotometricInterpretation": "MONOCHROME1"},
}


def test_pixel_values_are_python_s(page: Page, tmp_path: Path) -> None:
    for name, fields in FIELDS.items():
        image = dicom(**fields)
        (tmp_path / f"{name}.dcm").write_bytes(image)
        read = viewer.read_words(tmp_path / f"{name}.dcm")
        page.goto("/studies")
        upload(page, f"{name}.dcm", image)
        page.locator("tr[data-state=drafted]").get_by_role("link", name=f"{name}.dcm").click(timeout=90_000)
        _film(page)
        is_image = np.ones(read.words.shape, bool) if read.about["padding"] is None else read.words != viewer.PADDING
        expected = viewer.values_of(read.words, read.about)
        np.testing.assert_array_equal(_values(page).astype(np.float32)[is_image], expected[is_image])


def test_a_window_s_pixels_are_python_s(page: Page, tmp_path: Path) -> None:
    image = dicom(rows=300, columns=450)
    (tmp_path / "chest.dcm").write_bytes(image)
    read = viewer.read_words(tmp_path / "chest.dcm")
    open_study(page, data=image)
    film = _film(page)
    film.focus()
    page.keyboard.press("0")
    observed = []

    def compare() -> None:
        facts, grey = _drawn(page)
        assert float(facts["scale"]) == pytest.approx(1)
        preset = {name: float(facts[name]) for name in ("center", "width")} | {"function": facts["function"]}
        expected = shown_bytes(read.words, read.about, preset, inverted=facts["inverted"] == "true")
        left, top = round(float(facts["left"])), round(float(facts["top"]))
        rows, columns = expected.shape
        # The library rounds halves to even, and a window is said with five digits.
        difference = grey[top : top + rows, left : left + columns].astype(int) - expected
        assert np.abs(difference).max() <= 1
        observed.append((facts["center"], facts["width"], facts["inverted"]))

    compare()
    box = film.bounding_box()
    assert box is not None
    _drag(page, (box["x"] + 100, box["y"] + 100), (box["x"] + 160, box["y"] + 140), "right")
    compare()
    page.keyboard.press("i")
    compare()
    page.keyboard.press("n")
    compare()
    for field, value in (("Level", "1000"), ("Width", "700")):
        page.get_by_label(field, exact=True).fill(value)
        page.keyboard.press("Enter")
    film.focus()
    compare()
    assert len(set(observed)) == 5
    page.keyboard.press("Space")
    page.keyboard.press("0")
    assert _drawn(page)[0]["center"] == observed[0][0]


def test_keys_and_buttons_of_the_mouse_zoom_move_turn_and_flip(page: Page) -> None:
    open_study(page)
    film = _film(page)
    film.focus()
    first = _drawn(page)[0]
    page.keyboard.press("+")
    zoomed = _drawn(page)[0]
    assert float(zoomed["scale"]) == pytest.approx(1.25 * float(first["scale"]), rel=1e-3)
    box = film.bounding_box()
    assert box is not None
    _drag(page, (box["x"] + 100, box["y"] + 100), (box["x"] + 130, box["y"] + 120), "middle")
    moved = _drawn(page)[0]
    shift = (float(moved["left"]) - float(zoomed["left"]), float(moved["top"]) - float(zoomed["top"]))
    assert shift == (pytest.approx(30, abs=1), pytest.approx(20, abs=1))
    page.keyboard.press("Space")
    grey = _drawn(page)[1].astype(int)
    page.keyboard.press("h")
    assert np.abs(_drawn(page)[1].astype(int) - grey[:, ::-1]).mean() < 2 < np.abs(grey - grey[:, ::-1]).mean()
    page.keyboard.press("h")
    page.keyboard.press("r")
    assert _drawn(page)[0]["rotation"] == "90"
    page.keyboard.press("Space")
    back = _drawn(page)[0]
    assert [back[name] for name in ("scale", "rotation", "left")] == [
        first[name] for name in ("scale", "rotation", "left")
    ]


def test_what_is_measured_is_what_the_file_s_spacing_and_values_say(page: Page) -> None:
    """The file has pixels of 0.2 mm, and a bright bar of one value in its upper left quarter."""
    open_study(page, data=dicom(rows=300, columns=450))
    film = _film(page)
    facts, box = _drawn(page)[0], film.bounding_box()
    assert box is not None
    scale, left, top = (float(facts[name]) for name in ("scale", "left", "top"))

    def place(column: float, row: float) -> tuple[float, float]:
        return box["x"] + 1 + left + column * scale, box["y"] + 1 + top + row * scale

    def measured(tool: str, start: tuple[float, float], end: tuple[float, float]) -> str:
        page.get_by_role("button", name=tool, exact=True).click()
        _drag(page, start, end)
        line = page.locator(".rv-measures li").last
        expect(line).to_contain_text(f"{tool}:")
        return line.inner_text()

    length = re.search(r"Length: ([\d.]+) mm", measured("Length", place(20, 200), place(170, 200)))
    assert length is not None
    assert float(length[1]) == pytest.approx(150 * 0.2, rel=0.01)
    for tool, area in (("Rectangle", 40 * 30 * 0.04), ("Ellipse", np.pi * 40 * 30 * 0.04)):
        # A rectangle is drawn from corner to corner, an ellipse from its middle.
        start = (130, 85) if tool == "Rectangle" else (170, 112)
        text = measured(tool, place(*start), place(start[0] + 40, start[1] + 30))
        assert "mean 4000, SD 0.0, 4000 to 4000" in text
        found = re.search(r"([\d.]+) mm²", text)
        assert found is not None
        assert float(found[1]) == pytest.approx(area, rel=0.05)
        page.get_by_role("button", name=f"Remove {tool}").click()
    measured("CTR", place(250, 230), place(320, 230))
    assert "ratio 0.50" in measured("CTR", place(210, 260), place(350, 260))
    film.focus()
    before = page.locator(".rv-measures li").count()
    page.keyboard.press("Delete")
    expect(page.locator(".rv-measures li")).to_have_count(before - 1)


def test_lengths_on_a_picture_without_spacing_are_pixels(page: Page) -> None:
    picture = io.BytesIO()
    Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (200, 1))).save(picture, "PNG")
    open_study(page, "chest.png", picture.getvalue())
    film = _film(page)
    facts, box = _drawn(page)[0], film.bounding_box()
    assert box is not None
    scale, left, top = (float(facts[name]) for name in ("scale", "left", "top"))
    start = (box["x"] + 1 + left + 50 * scale, box["y"] + 1 + top + 100 * scale)
    page.get_by_role("button", name="Length", exact=True).click()
    _drag(page, start, (start[0] + 80 * scale, start[1]))
    line = page.locator(".rv-measures li").last
    expect(line).to_contain_text("Length:")
    length = re.search(r"Length: ([\d.]+) px", line.inner_text())
    assert length is not None, line.inner_text()
    assert float(length[1]) == pytest.approx(80, rel=0.02)


@pytest.fixture
def ct_page(toy_ct_run: Path, tmp_path: Path, watched: Callable[..., BrowserContext]) -> Any:
    settings = Settings(run=toy_ct_run, state=tmp_path / "state", drain_s=1.0)
    with listening(settings) as (port, token):
        page = watched(f"http://127.0.0.1:{port}").new_page()
        page.goto(f"/login#token={token}")
        page.wait_for_url("**/studies")
        yield page


def test_a_scan_is_read_in_three_planes(ct_page: Page, toy_ct_dataset: Dataset) -> None:
    path = toy_ct_dataset.image_path(next(iter(toy_ct_dataset.studies("test"))).images[0].path)
    hu = viewer.read_scan(path)[0].hu
    page = ct_page
    upload(page, "scan.nii.gz", path.read_bytes())
    page.locator("tr[data-state=drafted] .study-link").click()
    films = page.locator(".rv-film[data-slice]")
    expect(films).to_have_count(3, timeout=60_000)
    axial = films.first
    at = [int(film.get_attribute("data-slice") or 0) - 1 for film in films.all()]
    # Radiologists' view: the patient's right on the left, the front on top or on the left, the head on top.
    np.testing.assert_array_equal(_values(page, 0), hu[at[0]])
    np.testing.assert_array_equal(_values(page, 1), hu[::-1, at[1]])
    np.testing.assert_array_equal(_values(page, 2), hu[::-1, :, at[2]])
    sides = [film.locator(".rv-side").all_inner_texts() for film in films.all()]
    assert sides == [["R", "L", "A", "P"], ["R", "L", "H", "F"], ["A", "P", "H", "F"]]
    axial.focus()
    page.keyboard.press("ArrowDown")
    expect(axial).to_have_attribute("data-slice", str(at[0] + 2))
    page.keyboard.press("ArrowUp")
    box = axial.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -100)
    expect(axial).to_have_attribute("data-slice", str(at[0]))
    for preset in ("mediastinum", "bone", "lung"):
        page.get_by_label("Window", exact=True).select_option(label=preset)
        wanted = next(one for one in viewer.SCAN_PRESETS if one["name"] == preset)
        expect(axial).to_have_attribute("data-center", f"{wanted['center']:.0f}")
        expect(axial).to_have_attribute("data-width", f"{wanted['width']:.0f}")
    page.get_by_role("button", name="Crosshairs").click()
    facts = {name: float(axial.get_attribute(f"data-{name}") or 0) for name in ("scale", "left", "top")}
    wanted_y, wanted_x = hu.shape[1] // 3, hu.shape[2] // 4
    page.mouse.click(
        box["x"] + 1 + facts["left"] + (wanted_x + 0.5) * facts["scale"],
        box["y"] + 1 + facts["top"] + (wanted_y + 0.5) * facts["scale"] * _row_by_column(page),
    )
    expect(films.nth(1)).to_have_attribute("data-slice", str(wanted_y + 1))
    expect(films.nth(2)).to_have_attribute("data-slice", str(wanted_x + 1))
    page.get_by_role("button", name="MIP").click()
    expect(axial).to_have_attribute("data-slab", "20")
    reach = round(20 / _depth(page) / 2)
    low, high = max(0, at[0] - 1 - reach), at[0] - 1 + reach + 1
    np.testing.assert_array_equal(_values(page, 0), hu[low:high].max(axis=0))


def _row_by_column(page: Page) -> float:
    spacing = page.evaluate(
        "import('/static/viewer/films.js').then(({ shown }) => [...shown][0].viewport.getImageData().spacing)"
    )
    return float(spacing[1] / spacing[0])


def _depth(page: Page) -> float:
    return float(
        page.evaluate("import('/static/viewer/films.js').then(({ shown }) => [...shown][0].subject.spacing[2])")
    )


def test_two_views_hang_beside_each_other_and_a_map_turns_with_its_image(
    settings: Settings, watched: Callable[..., BrowserContext]
) -> None:
    """The map is low on the left of the first image and high on its right."""
    with listening(settings, worker_with_maps) as (port, token):
        page = watched(f"http://127.0.0.1:{port}").new_page()
        page.goto(f"/login#token={token}")
        page.wait_for_url("**/studies")
        films = open_two_views(page, rows=300, columns=450)
        for film in films.all():
            box, facts = film.bounding_box(), {name: float(film.get_attribute(f"data-{name}") or 0) for name in PLACE}
            assert box is not None
            assert facts["left"] + facts["scale"] * 450 / 2 == pytest.approx(box["width"] / 2, abs=3)
            assert facts["top"] + facts["scale"] * 300 / 2 == pytest.approx(box["height"] / 2, abs=3)
        page.get_by_label("Map of a finding").select_option("Lung / Opacity")
        expect(films.first).to_have_attribute("data-map", "true")
        expect(page.locator(".rv-status")).to_contain_text("not a lesion boundary")
        greens = [page.evaluate(GREEN_OF_MAP, share) for share in (0.2, 0.8)]
        films.first.focus()
        page.keyboard.press("h")
        page.wait_for_timeout(300)
        flipped = [page.evaluate(GREEN_OF_MAP, share) for share in (0.2, 0.8)]
        assert greens[0] < greens[1]
        assert flipped == [pytest.approx(green, abs=6) for green in greens[::-1]]


PLACE = ("scale", "left", "top")
GREEN_OF_MAP = """(share) => {
  const map = document.querySelector(".rv-film .rv-map");
  return map.getContext("2d").getImageData(map.width * share, map.height / 2, 1, 1).data[1];
}"""
