"""Thresholds between those of micro and of macro F1, and what stating a class counts."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.drafting.calibration import MACRO, MOST, Balance, RunCalibration, best_threshold, expected_best, rescaled


def studies() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """A frequent class, a rare one that can be ranked, and one of which next to nothing is known."""
    rng = np.random.default_rng(0)
    labels = (rng.random((400, 3)) < np.array([0.4, 0.04, 0.005])).astype(float)
    odds = np.log([0.4, 0.04, 0.005]) + 1.5 * labels + rng.normal(size=(400, 3))
    return 1 / (1 + np.exp(-odds)), labels


def test_a_threshold_lies_between_those_of_both_means_and_a_rare_class_counts_more() -> None:
    said, labels = studies()
    calibrated = np.array([True, True, False])
    found = Balance.fit(said, labels, calibrated)
    pooled = best_threshold(said, labels)[1] / 2
    for k in (0, 1):
        own = expected_best(said[:, k]) / 2
        n = (said >= pooled).sum() + labels.sum()
        of_own = MACRO / (2 * ((said[:, k] >= own).sum() + labels[:, k].sum()))
        fair = (pooled / n + of_own * own) / (1 / n + of_own)
        assert found.thresholds[k] == pytest.approx(max(fair, np.quantile(said[:, k], 1 - MOST * labels[:, k].mean())))
        assert found.weights[k] == pytest.approx(1 + of_own * n)
    assert found.weights[1] > found.weights[0] > 1
    assert (found.thresholds[2], found.weights[2]) == (pooled, 1.0)


def test_no_class_is_stated_of_many_more_studies_than_have_it() -> None:
    said, labels = studies()
    said[:, 1] = 0.5 + said[:, 1] / 2
    found = Balance.fit(said, labels, np.array([True, True, False]))
    assert (said[:, 1] >= found.thresholds[1]).sum() <= MOST * labels[:, 1].sum() + 1


def test_nothing_positive_is_no_fault() -> None:
    found = Balance.fit(np.full((4, 2), 0.1), np.zeros((4, 2)), np.zeros(2, dtype=bool))
    assert found.thresholds.tolist() == [1.0, 1.0]


def test_a_run_s_calibration_has_it_for_findings_and_reads_older_ones_without() -> None:
    said, labels = studies()
    scores = np.log(said / (1 - said))
    calibration = RunCalibration.fit("heads", "val", ["No Finding", "Edema", "Fracture"], scores, labels)
    assert calibration.weights("pooled").tolist() == [1, 1, 1]
    assert calibration.weights("balanced")[0] == 1
    assert calibration.thresholds("balanced")[0] == calibration.classes["No Finding"].threshold
    assert calibration.thresholds("balanced")[1] == calibration.classes["Edema"].balanced
    older = {
        name: one.model_copy(update={"balanced": None, "weight": 1.0}) for name, one in calibration.classes.items()
    }
    plain = calibration.model_copy(update={"classes": older})
    assert plain.thresholds("balanced")[1] == plain.threshold


def test_the_best_f1_that_probabilities_expect_is_what_they_reach_where_they_are_right() -> None:
    """The best that a handful of labels shows lies above it: of many thresholds the luckiest is taken."""
    rng = np.random.default_rng(1)
    said = 1 / (1 + np.exp(-rng.normal(-4.0, 1.5, size=300)))
    shown = np.array([best_threshold(said, (rng.random(300) < said).astype(float))[1] for _ in range(200)])
    many = np.repeat(said, 400)
    reached = best_threshold(many, (rng.random(len(many)) < many).astype(float))[1]
    assert expected_best(said) == pytest.approx(reached, abs=0.01)
    assert shown.mean() > reached + 0.05
    assert expected_best(np.array([1.0, 1.0, 0.0])) == pytest.approx(1.0)


def test_macro_f1_may_count_more_than_it_was_fitted_for() -> None:
    said, labels = studies()
    calibrated = np.array([True, True, False])
    found, pooled = Balance.fit(said, labels, calibrated), best_threshold(said, labels)[1] / 2
    same = rescaled(found.thresholds, found.weights, pooled, 1.0)
    assert same[0] == pytest.approx(found.thresholds)
    assert same[1] == pytest.approx(found.weights)
    micro = rescaled(found.thresholds, found.weights, pooled, 0.0)
    assert micro[0] == pytest.approx(pooled)
    assert micro[1].tolist() == [1, 1, 1]
    n = (said >= pooled).sum() + labels.sum()
    more, weights = rescaled(found.thresholds, found.weights, pooled, 3.0)
    own = expected_best(said[:, 0]) / 2
    of_own = 3 * MACRO / (2 * ((said[:, 0] >= own).sum() + labels[:, 0].sum()))
    assert weights[0] == pytest.approx(1 + of_own * n)
    assert more[0] == pytest.approx((pooled / n + of_own * own) / (1 / n + of_own))
    assert (more[2], weights[2]) == (pooled, 1.0)
