"""Boxes of sentences on the films: where they lie, marks of sentences and boxes, keys, two windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from radweave.workstation.settings import Settings
from tests.workstation.browser.steps import AXE, choose_prior, grave_problems, open_two_views, upload
from tests.workstation.fake_workers import BOXES, placing_scan_worker, placing_worker
from tests.workstation.stations import listening

ROWS, COLUMNS = 300, 450
SHAPE_XYZ, SPACING_XYZ = (40, 32, 24), (2.0, 2.0, 4.0)


def _start(settings: Settings, worker: Any, watched: Callable[..., BrowserContext]) -> Iterator[Page]:
    with listening(settings, worker) as (port, token):
        context = watched(f"http://127.0.0.1:{port}")
        context.add_init_script(path=AXE)
        page = context.new_page()
        page.goto(f"/login#token={token}")
        page.wait_for_url("**/studies")
        yield page


@pytest.fixture
def page(settings: Settings, watched: Callable[..., BrowserContext]) -> Iterator[Page]:
    yield from _start(settings, placing_worker, watched)


@pytest.fixture
def ct_page(toy_ct_run: Path, tmp_path: Path, watched: Callable[..., BrowserContext]) -> Iterator[Page]:
    yield from _start(Settings(run=toy_ct_run, state=tmp_path / "state"), placing_scan_worker, watched)


def _open_two_views(page: Page) -> Locator:
    """The films of a frontal and a lateral image, in which boxes of both are drawn."""
    films = open_two_views(page, rows=ROWS, columns=COLUMNS)
    expect(films.first.locator(".rv-box")).to_have_count(2)
    expect(films.nth(1).locator(".rv-box")).to_have_count(1)
    return films


def _edges(box: Locator) -> list[float]:
    """Left, top, right and bottom of a drawn box, in pixels of its film."""
    points = np.array(re.findall(r"-?[\d.]+", box.get_attribute("points") or ""), float).reshape(4, 2)
    return [*points.min(axis=0), *points.max(axis=0)]


def _expected(film: Locator, box: list[float]) -> list[float]:
    """Where a box in shares of the radiograph lies in a film that is neither turned nor flipped."""
    facts = {name: float(film.get_attribute(f"data-{name}") or 0) for name in ("scale", "left", "top")}
    sizes = (COLUMNS, ROWS, COLUMNS, ROWS)
    starts = (facts["left"], facts["top"]) * 2
    return [start + facts["scale"] * size * share for start, size, share in zip(starts, sizes, box, strict=True)]


def _sentence(page: Page, words: str) -> Locator:
    return page.locator("li.sentence", has_text=words)


def test_boxes_lie_on_their_view_and_turn_with_it(page: Page) -> None:
    films = _open_two_views(page)
    first, _, last = BOXES["xray"]
    assert _edges(films.first.locator(".rv-box").first) == pytest.approx(_expected(films.first, first[0][1]), abs=1)
    assert _edges(films.first.locator(".rv-box").nth(1)) == pytest.approx(_expected(films.first, last[0][1]), abs=1)
    assert _edges(films.nth(1).locator(".rv-box")) == pytest.approx(_expected(films.nth(1), first[1][1]), abs=1)
    left, top, right, bottom = first[0][1]
    films.first.focus()
    page.keyboard.press("h")
    page.wait_for_timeout(300)
    upright = _edges(films.first.locator(".rv-box").first)
    page.keyboard.press("h")
    page.wait_for_timeout(300)
    assert upright == pytest.approx(_expected(films.first, [1 - right, top, 1 - left, bottom]), abs=1)
    page.keyboard.press("+")
    page.wait_for_timeout(300)
    assert _edges(films.first.locator(".rv-box").first) == pytest.approx(_expected(films.first, first[0][1]), abs=1)


def test_a_sentence_marks_its_boxes_and_a_box_its_sentence(page: Page) -> None:
    films = _open_two_views(page)
    marked = page.locator(".rv-box.rv-marked")
    opacity = _sentence(page, "opacity in the left upper")
    opacity.hover()
    expect(marked).to_have_count(2)
    label = films.first.locator(".rv-boxes text")
    expect(label).to_have_text("Lung Opacity")
    _sentence(page, "atelectasis at the left base").hover()
    expect(label).to_have_text("Atelectasis, left open")
    page.mouse.move(2, 2)
    expect(marked).to_have_count(0)
    box = films.first.bounding_box()
    assert box is not None
    left, top, right, bottom = _edges(films.first.locator(".rv-box").nth(1))
    page.mouse.move(box["x"] + (left + right) / 2, box["y"] + (top + bottom) / 2, steps=3)
    expect(_sentence(page, "atelectasis at the left base")).to_have_class(re.compile(r"\bmarked\b"))
    expect(marked).to_have_count(1)
    expect(page.locator("li.sentence.marked")).to_have_count(1)
    page.mouse.move(box["x"] + left - 20, box["y"] + 5, steps=3)
    expect(page.locator("li.sentence.marked")).to_have_count(0)
    expect(marked).to_have_count(0)
    opacity.focus()
    expect(marked).to_have_count(2)


def test_keys_step_through_sentences_with_boxes_and_hide_them(page: Page) -> None:
    films = _open_two_views(page)
    opacity, base = _sentence(page, "opacity in the left upper"), _sentence(page, "atelectasis at the left base")
    page.locator("#draft-title").click()
    for key, sentence in (("b", opacity), ("b", base), ("b", opacity), ("B", base), ("B", opacity)):
        page.keyboard.press(key)
        expect(sentence).to_be_focused()
        expect(page.locator(".rv-box.rv-marked")).to_have_count(2 if sentence is opacity else 1)
    films.first.focus()
    page.keyboard.press("b")
    expect(base).to_be_focused()
    films.first.focus()
    page.keyboard.press("s")
    expect(page.locator(".rv-box")).to_have_count(0)
    page.get_by_role("button", name="Boxes").click()
    expect(page.locator(".rv-box")).to_have_count(3)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("next sentence with a box")


def test_the_image_of_a_box_is_hung_where_it_is_not_shown(page: Page) -> None:
    _open_two_views(page)
    page.get_by_role("combobox", name="Layout").select_option("one")
    films = page.locator(".rv-film[data-center]")
    expect(films).to_have_count(1)
    page.get_by_role("button", name="lateral").click()
    expect(films.first).to_have_attribute("data-image", "1")
    page.locator("#draft-title").click()
    page.keyboard.press("B")
    expect(films.first).to_have_attribute("data-image", "0")
    expect(films.first.locator(".rv-box.rv-marked")).to_have_count(1)


def test_a_box_outside_of_what_is_seen_is_brought_into_view(page: Page) -> None:
    films = _open_two_views(page)
    page.evaluate(
        "import('/static/viewer/films.js').then(({ shown }) => { for (const film of shown)"
        " film.change((view) => ({ ...view, zoom: 8, middle: [0.1, 0.9] })); })"
    )
    page.wait_for_timeout(300)
    base = films.first.locator(".rv-box").nth(1)
    width, height = (int(films.first.locator(".rv-view").evaluate(f"one => one.client{side}"))
                     for side in ("Width", "Height"))  # fmt: skip
    left, _, right, _ = _edges(base)
    assert (left + right) / 2 > width
    page.locator("#draft-title").click()
    page.keyboard.press("B")
    page.wait_for_timeout(300)
    left, top, right, bottom = _edges(films.first.locator(".rv-box.rv-marked"))
    assert [(left + right) / 2, (top + bottom) / 2] == pytest.approx([width / 2, height / 2], abs=2)


def test_a_place_that_is_not_checked_or_improbable_is_stated_and_an_edit_ends_a_box(page: Page) -> None:
    films = _open_two_views(page)
    _sentence(page, "right effusion").locator(".words").click()
    effusion = _sentence(page, "right effusion")
    expect(effusion.locator(".facts")).to_contain_text("right pleura: place not checked")
    effusion.get_by_text("Why").click()
    expect(effusion.locator(".why")).to_contain_text("not checked; a box covers nearly the whole image, which says")
    base = _sentence(page, "atelectasis at the left base")
    base.locator(".words").click()
    expect(base.locator(".facts")).to_contain_text("left lower zone, 10 % probable as its place")
    opacity = _sentence(page, "opacity in the left upper")
    opacity.locator(".words").click()
    expect(opacity.locator(".facts")).to_contain_text("left upper zone, 80 % probable as its place")
    facts = _sentence(page, "The heart is normal").locator(".facts").text_content() or ""
    assert "written by the model" in facts
    assert "place" not in facts, "it states no finding"
    assert grave_problems(page) == []
    opacity.get_by_role("button", name="Edit").click()
    page.locator("textarea").fill("There is an opacity.")
    page.get_by_role("button", name="Save").click()
    expect(films.first.locator(".rv-box")).to_have_count(1)
    expect(films.nth(1).locator(".rv-box")).to_have_count(0)


def test_boxes_and_sentences_mark_each_other_in_two_windows(page: Page) -> None:
    _open_two_views(page)
    with page.context.expect_page() as opening:
        page.get_by_role("button", name="Two windows").click()
    films = opening.value
    expect(films.locator(".rv-box")).to_have_count(3, timeout=60_000)
    _sentence(page, "opacity in the left upper").hover()
    expect(films.locator(".rv-box.rv-marked")).to_have_count(2)
    films.locator(".rv-bar").hover()
    films.wait_for_timeout(300)
    expect(films.locator(".rv-box.rv-marked")).to_have_count(2)
    film = films.locator(".rv-film").first
    box = film.bounding_box()
    assert box is not None
    left, top, right, bottom = _edges(film.locator(".rv-box").first)
    films.mouse.move(box["x"] + (left + right) / 2, box["y"] + (top + bottom) / 2, steps=3)
    expect(_sentence(page, "atelectasis at the left base")).to_have_class(re.compile(r"\bmarked\b"))


def _scan(path: Path, flips: tuple[int, int, int], order: tuple[int, int, int]) -> bytes:
    """A scan whose voxels brighten to the patient's left, stored with other axes."""
    values = np.broadcast_to(np.linspace(-1000, 1000, SHAPE_XYZ[0])[:, None, None], SHAPE_XYZ).astype(np.int16)
    affine = np.diag([-SPACING_XYZ[0], -SPACING_XYZ[1], SPACING_XYZ[2], 1.0])  # x to the left, y to the back: RAS
    for axis, sign in enumerate(flips):
        if sign < 0:
            values = np.flip(values, axis)
            affine[:3, 3] += affine[:3, axis] * (SHAPE_XYZ[axis] - 1)
            affine[:3, axis] *= -1
    affine[:3, :3] = affine[:3, list(order)]
    nibabel.save(nibabel.Nifti1Image(np.ascontiguousarray(values.transpose(order)), affine), path)
    return path.read_bytes()


