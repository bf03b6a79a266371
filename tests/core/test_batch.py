"""Slices of a batch: their weights are shares of the whole."""

from __future__ import annotations

import pytest

from radweave.core.batch import Slice


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_weights_of_all_slices_sum_to_one_however_few_studies_there_are(size: int) -> None:
    for total in range(1, 12):
        slices = [Slice.of(total, rank, size) for rank in range(size)]
        assert sum(part.weight(size) for part in slices) == pytest.approx(1), total
        assert all(part.is_cut == (size > 1 and total >= size) for part in slices)
