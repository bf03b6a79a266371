"""The page of what the papers leave open against the presets, and the methods' pages that link to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radweave.methods import resolve

PAGES = Path(__file__).parents[2] / "docs" / "methods"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (PAGES / "open_choices.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("|")
]
METHODS = ROWS[0][2:]
ABSENT = "–"


def shown(experiment: dict[str, Any], path: str) -> str:
    """A field as the page prints it; a dash for a stage that is not there or is passed over."""
    value: Any = experiment
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value or value.get("epochs") == 0:
            return ABSENT
        value = value[key]
    if isinstance(value, dict):
        return ", ".join(f"{name} {weight:g}" for name, weight in value.items())
    if isinstance(value, list):
        return ", ".join(f"{item:g}" for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:g}"


@pytest.mark.parametrize("method", METHODS)
def test_values_are_those_of_the_preset(method: str) -> None:
    experiment = resolve(method, "paper", ()).model_dump(mode="json")
    column = 2 + METHODS.index(method)
    page = {row[0].strip("`"): row[column].rstrip("*") for row in ROWS[2:]}
    assert {path: shown(experiment, path) for path in page} == page


def test_the_page_names_every_method_with_a_paper_and_all_link_to_it() -> None:
    assert len(METHODS) == 6
    assert len({row[0] for row in ROWS[2:]}) == len(ROWS) - 2
    for method in METHODS:
        assert "(open_choices.md)" in (PAGES / f"{method}.md").read_text(encoding="utf-8"), method
