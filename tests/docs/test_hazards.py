"""Each hazard of docs/hospital.md names what stands against it, and tests that there are."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.toys import ROOT

TABLE = (ROOT / "docs/hospital.md").read_text("utf-8").split("| hazard |", 1)[1].split("\n\n", 1)[0]
HAZARDS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines()[2:]]


@cache
def known() -> frozenset[str]:
    """Names of all tests, and of the files that hold some."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    tests = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.M)}
    return frozenset(tests | {file.name for file in files})


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda row: row[0])
def test_every_hazard_names_existing_tests(hazard: list[str]) -> None:
    what, against, tests = hazard
    assert what
    assert against
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    assert set(named) <= known()


def test_the_table_is_read() -> None:
    assert len(HAZARDS) > 15
    assert "test_nothing_of_the_kind" not in known()
