"""Fingers and pen on a radiograph, as the browser's own input gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, CDPSession, Page

from tests.workstation.browser.steps import open_study

Place = tuple[float, float]


@pytest.fixture
def touched(station: tuple[str, str], watched: Callable[..., BrowserContext]) -> tuple[Page, CDPSession]:
    """A study on a device with a touch screen."""
    origin, token = station
    context = watched(origin, has_touch=True)
    page = context.new_page()
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")
    open_study(page)
    page.locator(".rv-film[data-center]").wait_for()
    page.wait_for_load_state("networkidle")
    page.locator(".rv-film").scroll_into_view_if_needed()
    return page, context.new_cdp_session(page)


def facts(page: Page) -> dict[str, float]:
    result: dict[str, Any] = page.evaluate(
        """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>
             done({...document.querySelector(".rv-film").dataset}))))"""
    )
    return {name: float(result[name]) for name in ("center", "width", "scale", "left", "top")}


def swipe(page: Page, input_: CDPSession, *paths: tuple[Place, Place]) -> None:
    """Fingers that go down together, each from one place of the image to another one in five steps, and up."""
    box = page.locator(".rv-film").bounding_box()
    assert box is not None

    def send(kind: str, share: float) -> None:
        points = [
            {"x": box["x"] + x + share * (to_x - x), "y": box["y"] + y + share * (to_y - y), "id": number}
            for number, ((x, y), (to_x, to_y)) in enumerate(paths)
        ]
        input_.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [] if kind == "touchEnd" else points})

    send("touchStart", 0)
    for step in range(1, 6):
        send("touchMove", step / 5)
    send("touchEnd", 1)


def test_one_finger_changes_the_window_two_move_and_enlarge(touched: tuple[Page, CDPSession]) -> None:
    page, fingers = touched
    first = facts(page)
    swipe(page, fingers, ((100, 100), (160, 140)))
    windowed = facts(page)
    assert windowed["center"] > first["center"]
    assert windowed["width"] > first["width"]
    assert [windowed[name] for name in ("scale", "left", "top")] == [first[name] for name in ("scale", "left", "top")]
    swipe(page, fingers, ((100, 100), (130, 150)), ((200, 100), (230, 150)))
    moved = facts(page)
    assert moved["left"] > windowed["left"] + 15
    assert moved["top"] > windowed["top"] + 25
    assert moved["scale"] == pytest.approx(windowed["scale"], rel=0.1)
    swipe(page, fingers, ((120, 150), (80, 150)), ((180, 150), (220, 150)))
    pinched = facts(page)
    assert pinched["scale"] > 1.3 * moved["scale"]
    assert [pinched[name] for name in ("center", "width")] == [windowed[name] for name in ("center", "width")]


def test_a_tap_and_a_finger_that_is_left_over_change_nothing(touched: tuple[Page, CDPSession]) -> None:
    page, fingers = touched
    first = facts(page)
    swipe(page, fingers, ((100, 100), (103, 102)))
    assert facts(page) == first
    box = page.locator(".rv-film").bounding_box()
    assert box is not None

    def send(kind: str, *points: tuple[int, float, float]) -> None:
        placed = [{"id": number, "x": box["x"] + x, "y": box["y"] + y} for number, x, y in points]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": placed})

    send("touchStart", (0, 100, 100))
    send("touchStart", (0, 100, 100), (1, 200, 100))
    send("touchEnd", (0, 100, 100))
    send("touchMove", (0, 180, 180))
    send("touchEnd")
    assert facts(page) == first


def test_a_pen_does_what_the_mouse_does(touched: tuple[Page, CDPSession]) -> None:
    page, pen = touched
    first = facts(page)
    box = page.locator(".rv-film").bounding_box()
    assert box is not None

    def send(kind: str, x: float, y: float) -> None:
        pressed = {"button": "left", "buttons": 1, "clickCount": 1, "pointerType": "pen"}
        pen.send("Input.dispatchMouseEvent", {"type": kind, "x": box["x"] + x, "y": box["y"] + y, **pressed})

    send("mousePressed", 100, 100)
    send("mouseMoved", 160, 140)
    send("mouseReleased", 160, 140)
    after = facts(page)
    assert after["center"] > first["center"]
    assert after["left"] == first["left"]
