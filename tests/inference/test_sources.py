"""The table of sources: what each says, what it counts, and nothing of evidence that is of another form."""

from __future__ import annotations

import pytest

from radweave.inference.explain.support import added_cells, change_rows, source_rows
from radweave.labels.comparisons import STATES


def test_a_row_for_each_class_and_a_cell_for_each_source() -> None:
    one, other = {"probability": 0.125, "weight": 0.5}, {"probability": 1, "weight": 0}
    said = {"Edema": {"kernels": one}, "Mass": {"dense": other}}
    names, rows = source_rows({"sources": said})
    assert names == ["kernels", "dense"]
    assert rows == [("Edema", ["12 % x 0.50", ""]), ("Mass", ["", "100 % x 0.00"])]


@pytest.mark.parametrize("evidence", [{}, {"sources": ["a"]}, {"sources": {"Edema": 0.5}}, {"sources": None}])
def test_other_evidence_has_no_table(evidence: dict[str, object]) -> None:
    assert source_rows(evidence) == ([], [])


def test_a_broken_cell_is_empty() -> None:
    assert source_rows({"sources": {"Edema": {"dense": {"probability": "x"}}}})[1] == [("Edema", [""])]


def test_what_a_source_adds_is_the_difference_and_nothing_where_it_is_not_known() -> None:
    figures = {"together": 0.26, "together_without": 0.25, "by_class": None, "by_class_without": None}
    assert added_cells(["kernels", "dense"], {"kernels": figures}) == ["+0.010 all", ""]
    assert added_cells(["dense"], {}) == []


def test_a_row_for_each_class_that_was_compared_and_none_without_a_prior() -> None:
    states = dict.fromkeys(STATES, 0.0) | {"worse": 0.75, "unchanged": 0.25}
    assert change_rows({"changes": {"Edema": {"before": "affirmed", **states}}}) == [
        ("Edema", ["affirmed", "0 %", "0 %", "75 %", "25 %", "0 %", "0 %"])
    ]
    for other in ({}, {"changes": None}, {"changes": {"Edema": 0.5}}):
        assert change_rows(other) == []
