"""Readers at their browsers: one has a study in hand and another takes it over; what is next; what they change."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.workstation.browser.steps import AXE, dicom, grave_problems, open_study, upload


def _second(station: tuple[str, str], watched: Callable[..., BrowserContext]) -> Page:
    """A page of another admin, who may see the studies of the first."""
    origin, token = station

    def post(path: str, body: dict[str, str] | None = None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        asked = Request(f"{origin}/api/v1{path}", json.dumps(body or {}).encode(), headers, method="POST")
        with urlopen(asked) as answer:
            found: dict[str, str] = json.load(answer)
            return found

    other = post("/users", {"name": "ben", "role": "admin"})["id"]
    page = watched(origin).new_page()
    page.goto("/login#token=" + post(f"/users/{other}/token")["token"])
    page.wait_for_url("**/studies")
    return page


def test_a_study_in_hand_is_read_by_others_and_taken_over(
    page: Page, station: tuple[str, str], watched: Callable[..., BrowserContext]
) -> None:
    study = open_study(page)
    other = _second(station, watched)
    expect(other.locator("#list tbody tr").first).to_contain_text("admin")
    other.goto(f"/studies/{study}")
    expect(other.locator("#holder")).to_contain_text("admin has this study in hand")
    expect(other.locator("li.sentence").first).to_be_visible()
    assert other.get_by_role("button", name="Edit").count() == 0
    other.locator("#take-over").click()
    other.locator("#take-over-now").click()
    expect(other.locator("#holder")).to_have_count(0)
    expect(page.locator("#holder")).to_contain_text("ben has this study in hand")
    other.goto("/studies")
    expect(page.locator("#holder")).to_have_count(0)


def test_priority_is_set_in_the_list_and_the_next_study_is_the_most_urgent(page: Page) -> None:
    for name in ("a.dcm", "b.dcm", "c.dcm"):
        upload(page, name, dicom())
    expect(page.locator("tr[data-state=drafted]")).to_have_count(3, timeout=90_000)
    page.get_by_label("Priority of c.dcm").select_option("stat")
    expect(page.locator("select.priority-stat")).to_have_count(1)
    page.evaluate(AXE.read_text())
    assert grave_problems(page) == []
    page.get_by_role("link", name="b.dcm").click()
    page.locator("li.sentence").first.wait_for()
    for name in ("c.dcm", "a.dcm"):
        page.keyboard.press("g")
        expect(page.locator("#name")).to_have_text(name)
        page.locator("li.sentence").first.wait_for()
    page.goto("/studies")
    page.locator("#by-priority").select_option("stat")
    expect(page.locator("tr[data-study]")).to_have_count(1)


def test_what_readers_change_is_a_page_without_serious_problems(page: Page) -> None:
    page.goto("/learning")
    expect(page.locator("#about")).to_contain_text("Fewer than 10 studies were signed")
    shown = {"value": 0.5, "low": 0.4, "high": 0.6, "count": 5, "of": 10}
    figures = {
        "studies": 10, "readers": 1, "least": 10, "most": 5000,
        "acceptance": {"unchanged": shown, "edited": None, "sentences_kept": shown, "rejected": None},
        "seconds": {**shown, "value": 61},
        "findings": [{"name": "Edema", "invented": shown, "missed": None, "other_side": None}],
        "months": [{"month": "2026-10", "studies": 10, "unchanged": shown, "edited": None, "sentences_kept": shown,
                    "seconds": None, "probability": shown, "signed": shown, "drift": {**shown, "value": 0.031}}],
    }  # fmt: skip
    arm = {"with draft": shown, "without draft": None, "difference": None}
    compared = {"studies": {"with draft": 10, "without draft": 2}, "seconds": arm, "words": arm, "agreement": arm}
    page.route("**/api/v1/learning", lambda route: route.fulfill(json=figures))
    page.route("**/api/v1/reader-study", lambda route: route.fulfill(json={"least": 10, **compared, "readers": []}))
    page.reload()
    expect(page.locator("#findings")).to_contain_text("50 % (40 % to 60 %) 5 of 10")
    expect(page.locator("#findings")).to_contain_text("too few")
    expect(page.locator("#months")).to_contain_text("+3.1")
    expect(page.locator("#arms")).to_contain_text("Without (2)")
    page.evaluate(AXE.read_text())
    assert grave_problems(page) == []


@pytest.mark.parametrize("settings", [{"reader_study": True}], indirect=True)
def test_a_study_without_its_draft_is_written_and_signed(page: Page) -> None:
    for name in ("a.dcm", "b.dcm", "c.dcm", "d.dcm"):
        upload(page, name, dicom())
    expect(page.locator("tr[data-state=drafted]")).to_have_count(4, timeout=90_000)
    for name in ("a.dcm", "b.dcm", "c.dcm", "d.dcm"):
        page.get_by_role("link", name=name).click()
        page.locator("#sign p").first.wait_for()
        if page.locator("li.sentence").count() == 0:
            break
        page.goto("/studies")
    expect(page.locator("#warnings")).to_contain_text("read without its draft")
    page.keyboard.press("a")
    page.locator("textarea").fill("The heart is small.")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#draft")).to_contain_text("The heart is small.")
    page.locator("#sign-button").click()
    page.locator("#sign-now").click()
    expect(page.locator("#sign")).to_contain_text("Signed")


def test_the_list_is_filtered_by_body_part_and_days(page: Page) -> None:
    for name, part, day in (("old.dcm", "CHEST", "20240102"), ("new.dcm", "THORAX", "20250304")):
        upload(page, name, dicom(BodyPartExamined=part, StudyDate=day))
    links = page.locator(".study-link")
    expect(links).to_have_count(2)
    page.get_by_label("Body part").fill("thorax")
    expect(links).to_have_text(["new.dcm"])
    page.get_by_label("Body part").fill("")
    expect(links).to_have_count(2)
    page.get_by_label("From").fill("2024-01-02")
    page.get_by_label("to", exact=True).fill("2024-12-31")
    expect(links).to_have_text(["old.dcm"])
    page.reload()
    expect(page.get_by_label("From")).to_have_value("2024-01-02")
    expect(links).to_have_text(["old.dcm"])
