"""What a route lets through: an image by what it says, and a series that may hold such an image."""

from __future__ import annotations

import pytest

from radweave.core.study import View
from radweave.workstation.hospital_plan import Route, may_hold

ALL = Route()
CHEST = Route(body_part=("CHEST", "THORAX"))
SILENT = Route(body_part=("CHEST", ""))
NOTHING = Route(body_part=())


@pytest.mark.parametrize(
    ("routes", "body_part", "may"),
    [
        ((ALL,), "CHEST", True),
        ((ALL,), "FOOT", True),
        ((CHEST,), "THORAX", True),
        ((CHEST,), "FOOT", False),
        # A series that does not say may hold anything: its images decide.
        ((CHEST,), "", True),
        ((SILENT,), "FOOT", False),
        ((NOTHING,), "CHEST", False),
        ((CHEST, ALL), "FOOT", True),
        ((CHEST, NOTHING), "FOOT", False),
    ],
)
def test_a_series_may_match_one_of_the_routes(routes: tuple[Route, ...], body_part: str, may: bool) -> None:
    assert may_hold(routes, body_part) is may
    assert may_hold(routes[::-1], body_part) is may


@pytest.mark.parametrize(
    ("route", "image", "fits"),
    [
        (ALL, ("CR", "FOOT", "unknown"), True),
        (CHEST, ("CR", "CHEST", "unknown"), True),
        (CHEST, ("CR", "", "unknown"), False),
        (SILENT, ("CR", "", "unknown"), True),
        (NOTHING, ("CR", "CHEST", "unknown"), False),
        (Route(modality=("DX",)), ("CR", "CHEST", "unknown"), False),
        (Route(modality=("DX",)), ("DX", "FOOT", "unknown"), True),
        (Route(view=(View.PA,)), ("CR", "CHEST", View.PA), True),
        (Route(view=(View.PA,)), ("CR", "CHEST", View.LATERAL), False),
        (Route(modality=("CR",), body_part=("CHEST",), view=(View.PA,)), ("CR", "FOOT", View.PA), False),
    ],
)
def test_a_route_accepts_an_image_that_matches_all_its_lists(
    route: Route, image: tuple[str, str, str], fits: bool
) -> None:
    assert route.fits(*image) is fits