def _in_planes(films: Locator) -> list[list[float]]:
    """Shares of each film's image that the first box takes: left, top, right, bottom."""
    shares = []
    for film, (across, down) in zip(films.all(), ((0, 1), (0, 2), (1, 2)), strict=True):
        facts = {name: float(film.get_attribute(f"data-{name}") or 0) for name in ("scale", "left", "top")}
        width = facts["scale"] * SHAPE_XYZ[across]
        height = facts["scale"] / SPACING_XYZ[across] * SPACING_XYZ[down] * SHAPE_XYZ[down]
        left, top, right, bottom = _edges(film.locator(".rv-box").first)
        starts = (facts["left"], facts["top"])
        ends = zip((left, top, right, bottom), starts * 2, (width, height) * 2, strict=True)
        shares.append([(value - start) / size for value, start, size in ends])
    return shares


@pytest.mark.parametrize(
    ("flips", "order"), [((1, 1, 1), (0, 1, 2)), ((-1, -1, -1), (2, 0, 1))], ids=["as shown", "another orientation"]
)
def test_a_box_of_a_scan_is_cut_by_the_slices_of_three_planes(
    flips: tuple[int, int, int], order: tuple[int, int, int], ct_page: Page, tmp_path: Path
) -> None:
    page = ct_page
    upload(page, "scan.nii.gz", _scan(tmp_path / "scan.nii.gz", flips, order))
    page.locator("tr[data-state=drafted] .study-link").click(timeout=90_000)
    films = page.locator(".rv-film[data-slice]")
    expect(films).to_have_count(3, timeout=60_000)
    page.wait_for_load_state("networkidle")
    page.locator("#draft-title").click()
    page.keyboard.press("b")
    (z0, y0, x0, z1, y1, x1) = BOXES["ct"][0][0][1]
    middles = [(z0 + z1) / 2 * SHAPE_XYZ[2], (y0 + y1) / 2 * SHAPE_XYZ[1], (x0 + x1) / 2 * SHAPE_XYZ[0]]
    for film, middle in zip(films.all(), middles, strict=True):
        expect(film).to_have_attribute("data-slice", str(int(middle) + 1))
        expect(film.locator(".rv-box.rv-marked")).to_have_count(1)
    wanted = [[x0, y0, x1, y1], [x0, 1 - z1, x1, 1 - z0], [y0, 1 - z1, y1, 1 - z0]]
    assert np.allclose(_in_planes(films), wanted, atol=0.01)
    value = page.evaluate(
        "import('/static/viewer/films.js').then(({ shown }) => { const [film] = [...shown];"
        " return film.valueAt(film.size.width - 1, 0); })"
    )
    assert value == 1000, "the patient's left is on the right"
    reaches = page.evaluate(  # the highest values of three slices of 4 mm; the box begins 12 slices from the feet
        "box => import('/static/viewer/films.js').then(({ shown }) => { const { subject } = [...shown][0];"
        " return [10, 11].map((place) => subject.outline('axial', place, 10, box) !== null); })",
        BOXES["ct"][0][0][1],
    )
    assert reaches == [False, True]
    films.first.focus()
    page.keyboard.press("End")  # the last slice is above the box
    expect(films.first.locator(".rv-box")).to_have_count(0)
    page.keyboard.press("b")
    expect(_sentence(page, "atelectasis at the left base")).to_be_focused()
    expect(films.first.locator(".rv-box.rv-marked")).to_have_count(1)


