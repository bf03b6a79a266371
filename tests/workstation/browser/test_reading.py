"""From a file to a signed report in a browser: with the mouse, with the keyboard alone, and at 200 %."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, Page, expect

from radweave.workstation.inference import main
from radweave.workstation.settings import Settings
from tests.workstation.browser.steps import dicom, open_editor, open_study, upload
from tests.workstation.stations import listening

REAL = Path("cxr_dicom") / "files" / "rsna_pa_jpeg.dcm"


def _read_and_sign(page: Page) -> None:
    """Change the first sentence, look at all that is flagged, sign."""
    open_editor(page)
    page.locator("textarea").fill("The heart is of normal size.")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#draft")).to_contain_text("The heart is of normal size.")
    buttons = page.locator("button.look")
    for left in range(buttons.count(), 0, -1):
        buttons.first.click()
        expect(buttons).to_have_count(left - 1)
    page.locator("#sign-button").click()
    page.locator("#sign-now").click()
    expect(page.locator("#sign")).to_contain_text("Signed")
    expect(page.locator("#state")).to_contain_text("igned")


def test_a_real_radiograph_to_a_signed_report(
    settings: Settings, watched: Callable[..., BrowserContext], shared_data: Path
) -> None:
    """The whole way with a model; its run is the tests' own, so that what it writes is of no worth."""
    image = (shared_data / REAL).read_bytes()
    with listening(settings, main) as (port, token):
        page = watched(f"http://127.0.0.1:{port}").new_page()
        page.goto(f"/login#token={token}")
        page.wait_for_url("**/studies")
        open_study(page, data=image)
        page.locator(".rv-film[data-center]").wait_for()
        _read_and_sign(page)


def test_a_file_becomes_a_signed_report(page: Page) -> None:
    open_study(page)
    _read_and_sign(page)
    page.reload()
    expect(page.locator("#sign")).to_contain_text("Signed")
    expect(page.locator("#draft")).to_contain_text("The heart is of normal size.")
    assert page.locator("#draft button").count() == 0


def test_signing_requires_a_look_at_flagged_sentences(page: Page) -> None:
    open_study(page)
    expect(page.locator("#sign-button")).to_be_disabled()
    page.locator("button.look").first.click()
    expect(page.locator("#sign-button")).to_be_enabled()


def test_the_keyboard_is_enough(page: Page) -> None:
    """No click: open a study from the list, edit a sentence, look at the flagged one, sign."""
    upload(page, "chest.dcm", dicom())
    page.locator("tr[data-state=drafted]").wait_for()
    page.locator("body").press("j")
    expect(page.locator(".study-link")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("li.sentence").first.wait_for()
    page.keyboard.press("j")
    _tab_to(page, page.locator("li.sentence").first.get_by_role("button", name="Edit"))
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type("The heart is small.")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#draft")).to_contain_text("The heart is small.")
    page.keyboard.press("n")
    _tab_to(page, page.locator("button.look"))
    page.keyboard.press("Enter")
    expect(page.locator("#sign-button")).to_be_enabled()
    page.keyboard.press("s")
    expect(page.locator("dialog")).to_be_visible()
    _tab_to(page, page.locator("#sign-now"))
    page.keyboard.press("Enter")
    expect(page.locator("#sign")).to_contain_text("Signed")


def _tab_to(page: Page, wanted: Locator, *, most: int = 6) -> None:
    """By Tab, from where the focus is."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if wanted.evaluate("(one) => one === document.activeElement"):
            return
    raise AssertionError(f"{wanted} is not within {most} steps")


def test_at_200_percent_nothing_is_cut_off(station: tuple[str, str], watched: Callable[..., BrowserContext]) -> None:
    """A window of 1,280 x 900 that is enlarged twice has 640 x 450 pixels of the page (WCAG 1.4.4, 1.4.10)."""
    origin, token = station
    page = watched(origin, viewport={"width": 640, "height": 450}, device_scale_factor=2).new_page()
    page.goto("/login")
    _assert_fits(page)
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")
    upload(page, "chest.dcm", dicom())
    page.locator("tr[data-state=drafted]").wait_for()
    _assert_fits(page)
    page.locator(".study-link").click()
    page.locator("li.sentence").first.wait_for()
    page.wait_for_timeout(500)
    _assert_fits(page)
    for place in ("/account", "/log"):
        page.goto(place)
        page.wait_for_load_state("networkidle")
        _assert_fits(page)


def _assert_fits(page: Page) -> None:
    """Nothing has to be scrolled to the side, and no button lies outside of what can be scrolled to."""
    wide = page.evaluate(
        """document.scrollingElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
             .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll"))
             .map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert wide == [], page.url
    outside = page.evaluate(
        """[...document.querySelectorAll('button, a, input')].filter((one) => one.checkVisibility()
             && !one.closest('.skip, .scroll, .visually-hidden'))
             .map((one) => [one.getBoundingClientRect(), one.outerHTML.slice(0, 80)])
             .filter(([box]) => box.right > innerWidth + 1 || box.left < -1).map(([box, words]) => words)"""
    )
    assert outside == [], page.url


def test_typed_text_survives_an_edit_by_another_user(
    page: Page, station: tuple[str, str], watched: Callable[..., BrowserContext]
) -> None:
    study = open_study(page)
    open_editor(page)
    page.locator("textarea").fill("Typed for an hour.")
    origin, token = station
    other = watched(origin).request
    answer = other.patch(
        f"{origin}/api/v1/studies/{study}/sentences", headers={"Authorization": f"Bearer {token}"},
        data={"version": 1, "edits": [{"op": "insert", "text": "Theirs was faster."}]},
    )  # fmt: skip
    assert answer.status == 200
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#alerts")).to_contain_text("someone else changed the draft")
    expect(page.locator("textarea")).to_have_value("Typed for an hour.")
    expect(page.locator("#draft")).to_contain_text("Theirs was faster.")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("textarea")).to_have_count(0)
    expect(page.locator("#draft")).to_contain_text("Typed for an hour.")
    expect(page.locator("#draft")).to_contain_text("Theirs was faster.")


