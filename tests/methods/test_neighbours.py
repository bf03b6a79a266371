"""Studies that look alike: what is said of a training study is said by others than its patient."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.methods.descriptors import DescriptorsConfig
from radweave.methods.neighbours import FittedNeighbours, fit_neighbours
from tests.made_view import made_view

PATIENTS = ("p0", "p0", "p1", "p2", "p3", "p4")
STATES = ((1, 2), (2, 2), (1, 1), (2, 1), (2, 2), (1, 2))


def fitted(states: tuple[tuple[int, int], ...] = STATES) -> FittedNeighbours:
    return fit_neighbours(DescriptorsConfig(aligned=False).build(), made_view(PATIENTS, states))


def test_a_training_study_is_scored_without_studies_of_its_patient() -> None:
    before, after = fitted(), fitted((STATES[0], (1, 1), *STATES[2:]))
    assert not before.left_out[0].weights[:2].any()
    assert before.left_out[0].weights.sum() == pytest.approx(1)
    assert np.array_equal(before.left_out[0].scores, after.left_out[0].scores), "the other study is the patient's own"
    assert not np.allclose(before.left_out[2].scores, after.left_out[2].scores), "to strangers it speaks"


def test_the_bank_has_each_study_in_the_order_of_its_row() -> None:
    result = fitted()
    assert [row["study_id"] for row in result.rows] == [f"s{row}" for row in range(6)]
    assert result.tensors["labels"].tolist() == [[int(state == 1) for state in states] for states in STATES]
    assert result.tensors["present"].tolist() == [[1, 0]] * 6
