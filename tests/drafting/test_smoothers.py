"""Smoothers: leaving out by weights is leaving out by fitting again."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.drafting.smoothers import (
    WORDING,
    EmbeddedStudies,
    Smoothers,
    exclude_rows,
    squared_distances,
    typical,
    weights_of,
)

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(12, 3))
LABELS = (POINTS[:, :2] > 0).astype(float)
DISTANCE = squared_distances(POINTS, POINTS)


def test_leaving_out_a_row_is_fitting_without_it() -> None:
    """For the smoother without its mean term, which the shift to a sum of 1 approximates."""
    row, others = 4, np.arange(12) != 4
    inverse = WORDING.inverse(DISTANCE)
    raw = WORDING(DISTANCE[row]) @ inverse
    left = np.where(others, raw, 0) / (1 - raw[row])
    repeated = WORDING(DISTANCE[row, others]) @ WORDING.inverse(DISTANCE[np.ix_(others, others)])
    assert left[others] == pytest.approx(repeated)


def test_weights_sum_to_one_with_and_without_barred_rows() -> None:
    weights = weights_of(WORDING, WORDING.inverse(DISTANCE), DISTANCE[0])
    assert weights.sum() == pytest.approx(1)
    barred = np.arange(12) < 3
    left = exclude_rows(weights, barred)
    assert left.sum() == pytest.approx(1)
    assert not left[barred].any()
    assert not exclude_rows(weights, np.ones(12, dtype=bool)).any(), "nothing is left that could speak"


def test_near_studies_raise_the_scores_of_their_findings() -> None:
    smoothers = Smoothers.fit(DISTANCE / typical(DISTANCE), DISTANCE / typical(DISTANCE), LABELS)
    distance = squared_distances(POINTS[:1] + 0.01, POINTS)[0] / typical(DISTANCE)
    evidence = smoothers.evidence_for(distance, distance, np.zeros(12, dtype=bool))
    assert (evidence.scores > 0.5).tolist() == (LABELS[0] > 0).tolist()
    assert int(evidence.weights.argmax()) == 0


def test_one_training_study_is_enough() -> None:
    only = EmbeddedStudies.fit(POINTS[:1], LABELS[:1])
    evidence = only.evidence_for(POINTS[1], np.zeros(1, dtype=bool))
    assert evidence.weights == pytest.approx([1.0])
    assert evidence.scores == pytest.approx(LABELS[0])


def test_barred_studies_have_no_weight() -> None:
    distance, barred = DISTANCE / typical(DISTANCE), np.arange(12) < 2
    flipped = np.where(barred[:, None], 1 - LABELS, LABELS)
    one, other = (Smoothers.fit(distance, distance, labels) for labels in (LABELS, flipped))
    evidence = one.evidence_for(distance[0], distance[0], barred)
    assert evidence.scores == pytest.approx(other.evidence_for(distance[0], distance[0], barred).scores)
    assert not evidence.weights[barred].any()
    assert evidence.weights.sum() == pytest.approx(1)
