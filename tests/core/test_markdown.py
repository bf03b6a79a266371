"""Text from outside in Markdown pages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radweave.core.escaping import code, escaped


@pytest.mark.parametrize(
    "text", ["iu_xray", "0.1234 [0.100, 0.200]", "-", "p < 0.05", "R2Gen (2020): 3 runs", "-0.5", "12.5 %", "A & B"]
)
def test_names_and_figures_stay_as_they_are(text: str) -> None:
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
def test_what_would_have_an_effect_is_escaped(text: str, expected: str) -> None:
    assert escaped(text) == expected


@given(st.text())
def test_nothing_leaves_a_cell_or_a_line(text: str) -> None:
    for shown in (escaped(text), code(text)):
        assert shown.isprintable()
        assert not re.search(r"(?<!\\)(\\\\)*\|", shown)


def test_code_is_told_as_it_is() -> None:
    assert code("tokenizer/a_b.json") == "`tokenizer/a_b.json`"
    assert code("a`b|<i>") == "<code>a&#96;b&#124;&#60;i&#62;</code>"
