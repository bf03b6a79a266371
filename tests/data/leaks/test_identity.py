"""Comparable forms of patient ids: equal for one patient, different for two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radweave.data.leaks.identity import comparable_id


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("P7", "p7"),
        (" p7\t", "p7"),
        ("p007", "p7"),
        ("0p7", "p7"),
        ("000", "0"),
        ("\u0420\u0410-1", "PA-1"),  # Cyrillic capitals
        ("\u0391\u039d1", "an1"),  # Greek capitals, of which the second looks like another letter when small
        ("p\u20137", "p-7"),
        ("p\u200d7", "p7"),
        ("\uff2b\uff11", "k1"),
    ],
)
def test_ids_that_differ_in_writing_alone_are_equal(first: str, second: str) -> None:
    assert comparable_id(first) == comparable_id(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [("p1", "p10"), ("p10", "p100"), ("1_01", "10_1"), ("p1-2", "p12"), ("a b", "ab"), ("0", ""), ("pO1", "p01")],
)
def test_ids_of_different_patients_differ(first: str, second: str) -> None:
    assert comparable_id(first) != comparable_id(second)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_numbers_are_compared_as_numbers(first: int, second: int) -> None:
    assert (comparable_id(f"p{first:013d}") == comparable_id(f"P{second}")) == (first == second)


@given(st.text(max_size=20))
def test_any_text_has_a_comparable_form_and_it_is_its_own(text: str) -> None:
    assert comparable_id(comparable_id(text)) == comparable_id(text)