def test_a_box_moves_the_prior_with_the_scan_only_where_they_are_linked(ct_page: Page, tmp_path: Path) -> None:
    page = ct_page
    for name, flips in (("early", (1, 1, 1)), ("late", (-1, 1, 1))):
        upload(page, f"{name}.nii.gz", _scan(tmp_path / f"{name}.nii.gz", flips, (0, 1, 2)))
    expect(page.locator("tr[data-state=drafted]")).to_have_count(2, timeout=90_000)
    page.get_by_role("link", name="late.nii.gz").click()
    page.locator(".rv-film[data-slice]").first.wait_for(timeout=60_000)
    choose_prior(page, "early.nii.gz")
    page.get_by_role("button", name="Prior", exact=True).click()
    own, prior = (page.locator(f".rv-film[data-image='{name}'][data-slice]") for name in ("0", "prior-0"))
    expect(prior).to_have_attribute("data-slice", "13")
    expect(own).to_have_attribute("data-slice", "13")
    page.get_by_role("button", name="Linked").click()
    page.locator("#draft-title").click()
    page.keyboard.press("b")
    expect(own).to_have_attribute("data-slice", "16")
    page.wait_for_timeout(300)
    expect(prior).to_have_attribute("data-slice", "13")
    page.get_by_role("button", name="Linked").click()
    page.locator("#draft-title").click()
    page.keyboard.press("b")
    expect(own).to_have_attribute("data-slice", "5")
    expect(prior).to_have_attribute("data-slice", "2")  # as far as the scan
