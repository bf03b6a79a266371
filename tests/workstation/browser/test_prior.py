"""The study before one beside it, and what a template offers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, Route, expect

from radweave.data.dataset import Dataset
from radweave.workstation.settings import Settings
from tests.workstation.browser.steps import choose_prior, dicom, open_study, upload
from tests.workstation.stations import listening

TEMPLATE = """<html><head><title>Chest</title><script>window.ran = 1</script></head><body>
<section data-section-name="Findings"><p><label>Heart</label><textarea>Normal.</textarea></p>
<p><label>Tubes</label><input></p></section></body></html>"""


def _open_second(page: Page, name: str, first: bytes, second: bytes) -> None:
    """Upload two images, wait for both drafts, and open the second one."""
    upload(page, f"early{name}", first)
    upload(page, f"late{name}", second)
    expect(page.locator("tr[data-state=drafted]")).to_have_count(2, timeout=90_000)
    page.get_by_role("link", name=f"late{name}").click()
    page.locator("li.sentence").first.wait_for(timeout=60_000)


def _same(page: Page, *facts: str) -> None:
    """Both films come to say the same of themselves; each may be drawn later than the other."""
    one, other = page.locator(".rv-film[data-center]").all()
    end = time.monotonic() + 20
    for name in facts:
        while (value := one.get_attribute(f"data-{name}")) != (seen := other.get_attribute(f"data-{name}")):
            assert time.monotonic() < end, f"{name}: {value} beside {seen}"
            page.wait_for_timeout(50)


def test_a_chosen_prior_is_shown_beside_the_study(page: Page) -> None:
    _open_second(page, ".dcm", dicom(columns=120), dicom())
    expect(page.locator("#prior")).to_contain_text("No earlier study")
    choose_prior(page, "early.dcm")
    expect(page.locator("#prior")).to_contain_text("The draft was made without it")
    page.get_by_role("button", name="Show the image before this one").click()
    films = page.locator(".rv-film[data-center]")
    expect(films).to_have_count(2)
    expect(page.locator(".rv-film[data-image=prior-0]")).to_have_count(1)
    films.first.focus()
    before = films.last.get_attribute("data-scale")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("+")
    page.keyboard.press("r")
    expect(films.first).to_have_attribute("data-rotation", "90")
    _same(page, "center", "width", "rotation")
    expect(films.last).not_to_have_attribute("data-scale", before or "")
    page.reload()
    expect(page.locator("#prior")).to_contain_text("early.dcm")
    page.get_by_role("button", name="It has no prior").click()
    expect(page.locator("#prior")).to_contain_text("No earlier study")


def test_keys_pressed_while_the_prior_is_loading_move_both_films(page: Page) -> None:
    _open_second(page, ".dcm", dicom(columns=120), dicom())
    expect(page.locator(".rv-film[data-center]")).to_have_count(1)
    choose_prior(page, "early.dcm")
    waiting: list[Route] = []
    page.route("**/images/prior-0/pixels*", lambda route: waiting.append(route))
    page.reload()
    page.locator("li.sentence").first.wait_for()
    if page.locator(".rv-film").count() < 2:
        page.get_by_role("button", name="Prior", exact=True).click()
    expect(page.locator(".rv-film")).to_have_count(2)
    main = page.locator(".rv-film[data-image='0'][data-center]")
    main.focus()
    for key in ("Shift+ArrowRight", "+", "r", "i"):
        page.keyboard.press(key)
    expect(main).to_have_attribute("data-rotation", "90")
    assert waiting, "the prior was drawn before any key was pressed"
    expect(page.locator(".rv-film[data-center]")).to_have_count(1)
    for route in waiting:
        route.continue_()
    expect(page.locator(".rv-film[data-center]")).to_have_count(2)
    _same(page, "center", "width", "rotation", "inverted")


def test_a_scan_and_the_one_before_it_are_scrolled_together(
    toy_ct_run: Path, toy_ct_dataset: Dataset, tmp_path: Path, watched: Callable[..., BrowserContext]
) -> None:
    scan = toy_ct_dataset.image_path(next(iter(toy_ct_dataset.studies("test"))).images[0].path).read_bytes()
    with listening(Settings(run=toy_ct_run, state=tmp_path / "state", drain_s=1.0)) as (port, token):
        page = watched(f"http://127.0.0.1:{port}").new_page()
        page.goto(f"/login#token={token}")
        page.wait_for_url("**/studies")
        _open_second(page, ".nii.gz", scan, scan)
        page.locator(".rv-film[data-slice]").first.wait_for(timeout=60_000)
        choose_prior(page, "early.nii.gz")
        page.get_by_role("button", name="Prior", exact=True).click()
        before = page.locator(".rv-film[data-image=prior-0][data-slice]")
        before.wait_for(timeout=60_000)
        main = page.locator(".rv-film[data-image='0'][data-slice]")
        _same(page, "slice")
        main.focus()
        first = main.get_attribute("data-slice") or ""
        page.keyboard.press("ArrowUp")
        page.keyboard.press("n")
        expect(main).not_to_have_attribute("data-slice", first)
        _same(page, "slice", "center", "width", "plane")
        at = int(main.get_attribute("data-slice") or 0)
        page.get_by_role("button", name="Linked").click()
        before.focus()
        page.keyboard.press("ArrowDown")
        expect(before).to_have_attribute("data-slice", str(at + 1))
        expect(main).to_have_attribute("data-slice", str(at))
        # Linked again, what lies between them stays.
        page.get_by_role("button", name="Linked").click()
        before.focus()
        page.keyboard.press("ArrowDown")
        expect(before).to_have_attribute("data-slice", str(at + 2))
        expect(main).to_have_attribute("data-slice", str(at + 1))


def test_a_template_is_loaded_and_its_lines_are_put_in(page: Page) -> None:
    page.goto("/account")
    expect(page.locator("#template")).to_contain_text("None is loaded")  # the page's script has begun
    page.set_input_files("#template-file", {"name": "t.html", "mimeType": "text/html", "buffer": TEMPLATE.encode()})
    expect(page.locator("#template")).to_contain_text("Not taken over: 1 script")
    page.goto("/studies")
    open_study(page)
    page.locator("#template summary").click()
    page.get_by_role("button", name="Insert: Heart: Normal.").click()
    sentences = page.locator("li.sentence .words")
    expect(sentences.last).to_have_text("Heart: Normal.")
    page.get_by_role("button", name="Write: Tubes:").click()
    page.keyboard.type("none.")
    page.keyboard.press("Control+Enter")
    expect(sentences.last).to_have_text("Tubes: none.")
    assert page.evaluate("window.ran") is None
