"""What the methods' pages say of the code: names in it, tests, and which presets have which stage."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from radweave.methods import load_method

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))


@cache
def names_in(folder: str) -> frozenset[str]:
    """Functions, classes and constants."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))
    result = (re.findall(r"\b(?:def|class) (\w+)|^([A-Z_]+)\b", text, re.MULTILINE) for text in texts)
    return frozenset(name for names in result for pair in names for name in pair if name)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_names_on_the_page_are_in_the_code(page: Path) -> None:
    """``file.py: Name, Class.method`` and ``test_...``; a test's name may end in dots."""
    code, tests = names_in("src"), names_in("tests")
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for quoted in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        for name in re.findall(r"\btest_\w+", quoted):
            assert name in files or any(test.startswith(name) for test in tests), quoted
        place = re.fullmatch(r"([\w/]+\.py)(?:: (.+))?", quoted)
        if place and "test_" not in quoted:
            folders = [ROOT, ROOT / "src", ROOT / "src" / "radweave", ROOT / "src" / "radweave" / "methods" / page.stem]
            assert any((folder / place[1]).is_file() for folder in folders), quoted
            assert code.issuperset(re.findall(r"\w+", place[2] or "")), quoted
        for parts in re.findall(r"^([A-Z]\w+)\.(\w+)$", quoted):
            assert code.issuperset(parts), quoted


STAGE_TABLE = re.compile(r"^\| Stage \| .*\| Presets \|\n.*\n((?:\|.*\n)+)", re.MULTILINE)
WITH_STAGES = [page for page in PAGES if STAGE_TABLE.search(page.read_text(encoding="utf-8"))]


def test_pages_have_tables_of_stages() -> None:
    assert len(WITH_STAGES) >= 4


@pytest.mark.parametrize("page", WITH_STAGES, ids=lambda path: path.stem)
def test_stages_are_those_of_the_presets(page: Path) -> None:
    table = STAGE_TABLE.search(page.read_text(encoding="utf-8"))
    assert table is not None
    presets = {name: make().named_stages() for name, make in load_method(page.stem).PRESETS.items()}
    stated = {}
    for line in table[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        here = cells[-1].split(";")[0]
        stated[cells[0].strip("`")] = set(presets) if here == "all" else set(re.findall(r"`([^`]+)`", here))
    trained = {
        stage: {name for name, stages in presets.items() if stage in stages and stages[stage].epochs}
        for stage in {stage for stages in presets.values() for stage in stages}
    }
    assert stated == {stage: names for stage, names in trained.items() if names}
