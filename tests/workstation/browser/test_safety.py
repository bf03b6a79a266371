"""What comes from outside is text on every page: nothing of it runs. And pages that everybody can use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.workstation.browser.steps import AXE, dicom, grave_problems, open_editor, open_study, upload

SCRIPT = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>\'"--></textarea>{{7*7}}'


def test_no_script_of_a_name_a_report_or_a_patient_runs(page: Page) -> None:
    study = open_study(page, f"{SCRIPT}.dcm".replace("/", "\u2215"), dicom(PatientName="<script>window.ran=1</script>"))
    open_editor(page)
    page.locator("textarea").fill(SCRIPT)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#draft")).to_contain_text(SCRIPT)
    for place in (f"/studies/{study}", "/studies", "/log", f"/studies/{study}%3Cscript%3E", "/%3Cscript%3Ealert(1)"):
        page.goto(place)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("window.ran") is None
        assert page.locator("main img[src=x]").count() == 0
        assert "49" not in page.locator("h1").first.inner_text()
    page.goto("/studies")
    expect(page.locator(".study-link")).to_contain_text("<img src=x")
    page.fill("#search", SCRIPT)
    page.wait_for_timeout(300)
    assert page.evaluate("window.ran") is None


def test_the_content_security_policy_blocks_injected_content(browser: Browser, station: tuple[str, str]) -> None:
    page = browser.new_page()
    page.goto(f"{station[0]}/login")
    page.evaluate(
        """() => { const one = document.createElement("div"); one.innerHTML = "<img src=x onerror='window.ran=1'>";
             document.body.append(one); return new Promise((done) => setTimeout(done, 200)); }"""
    )
    assert page.evaluate("window.ran") is None
    page.close()


def _look(page: Page, what: str) -> None:
    grave = grave_problems(page)
    assert grave == [], (what, grave)


def test_the_axe_file_has_its_recorded_hash() -> None:
    retained = AXE.with_name("README.md").read_text()
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() in retained


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    scheme: str, station: tuple[str, str], watched: Callable[..., BrowserContext]
) -> None:
    origin, token = station
    context = watched(origin)
    context.add_init_script(f"try {{ localStorage.setItem('radweave.theme', '{scheme}') }} catch {{}}")
    context.add_init_script(path=AXE)
    page = context.new_page()
    page.goto("/login")
    _look(page, "login")
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")
    page.wait_for_load_state("networkidle")
    _look(page, "empty list")
    study = open_study(page)
    page.wait_for_timeout(500)
    _look(page, "study")
    page.keyboard.press("?")
    _look(page, "keys")
    page.keyboard.press("Escape")
    open_editor(page)
    _look(page, "editor")
    page.locator("textarea").fill("Another one.")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("textarea")).to_have_count(0)
    page.locator("button.look").first.click()
    expect(page.locator("#sign-button")).to_be_enabled()
    page.locator("#sign-button").click()
    _look(page, "sign")
    page.locator("#sign-now").click()
    expect(page.locator("#sign")).to_contain_text("Signed")
    _look(page, "signed")
    page.goto("/studies")
    upload(page, "refused.png", b"\x89PNG\r\n\x1a\nrefuse")
    page.locator("tr[data-state=refused]").wait_for()
    _look(page, "list")
    for place in ("/account", "/log", "/nowhere", f"/studies/{study[::-1]}"):
        page.goto(place)
        page.wait_for_load_state("networkidle")
        _look(page, place)
