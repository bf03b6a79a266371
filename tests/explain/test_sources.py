"""The table of sources: what each says, what it counts, and nothing of evidence that is of another form."""

from __future__ import annotations

import pytest

from radweave.explain.sources import source_rows


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
