"""Scores of the pages written by hand, against the page that ``radweave bench`` writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETS = {"xray": "Phantom radiographs", "ct": "Phantom CT", "iu": "IU X-Ray"}
PAGES = ("README.md", "docs/results/README.md")
OTHER_NAMES = {
    "baseline and kernels together": "baseline and kernels",
    "baseline, three encoders": "baseline with 3 encoders",
    "baseline, five encoders": "baseline with 5 encoders",
    "nearest image": "nearest training image",
    "nearest scan": "nearest training image",
    "the same without weave": "best method without weave, told no prior, else the prior's report",
    '"opacity" for everyone': "constant report, best for findings",
    "constant report": "constant report, best for findings",
    "best constant wording": "constant report, best for wording",
}
CHANGES = ("new R", "resolved R", "changed F1")
COLUMNS = {
    "macro F1": "macro F1",
    "CIDEr": "CIDEr",
    "BLEU-4": "BLEU-4",
    "new found": "new R",
    "resolved dropped": "resolved R",
    "changed F1": "changed F1",
}
"""Column of the page of results -> of the benchmark; of the drafts that its last column of findings F1 is of."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table_below(text: str, heading: str) -> list[list[str]]:
    """The first table below a heading, with its header and without the line under it."""
    lines = text[text.index(heading) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return [rows[0], *rows[2:]]


def benchmark(name: str, column: str = "findings F1") -> dict[str, str]:
    """A column of each row of a set, as printed; of changes none where the set was made before their table."""
    text = (ROOT / "docs/results/benchmark.md").read_text()
    title = f"### Change from the prior: {SETS[name][0].lower()}{SETS[name][1:]}" if column in CHANGES else ""
    if title not in text:
        return {}
    header, *rows = table_below(text, title or f"### {SETS[name]}")
    return {row[0]: row[header.index(column)] for row in rows}


def plain(name: str) -> str:
    """A row's name without its link, emphasis and what stands in brackets."""
    name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", name).replace("*", "")
    name = re.sub(r"\s*\((no network|heads and smoothers|R2GenGPT)\)", "", name)
    return OTHER_NAMES.get(name, name.replace("else a copy of", "else"))


def row_of(rows: dict[str, str], method: str, column: str) -> str | None:
    """The row of the benchmark that a cell of a page shows; None where the benchmark has no such row."""
    told, own = "told the prior" in column, "own decoder" in column
    of_told = (f"{method}, by utility, told the prior", f"{method}, told the prior", method)
    of_untold = (f"{method}, by utility", f"{method}, told no prior", method)
    of_own = (f"{method}, own decoder", method)
    found = of_own if own else of_told if told else of_untold
    return next((name for each in found for name in (each, f"floor: {each}") if name in rows), None)


def numbers(cell: str) -> list[str]:
    """Mean, and the interval where one is printed, with three decimals and without a leading zero."""
    mean = re.match(r"-?\d*\.\d+|0(?![.\d])", cell)
    interval = re.search(r"\[(-?\d*\.\d+), (-?\d*\.\d+)\]", cell)
    printed = [] if mean is None else [mean[0], *(interval.groups() if interval else ())]
    return [f"{float(number):.3f}" for number in printed]


def figures(page: str) -> list[tuple[str, str, str, str]]:
    """(set, method, column, cell) of every cell of findings F1 on a page."""
    text = (ROOT / page).read_text()
    found = []
    tables = [("", "## Methods")] if page == "README.md" else [(name, f"## {SETS[name]}") for name in SETS]
    for name, heading in tables:
        header, *rows = table_below(text, heading)
        for number, column in enumerate(header):
            if "own decoder" in column or "by utility" in column:
                of = name or ("iu" if column.startswith("IU") else "xray")
                found += [(of, plain(row[0]), column, row[number]) for row in rows if row[number]]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_findings_f1_of_a_page_is_that_of_the_benchmark(page: str) -> None:
    wrong, checked = [], 0
    for name, method, column, cell in figures(page):
        rows = benchmark(name)
        row = row_of(rows, method, column)
        if "given to other studies" in method:
            continue
        assert row is not None, f"{name}: no row for {method}"
        expected, got = numbers(rows[row]), numbers(cell)
        checked += 1
        if not got or got != expected[: len(got)]:
            wrong.append(f"{name}: {method}, {column}: {cell} on {page}, {rows[row]} in the benchmark ({row})")
    assert checked > 20
    assert wrong == []


@pytest.mark.parametrize("name", SETS)
def test_other_scores_of_the_page_of_results_are_those_of_the_benchmark(name: str) -> None:
    header, *rows = table_below((ROOT / "docs/results/README.md").read_text(), f"## {SETS[name]}")
    drafts = [column for column in header if "by utility" in column][-1]
    wrong, checked = [], 0
    for column in header:
        for row in rows:
            method, cell = plain(row[0]), row[header.index(column)]
            if column not in COLUMNS or not cell or "given to other studies" in method:
                continue
            known = benchmark(name, COLUMNS[column])
            label = row_of(known, method, drafts)
            if label is None and COLUMNS[column] in CHANGES:
                assert cell == "0" or not known, f"{method}: a copy names no change"
                continue
            assert label is not None, f"no row for {method}"
            checked += 1
            assert numbers(cell), f"no number: {cell}"
            if numbers(cell) != numbers(known[label])[:1]:
                wrong.append(f"{method}, {column}: {cell}, {known[label]} in the benchmark ({label})")
    assert checked > 20
    assert wrong == []
