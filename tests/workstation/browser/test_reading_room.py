"""A reading room: the next study in one key and fetched ahead, two windows in step, marks on what belongs together."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.workstation.browser.steps import (
    dicom,
    layout_problems,
    open_study,
    open_two_views,
    share_of_width,
    upload,
)


def _three(page: Page) -> list[str]:
    """Upload three radiographs and wait for their drafts: their numbers, the oldest first."""
    for name in ("one.dcm", "two.dcm", "three.dcm"):
        upload(page, name, dicom())
    rows = page.locator("tr[data-state=drafted]")
    expect(rows).to_have_count(3, timeout=90_000)
    names = {row.locator(".study-link").inner_text(): row.get_attribute("data-study") for row in rows.all()}
    return [str(names[name]) for name in ("one.dcm", "two.dcm", "three.dcm")]


def _open(page: Page, study: str) -> None:
    page.goto(f"/studies/{study}")
    page.locator("li.sentence").first.wait_for()
    page.locator(".rv-film[data-center]").first.wait_for()


def _actions(page: Page, study: str) -> list[str]:
    answer = page.request.get(f"/api/v1/studies/{study}/log")
    return [entry["action"] for entry in json.loads(answer.text())["entries"]]


def test_the_next_study_is_fetched_ahead_and_opens_in_one_key(page: Page) -> None:
    """Its pixels are asked for once, ahead, which the log records as that; the page is not loaded anew."""
    one, two, three = _three(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.split("/api/v1")[-1]))
    _open(page, one)
    page.wait_for_function(
        "(id) => import('/static/ahead.js').then(({ aheadOf }) => aheadOf() === id)", arg=two, timeout=20_000
    )
    page.wait_for_load_state("networkidle")
    assert f"/studies/{two}/images/0/pixels?ahead=true" in asked
    assert not any(f"/studies/{three}" in path for path in asked)
    assert "fetched ahead" in _actions(page, two)
    assert not {"opened", "images opened"} & set(_actions(page, two))
    page.evaluate("window.mine = true")
    page.locator(".rv-film").first.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    expect(page.locator("#name")).to_have_text("two.dcm")
    expect(page.locator(".rv-film[data-center]")).to_have_count(1)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.mine")
    assert page.url.endswith(two)
    assert asked.count(f"/studies/{two}/images/0/pixels") == 0
    assert {"opened", "images opened"} <= set(_actions(page, two))
    page.go_back()
    expect(page.locator("#name")).to_have_text("one.dcm")


def test_what_is_being_written_stays_when_another_study_is_asked_for(page: Page) -> None:
    one, two, _ = _three(page)
    _open(page, one)
    page.keyboard.press("j")
    page.keyboard.press("e")
    page.keyboard.type("Half a sen")
    page.locator("#main").focus()
    page.keyboard.press("g")
    expect(page.locator("#alerts")).to_contain_text("Save or cancel")
    assert page.locator("textarea").input_value().endswith("Half a sen")
    assert page.url.endswith(one)
    assert two not in page.url


def test_two_windows_are_kept_in_step(page: Page) -> None:
    one, two, _ = _three(page)
    _open(page, one)
    with page.expect_popup() as popped:
        page.keyboard.press("o")
    films = popped.value
    films.locator(".rv-film[data-center]").first.wait_for()
    expect(page.locator("#viewer")).to_be_hidden()
    expect(page.locator("#queue")).to_contain_text("3 to read")
    expect(films.locator(".work")).to_be_hidden()
    expect(films.locator(".notice")).to_be_visible()
    page.keyboard.press("g")
    expect(page.locator("#name")).to_have_text("two.dcm")
    expect(films.locator("#name")).to_have_text("two.dcm")
    films.locator(".rv-film[data-center]").first.wait_for()
    films.locator("#main").focus()
    films.keyboard.press("j")  # a key of the draft in the films' window
    expect(page.locator("li.sentence.current")).to_have_count(1)
    page.locator("#queue a", has_text="one.dcm").click()
    expect(films.locator("#name")).to_have_text("one.dcm")
    page.reload()
    expect(page.locator("#queue")).to_contain_text("3 to read")
    expect(films.locator("#alerts")).to_be_empty()
    films.close()
    expect(page.locator("#viewer")).to_be_visible()
    page.locator(".rv-film[data-center]").first.wait_for()
    with page.expect_popup() as popped:
        page.keyboard.press("o")
    films = popped.value
    films.locator(".rv-film[data-center]").first.wait_for()
    page.goto("/account")
    expect(films.locator("#alerts")).to_contain_text("The window with the draft was closed.")
    films.get_by_role("button", name="Show the draft here").click()
    films.locator("li.sentence").first.wait_for()
    assert films.url.endswith(one)
    assert two


def test_a_sentence_marks_its_findings_and_a_finding_its_sentences(page: Page) -> None:
    study = open_study(page)

    def with_a_claim(route: Route) -> None:
        answer = json.loads(route.fetch().text())
        claim = {"said": "affirmed", "verdict": "agrees", "probability": None, "agree": [], "differ": []}
        first, *others = answer["draft"]["sentences"]
        first["details"]["claims"] = [{**claim, "name": "Edema"}]
        answer["draft"]["sentences"] = [first, {**first, "key": 999}, *others]
        finding = {"probability": 0.7, "threshold": 0.5, "said": "positive", "flag": None, "experience": None}
        answer["findings"] = [{**finding, "name": name, "recalled": []} for name in ("Edema", "Fracture")]
        route.fulfill(json=answer)

    page.route(f"**/api/v1/studies/{study}", with_a_claim)
    page.reload()
    sentence = page.locator("li.sentence").first
    sentence.hover()
    expect(page.locator("#findings tr.marked")).to_have_count(1)
    expect(page.locator("li.sentence.marked")).to_have_count(0)
    name = page.locator("#findings tr.marked th").inner_text()
    finding = page.locator("#findings tr", has=page.get_by_role("rowheader", name=name, exact=True))
    finding.hover()
    expect(page.locator("li.sentence.marked")).to_have_count(2)
    page.locator("h1").hover()
    expect(page.locator(".marked")).to_have_count(0)
    page.unroute_all(behavior="ignoreErrors")


def test_a_macro_expands_and_tab_goes_through_its_placeholders(page: Page) -> None:
    open_study(page)
    page.keyboard.press("q")
    page.locator("#macros-own").fill(
        "no: Nodule of [size] mm in the [lobe]. // Follow up in [months] months.\nbad line"
    )
    page.get_by_role("button", name="Save Yours").click()
    expect(page.get_by_role("dialog")).to_contain_text("Line 2")
    page.locator("#macros-own").fill("no: Nodule of [size] mm in the [lobe]. // Follow up in [months] months.")
    page.get_by_role("button", name="Save Yours").click()
    expect(page.get_by_role("dialog")).to_contain_text("Saved.")
    page.keyboard.press("Escape")
    page.reload()
    sentences = page.locator("li.sentence")
    sentences.first.wait_for()
    count = sentences.count()
    page.keyboard.press("j")
    page.keyboard.press("a")
    page.keyboard.type("no")
    expect(page.locator(".hint")).to_contain_text("Tab: Nodule")
    for text in ("\t6", "\tright upper lobe", "\t"):
        for one in text:
            page.keyboard.press("Tab" if one == "\t" else one)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#alerts")).to_contain_text("Fill in [months] first")
    page.locator("textarea").press("End")
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("12")
    page.keyboard.press("Control+Enter")
    expect(sentences).to_have_count(count + 2)
    texts = page.locator("li.sentence .words").all_inner_texts()
    assert texts[1:3] == ["Nodule of 6 mm in the right upper lobe.", "Follow up in 12 months."]
    page.keyboard.press("e")
    page.keyboard.press("Tab")  # nothing to expand: it leaves the field
    assert page.evaluate("document.activeElement.tagName") != "TEXTAREA"


def test_studies_are_signed_one_after_the_other_with_four_keys_each(page: Page) -> None:
    """From the work list: a key to a study, one to open it; for each one flagged sentence, looked at, sign, next."""
    studies = _three(page)
    begun, keys = time.monotonic(), 0

    def press(*names: str) -> None:
        nonlocal keys
        for name in names:
            page.keyboard.press(name)
            keys += 1

    page.locator("body").focus()
    press("j")
    expect(page.locator(".study-link").first).to_be_focused()
    press("Enter")
    shown = ""
    for _ in studies:
        expect(page.locator("#name")).not_to_have_text(shown or "Study")
        page.locator("li.sentence.unseen").first.wait_for()
        shown = page.locator("#name").inner_text()
        press("n", "l")
        expect(page.locator("#sign-button")).to_be_enabled()
        press("s")
        expect(page.locator("dialog[open]")).to_be_visible()
        press("Control+Shift+Enter")
    expect(page.locator("#alerts")).to_contain_text("No other study waits")
    print(f"{keys} keys, {time.monotonic() - begun:.1f} s for {len(studies)} studies")
    assert keys == 2 + 4 * len(studies)
    states = {row["state"] for row in json.loads(page.request.get("/api/v1/studies").text())["studies"]}
    assert states == {"signed"}


def test_dicom_in_windowed_measured_edited_and_signed(page: Page) -> None:
    """All by keys but for the two ends of the length, which are 150 pixels of 0.2 mm apart."""
    open_study(page, data=dicom(rows=300, columns=450))
    film = page.locator(".rv-film[data-center]").first
    film.wait_for()
    page.wait_for_load_state("networkidle")
    page.keyboard.press("v")
    expect(film).to_be_focused()
    width = film.get_attribute("data-width")
    page.keyboard.press("Shift+ArrowRight")
    expect(film).not_to_have_attribute("data-width", width or "")
    page.keyboard.press("d")
    box = film.bounding_box()
    assert box is not None
    scale, left, top = (float(film.get_attribute(f"data-{name}") or 0) for name in ("scale", "left", "top"))
    row = box["y"] + 1 + top + 200 * scale
    ends = [box["x"] + 1 + left + column * scale for column in (20, 170)]
    page.mouse.move(ends[0], row)
    page.mouse.down()
    page.mouse.move(ends[1], row, steps=4)
    page.wait_for_timeout(150)
    page.mouse.up()
    line = page.locator(".rv-measures li")
    expect(line).to_contain_text("Length:")
    length = re.search(r"Length: ([\d.]+) mm", line.inner_text())
    assert length is not None
    assert float(length[1]) == pytest.approx(30, rel=0.01)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("e")
    page.keyboard.press("Control+a")
    page.keyboard.type("The heart is small.")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#draft")).to_contain_text("The heart is small.")
    page.keyboard.press("n")
    page.keyboard.press("l")
    expect(page.locator("#sign-button")).to_be_enabled()
    page.keyboard.press("s")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#sign")).to_contain_text("Signed")
    expect(page.locator("#draft-title")).to_have_text("Report")


def test_the_film_has_two_thirds_of_a_wide_screen_and_nothing_is_cut(
    station: tuple[str, str], watched: Callable[..., BrowserContext]
) -> None:
    origin, token = station
    page = watched(origin, viewport={"width": 1920, "height": 1080}).new_page()
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")
    open_study(page)
    page.locator(".rv-film[data-center]").first.wait_for()
    for width, height in ((1280, 800), (1920, 1080), (2560, 1440), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(300)
        assert layout_problems(page) == [], width
        assert share_of_width(page, "#viewer") >= (0.65 if width > 1024 else 0.9), width


def test_two_screens_of_2560_show_one_study(station: tuple[str, str], watched: Callable[..., BrowserContext]) -> None:
    """A frontal and a lateral image fill one screen; list and draft share the other; both go on to the next study."""
    origin, token = station
    page = watched(origin, viewport={"width": 2560, "height": 1440}).new_page()
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")
    open_two_views(page, rows=300, columns=240)
    first = page.url.rsplit("/", 1)[1]
    page.goto("/studies")
    upload(page, "other.dcm", dicom(PatientName="Second^Person", PatientID="q"))
    expect(page.locator("tr[data-state=drafted]")).to_have_count(2, timeout=90_000)
    _open(page, first)
    with page.expect_popup() as popped:
        page.keyboard.press("o")
    films = popped.value
    expect(films.locator(".rv-film[data-center]")).to_have_count(2)
    expect(page.locator("#queue li")).to_have_count(2)
    for window in (page, films):
        assert window.viewport_size == {"width": 2560, "height": 1440}
        window.wait_for_timeout(300)
        assert layout_problems(window) == []
    assert share_of_width(films, ".rv-film") > 0.9
    film = films.locator(".rv-film").first.bounding_box()
    assert film is not None
    assert film["height"] > 0.8 * 1440
    expect(page.locator("#viewer")).to_be_hidden()
    assert share_of_width(page, "#queue, .work") > 0.65
    expect(films.locator("#name")).to_have_text(page.locator("#name").inner_text())
    films.locator("#main").focus()
    films.keyboard.press("g")  # pressed at the films, done by the window with the draft
    expect(page.locator("#name")).to_have_text("other.dcm")
    expect(films.locator("#name")).to_have_text("other.dcm")
    expect(films.locator(".rv-film[data-center]")).to_have_count(1)
    expect(films.locator(".rv-nw")).to_contain_text("Second, Person")
    for window in (page, films):
        expect(window.locator("#patient")).to_contain_text("Second, Person")
        window.wait_for_timeout(300)
        assert layout_problems(window) == []
