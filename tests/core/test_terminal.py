"""What goes through rich is text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import radweave
from radweave.metrics.tables import TextTable, print_tables

EVIL = "a [bold]b[/] [/c] :warning: d"


def test_a_table_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([TextTable(EVIL, (EVIL, "n"), ((EVIL, "1"),), (EVIL,)), TextTable(EVIL, notes=(EVIL,))])
    assert capsys.readouterr().out.count(EVIL) == 6


def test_rich_reads_markup_nowhere() -> None:
    """Only one file makes consoles, and no column of a bar, nor anything else, turns markup on."""
    root = Path(radweave.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"(?<!plain_)\bConsole\(", text)] == [
        "core/escaping.py"
    ]
    for name, text in sources.items():
        assert not re.search(r"from_markup|markup=True|rich\.markup|rich import print", text), name
        for column in re.findall(r"TextColumn\([^\n]*", text):
            assert "markup=False" in column, name


def test_a_wide_table_comes_in_parts_of_a_hundred_columns_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [f"run_{number}: full 0123abcd" for number in range(7)]
    cells = tuple(f"0.{number}234 [0.100, 0.300]" for number in range(7))
    print_tables([TextTable("Language", ("metric", *runs), (("BLEU_4", *cells), ("CIDEr", *cells)), ("a note",))])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert all(out.count(name) == 1 for name in runs)
    assert all(out.count(cell) == 2 for cell in cells)
    assert out.count("BLEU_4") == out.count("Language (") > 1
    assert out.count("a note") == 1