def test_a_draft_is_rejected_reopened_signed_and_added_to_with_the_keyboard(page: Page) -> None:
    open_study(page)
    page.keyboard.press("r")
    page.locator("#reject-text").fill("Not a\u200b chest.")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("dialog")).to_contain_text("U+200B ZERO WIDTH SPACE")
    page.locator("#reject-text").fill("Not a chest.")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#state")).to_contain_text("Rejected")
    expect(page.locator("#sign")).to_contain_text("Not a chest.")
    expect(page.locator("#exports")).to_contain_text("no report")
    page.keyboard.press("r")
    expect(page.locator("#sign-button")).to_be_attached()
    _read_and_sign(page)
    page.keyboard.press("t")
    page.locator("#addenda-text").fill("Small nodule on the left.")
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    expect(page.locator("#addenda-text")).to_have_value("Small nodule on the left.")
    page.locator("#addenda-now").click()
    expect(page.locator("#sign")).to_contain_text("Addendum 1")
    expect(page.locator("#sign")).to_contain_text("Small nodule on the left.")


def test_a_key_is_changed_refused_where_it_is_taken_and_holds_in_the_films(page: Page) -> None:
    """Changed keys are remembered for the next page; a key of another command is refused."""
    study = open_study(page)
    page.keyboard.press("?")
    sheet = page.locator("dialog[open]")
    for command in ("next sentence", "sign", "length", "window by the left button", "flip across"):
        expect(sheet.locator("li", has_text=command).first).to_be_visible()
    length = sheet.get_by_role("button", name="length: d; change the key")
    length.click()
    page.keyboard.press("w")
    expect(sheet.get_by_role("alert").filter(has_text="w is taken: window by the left button.")).to_be_visible()
    page.keyboard.press("Enter")
    expect(sheet.get_by_role("alert").filter(has_text="Enter keeps its meaning.")).to_be_visible()
    page.keyboard.press("j")
    expect(sheet.get_by_role("button", name="length: j; change the key")).to_be_focused()
    sheet.get_by_role("button", name="next sentence: j; change the key").click()
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Escape")
    page.goto(f"/studies/{study}")
    page.locator("li.sentence").first.wait_for()
    page.keyboard.press("j")
    expect(page.locator("li.sentence.current")).to_have_count(0)
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator("li.sentence.current")).to_have_count(1)
    page.locator(".rv-film[data-center]").first.focus()
    page.keyboard.press("d")
    expect(page.get_by_role("button", name="Length", exact=True)).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("j")
    expect(page.get_by_role("button", name="Length", exact=True)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("?")
    page.get_by_role("button", name="All keys as at first").click()
    expect(page.get_by_role("button", name="length: d; change the key")).to_be_visible()
