"""A refused study in a browser: its film with the reason above it, and a draft all the same, with a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, expect

from radweave.workstation.inference import main
from radweave.workstation.settings import Settings
from tests.workstation.browser.steps import dicom, upload
from tests.workstation.stations import listening


def test_a_knee_shows_its_film_and_its_reason_and_is_drafted_when_an_admin_confirms_it(
    settings: Settings, watched: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    with listening(settings, main) as (port, token):
        page = watched(f"http://127.0.0.1:{port}").new_page()
        page.goto(f"/login#token={token}")
        page.wait_for_url("**/studies")
        upload(page, "film.dcm", dicom(rows=256, columns=256, BodyPartExamined="KNEE"))
        row = page.locator("tr[data-state=refused]").first
        row.wait_for(timeout=90_000)
        expect(row).to_contain_text("not a chest: the body part is KNEE")
        row.locator("a").click()
        page.locator(".rv-film[data-center]").wait_for()
        expect(page.locator("#refusal")).to_contain_text("film.dcm: not a chest: the body part is KNEE")
        expect(page.locator("#refusal")).not_to_contain_text("--force")
        above, film = page.locator("#refusal").bounding_box(), page.locator("#viewer").bounding_box()
        assert above is not None
        assert film is not None
        assert above["y"] + above["height"] <= film["y"]
        page.screenshot(path=tmp_path / "refused.png", full_page=True)
        page.get_by_role("button", name="Draft anyway…").click()
        page.get_by_role("button", name="Leave it").click()
        expect(page.locator("#refusal")).to_be_visible()
        page.get_by_role("button", name="Draft anyway…").click()
        page.locator("#anyway-now").click()
        page.locator("li.sentence").first.wait_for(timeout=90_000)
        expect(page.locator("#drafted-anyway")).to_contain_text("Drafted although it was refused (body part)")
        expect(page.locator("#warnings li").first).to_contain_text("DRAFTED ALTHOUGH IT WAS REFUSED")
        page.screenshot(path=tmp_path / "drafted.png", full_page=True)
        page.goto("/studies")
        expect(page.locator("tr[data-state=drafted]").first).to_contain_text("drafted although refused (body part)")
