"""Probabilities that hold what they say."""

from __future__ import annotations

import numpy as np

from radweave.drafting.calibration import PlattCalibration, best_threshold, f1_threshold
from radweave.metrics.heads import expected_calibration_error, reliability


def test_scores_become_probabilities_that_hold() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 2, (20_000, 2))
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    # The scores are the true logits, bent by a line of their own for each class.
    scores = logits * [0.2, 5.0] + [3.0, -7.0]
    said = PlattCalibration.fit(scores, labels)(scores)
    # 0.02: the share of 2,000 studies has a standard error of at most 0.011.
    assert all(expected_calibration_error(said[:, k], labels[:, k]) < 0.02 for k in range(2))
    assert expected_calibration_error(1 / (1 + np.exp(-scores[:, 0])), labels[:, 0]) > 0.1


def test_a_class_that_was_hardly_seen_gets_its_frequency() -> None:
    labels = np.zeros((50, 2))
    labels[0, 0] = 1
    said = PlattCalibration.fit(np.random.default_rng(1).normal(size=(50, 2)), labels)(np.array([[9.0, 9.0]]))
    np.testing.assert_allclose(said, [[1.5 / 51, 0.5 / 51]])


def test_a_score_that_runs_the_wrong_way_says_nothing() -> None:
    labels = np.tile([[1.0], [0.0]], (20, 1))
    calibration = PlattCalibration.fit(-labels, labels)
    assert calibration.slope.tolist() == [0.0]
    np.testing.assert_allclose(calibration(np.array([[5.0]])), 0.5)


def held_out(rng: np.random.Generator, slope: float, offset: float) -> tuple[float, float]:
    """What curves of 120 studies say of 5,000 others, in nats: each class for itself, and drawn together."""
    logits = rng.normal(-2.5, 1, (5120, 10))
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    scores = (logits - offset) / slope

    def loss(calibration: PlattCalibration) -> float:
        said = calibration(scores[120:])
        return float(-np.mean(np.where(labels[120:] > 0, np.log(said), np.log1p(-said))))

    own, together = PlattCalibration.fit, PlattCalibration.of_log_odds
    return loss(own(scores[:120], labels[:120])), loss(together(scores[:120], labels[:120]))


def test_curves_of_few_studies_hold_better_where_they_are_drawn_together() -> None:
    # Heads as they should be, and heads that are all twice as sure and shifted: nothing is taken for granted of them.
    for slope, offset in ((1.0, 0.0), (0.5, -1.0)):
        losses = np.array([held_out(np.random.default_rng(seed), slope, offset) for seed in range(4)])
        assert (losses[:, 1] < losses[:, 0]).all()


def test_many_studies_of_a_class_outweigh_the_others() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(-1, 2, (20_000, 3))
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    scores = logits * [1.0, 1.0, 0.5] + [0.0, 0.0, 1.0]
    found = PlattCalibration.of_log_odds(scores, labels)
    np.testing.assert_allclose(found.slope, [1, 1, 2], atol=0.1)
    np.testing.assert_allclose(found.offset, [0, 0, -2], atol=0.1)


def test_without_a_class_to_be_drawn_to_each_gets_its_frequency() -> None:
    labels = np.zeros((50, 2))
    labels[0, 0] = 1
    calibration = PlattCalibration.of_log_odds(np.random.default_rng(1).normal(size=(50, 2)), labels)
    np.testing.assert_allclose(calibration(np.array([[9.0, 9.0]])), [[1.5 / 51, 0.5 / 51]])


def test_bins_count_every_case_once_and_ties_stay_together() -> None:
    said = np.array([0.1] * 6 + [0.3, 0.4, 0.8, 0.9])
    bins = reliability(said, (said > 0.35).astype(float), num_bins=5)
    assert sum(one.count for one in bins) == 10
    assert bins[0].count >= 6
    assert bins[0].frequency == 0
    assert bins[-1].frequency == 1
    assert reliability(np.array([]), np.array([])) == []


def test_the_best_threshold_is_found_among_all() -> None:
    said = np.array([[0.9, 0.2], [0.7, 0.7], [0.1, 0.4]])
    labels = np.array([[1, 0], [1, 0], [0, 1]])
    threshold, score = best_threshold(said, labels)

    def f1(cut: float) -> float:
        asserted = said >= cut
        return float(2 * (asserted & (labels > 0)).sum() / (asserted.sum() + labels.sum()))

    assert score == max(f1(cut) for cut in said.ravel()) == f1(threshold)
    assert best_threshold(said, np.zeros_like(labels)) == (1.0, 0.0)


def test_the_targets_of_a_rare_class_are_smoothed_by_the_number_of_its_own_side() -> None:
    """Platt's targets: (P + 1) / (P + 2) and 1 / (N + 2). At the optimum the probabilities have their mean."""
    labels = np.repeat([1.0, 0.0], [6, 30])[:, None]
    scores = np.random.default_rng(2).normal(size=(36, 1)) + labels
    said = PlattCalibration.fit(scores, labels)(scores)
    # 1e-4: what the search for the optimum leaves.
    assert abs(said.mean() - (6 * 7 / 8 + 30 / 32) / 36) < 1e-4


def test_a_class_that_was_hardly_seen_draws_no_other_to_itself() -> None:
    rng = np.random.default_rng(3)
    labels = (rng.random((60, 3)) < [0.5, 0.3, 0.0]).astype(float)
    labels[0, 2] = 1
    scores = rng.normal(size=(60, 3)) + labels
    scores[:, 2] -= 40
    two, three = (PlattCalibration.of_log_odds(scores[:, :count], labels[:, :count]) for count in (2, 3))
    np.testing.assert_array_equal(three.slope[:2], two.slope)
    np.testing.assert_array_equal(three.offset[:2], two.offset)


def test_asserting_pays_off_from_half_of_the_best_f1_and_never_where_nothing_is_positive() -> None:
    said, labels = np.array([0.9, 0.6, 0.4, 0.1]), np.array([1.0, 0.0, 1.0, 0.0])
    assert best_threshold(said, labels) == (0.4, 0.8)
    assert f1_threshold(said, labels) == 0.4
    assert f1_threshold(said, np.zeros(4)) == 1.0
