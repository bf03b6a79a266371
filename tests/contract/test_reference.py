"""The page that names every field: it says what the records say."""

from __future__ import annotations

import re

import pytest
from pydantic import Field

from radweave.core.config import Config, Width, Widths
from radweave.methods import load_method, method_names
from radweave.methods.experiment import Experiment, ModelConfig
from radweave.methods.reference import all_fields, reference
from tests.command_line import radweave


@pytest.fixture(scope="module")
def page() -> str:
    return all_fields()


def test_every_link_leads_to_a_heading(page: str) -> None:
    titles = re.findall(r"^#{2,3} (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert links <= anchors
    assert len(links) > 50


def test_records_stand_once_under_their_heading(page: str) -> None:
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings[:7] == [
        "Data", "Vision encoders", "Text encoders", "Language models", "Parts that methods share", "Stages", "Decoding",
    ]  # fmt: skip
    assert headings[7:] == [f"Method {name}" for name in sorted(method_names())]
    records = re.findall(r"^### .*?(\w+Config|\w+Stages|\w+Experiment)\)?$", page, re.MULTILINE)
    shared = {"NoRetrievalConfig", "NoDifferenceConfig"}
    assert {name for name in records if records.count(name) > 1} <= shared


def test_every_field_of_every_preset_is_in_the_reference(page: str) -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    for method in method_names():
        for make in load_method(method).PRESETS.values():
            fields = set(make().model.__class__.model_fields)
            assert fields <= named, method


class _Inner(Config):
    """Takes ``widths``.

    They are <b>bounded</b>.
    """

    widths: Widths = (4, 8)
    width: Width | None = None
    rate: float = Field(default=0.1, gt=0, lt=1)
    share: float = Field(default=0.5, ge=0, le=1)
    below: int = Field(default=-3, le=0)
    compared: float = Field(default=-0.5, ge=-1, lt=0)


class _Model(ModelConfig):
    """Parts."""

    inner: _Inner = _Inner()

    def build(self, context: object) -> None:  # type: ignore[override]
        raise AssertionError


class _Tried(Experiment):
    """An experiment."""

    model: _Model = _Model()


def test_a_field_says_its_bounds_its_default_and_its_component() -> None:
    page = reference({"tried": [_Tried]})
    assert "| `inner` | [_Inner](#_inner) | [_Inner](#_inner) |" in page
    assert "| `widths` | list from 1 to 16 items: integer, from 1 to 65,536 | `[4, 8]` |" in page
    assert "| `width` | integer, from 1 to 65,536 or null | `null` |" in page
    assert "| `rate` | number, above 0 below 1 | `0.1` |" in page
    assert "| `share` | number, from 0 to 1 | `0.5` |" in page
    assert "| `below` | integer, to 0 | `-3` |" in page
    assert "| `compared` | number, from -1 below 0 | `-0.5` |" in page
    assert "Takes `widths`.\n\nThey are \\<b>bounded\\</b>." in page


def test_the_page_is_about_all_methods() -> None:
    done = radweave("config", "dast", "--reference")
    assert done.returncode == 2
    assert "--reference" in done.stderr
    assert radweave("config").returncode == 2
