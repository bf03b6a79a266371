"""Untrusted text in Markdown and on the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import radweave
from radweave.core.escaping import code, escaped
from radweave.metrics.tables import TextTable, print_tables


@pytest.mark.parametrize(
    "text", ["iu_xray", "0.1234 [0.100, 0.200]", "-", "p < 0.05", "R2Gen (2020): 3 runs", "-0.5", "12.5 %", "A & B"]
)
def test_names_and_figures_are_not_escaped(text: str) -> None:
    assert escaped(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[x](http://a.b)", r"[x]\(http:\//a.b)"),
        ("![x][y]", r"![x]\[y]"),
        ("[x]: y", r"[x]\: y"),
        ("<script>", r"\<script>"),
        ("</td>", r"\</td>"),
        ("&lt;", r"\&lt;"),
        ("a|b", r"a\|b"),
        ("**bold** _it_", r"\*\*bold\*\* \_it\_"),
        ("`code`", r"\`code\`"),
        ("www.a.b", r"www\.a.b"),
        ("a\n\n# b", "a # b"),
        ("# b", r"\# b"),
        ("> b", r"\> b"),
        ("1. b", r"1\. b"),
        ("- b", r"\- b"),
        ("---", r"\---"),
        ("a\x1b[31mb", r"a\\x1b[31mb"),
        ("a\\|b", r"a\\\|b"),
    ],
)
def test_markdown_syntax_is_escaped(text: str, expected: str) -> None:
    assert escaped(text) == expected


@given(st.text())
def test_any_text_stays_in_its_cell_and_line(text: str) -> None:
    for shown in (escaped(text), code(text)):
        assert shown.isprintable()
        assert not re.search(r"(?<!\\)(\\\\)*\|", shown)


def test_inline_code() -> None:
    assert code("tokenizer/a_b.json") == "`tokenizer/a_b.json`"
    assert code("a`b|<i>") == "<code>a&#96;b&#124;&#60;i&#62;</code>"


EVIL = "a [bold]b[/] [/c] :warning: d"


def test_a_table_prints_names_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([TextTable(EVIL, (EVIL, "n"), ((EVIL, "1"),), (EVIL,)), TextTable(EVIL, notes=(EVIL,))])
    assert capsys.readouterr().out.count(EVIL) == 6


def test_no_module_enables_markup_of_rich() -> None:
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


def test_a_wide_table_is_split_into_parts_of_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [f"run_{number}: full 0123abcd" for number in range(7)]
    cells = tuple(f"0.{number}234 [0.100, 0.300]" for number in range(7))
    print_tables([TextTable("Language", ("metric", *runs), (("BLEU_4", *cells), ("CIDEr", *cells)), ("a note",))])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert all(out.count(name) == 1 for name in runs)
    assert all(out.count(cell) == 2 for cell in cells)
    assert out.count("BLEU_4") == out.count("Language (") > 1
    assert out.count("a note") == 1
