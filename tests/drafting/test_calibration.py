"""Calibration: probabilities, thresholds, weights of classes, and its file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.drafting.calibration import (
    FILE,
    MACRO,
    MOST,
    Balance,
    PlattCalibration,
    RunCalibration,
    best_threshold,
    expected_best,
    f1_threshold,
    load_calibration,
    rescaled,
    save_calibration,
    stated_log_odds,
)
from radweave.metrics.heads import expected_calibration_error
from radweave.metrics.statistics import reliability, wilson_interval


def test_scores_become_calibrated_probabilities() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 2, (20_000, 2))
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    # The scores are the true logits, bent by a line of their own for each class.
    scores = logits * [0.2, 5.0] + [3.0, -7.0]
    probabilities = PlattCalibration.fit(scores, labels)(scores)
    # 0.02: the share of 2,000 studies has a standard error of at most 0.011.
    assert all(expected_calibration_error(probabilities[:, k], labels[:, k]) < 0.02 for k in range(2))
    assert expected_calibration_error(1 / (1 + np.exp(-scores[:, 0])), labels[:, 0]) > 0.1


def test_a_rare_class_gets_its_frequency() -> None:
    labels = np.zeros((50, 2))
    labels[0, 0] = 1
    probabilities = PlattCalibration.fit(np.random.default_rng(1).normal(size=(50, 2)), labels)(np.array([[9.0, 9.0]]))
    np.testing.assert_allclose(probabilities, [[1.5 / 51, 0.5 / 51]])


def test_an_inverse_score_gets_slope_zero() -> None:
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
        probabilities = calibration(scores[120:])
        return float(-np.mean(np.where(labels[120:] > 0, np.log(probabilities), np.log1p(-probabilities))))

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
    result = PlattCalibration.of_log_odds(scores, labels)
    np.testing.assert_allclose(result.slope, [1, 1, 2], atol=0.1)
    np.testing.assert_allclose(result.offset, [0, 0, -2], atol=0.1)


def test_without_any_calibrated_class_each_gets_its_frequency() -> None:
    labels = np.zeros((50, 2))
    labels[0, 0] = 1
    calibration = PlattCalibration.of_log_odds(np.random.default_rng(1).normal(size=(50, 2)), labels)
    np.testing.assert_allclose(calibration(np.array([[9.0, 9.0]])), [[1.5 / 51, 0.5 / 51]])


def test_bins_count_every_case_once_and_ties_stay_together() -> None:
    probabilities = np.array([0.1] * 6 + [0.3, 0.4, 0.8, 0.9])
    bins = reliability(probabilities, (probabilities > 0.35).astype(float), num_bins=5)
    assert sum(one.count for one in bins) == 10
    assert bins[0].count >= 6
    assert bins[0].frequency == 0
    assert bins[-1].frequency == 1
    assert reliability(np.array([]), np.array([])) == []


def test_the_best_threshold_is_found_among_all() -> None:
    probabilities = np.array([[0.9, 0.2], [0.7, 0.7], [0.1, 0.4]])
    labels = np.array([[1, 0], [1, 0], [0, 1]])
    threshold, score = best_threshold(probabilities, labels)

    def f1(cut: float) -> float:
        asserted = probabilities >= cut
        return float(2 * (asserted & (labels > 0)).sum() / (asserted.sum() + labels.sum()))

    assert score == max(f1(cut) for cut in probabilities.ravel()) == f1(threshold)
    assert best_threshold(probabilities, np.zeros_like(labels)) == (1.0, 0.0)


def test_the_targets_of_a_rare_class_are_smoothed_by_the_number_of_its_own_side() -> None:
    """Platt's targets: (P + 1) / (P + 2) and 1 / (N + 2). At the optimum the probabilities have their mean."""
    labels = np.repeat([1.0, 0.0], [6, 30])[:, None]
    scores = np.random.default_rng(2).normal(size=(36, 1)) + labels
    probabilities = PlattCalibration.fit(scores, labels)(scores)
    # 1e-4: what the search for the optimum leaves.
    assert abs(probabilities.mean() - (6 * 7 / 8 + 30 / 32) / 36) < 1e-4


def test_a_rare_class_does_not_shift_the_common_curve() -> None:
    rng = np.random.default_rng(3)
    labels = (rng.random((60, 3)) < [0.5, 0.3, 0.0]).astype(float)
    labels[0, 2] = 1
    scores = rng.normal(size=(60, 3)) + labels
    scores[:, 2] -= 40
    two, three = (PlattCalibration.of_log_odds(scores[:, :count], labels[:, :count]) for count in (2, 3))
    np.testing.assert_array_equal(three.slope[:2], two.slope)
    np.testing.assert_array_equal(three.offset[:2], two.offset)


def test_asserting_pays_off_from_half_of_the_best_f1_and_never_where_nothing_is_positive() -> None:
    probabilities, labels = np.array([0.9, 0.6, 0.4, 0.1]), np.array([1.0, 0.0, 1.0, 0.0])
    assert best_threshold(probabilities, labels) == (0.4, 0.8)
    assert f1_threshold(probabilities, labels) == 0.4
    assert f1_threshold(probabilities, np.zeros(4)) == 1.0


def studies() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """A frequent class, a rare one that can be ranked, and one of which next to nothing is known."""
    rng = np.random.default_rng(0)
    labels = (rng.random((400, 3)) < np.array([0.4, 0.04, 0.005])).astype(float)
    odds = np.log([0.4, 0.04, 0.005]) + 1.5 * labels + rng.normal(size=(400, 3))
    return 1 / (1 + np.exp(-odds)), labels


def test_a_threshold_lies_between_those_of_both_means_and_a_rare_class_counts_more() -> None:
    probabilities, labels = studies()
    calibrated = np.array([True, True, False])
    result = Balance.fit(probabilities, labels, calibrated)
    pooled = best_threshold(probabilities, labels)[1] / 2
    for k in (0, 1):
        own = expected_best(probabilities[:, k]) / 2
        n = (probabilities >= pooled).sum() + labels.sum()
        of_own = MACRO / (2 * ((probabilities[:, k] >= own).sum() + labels[:, k].sum()))
        fair = (pooled / n + of_own * own) / (1 / n + of_own)
        assert result.thresholds[k] == pytest.approx(
            max(fair, np.quantile(probabilities[:, k], 1 - MOST * labels[:, k].mean()))
        )
        assert result.weights[k] == pytest.approx(1 + of_own * n)
    assert result.weights[1] > result.weights[0] > 1
    assert (result.thresholds[2], result.weights[2]) == (pooled, 1.0)


def test_no_class_is_stated_of_many_more_studies_than_have_it() -> None:
    probabilities, labels = studies()
    probabilities[:, 1] = 0.5 + probabilities[:, 1] / 2
    result = Balance.fit(probabilities, labels, np.array([True, True, False]))
    assert (probabilities[:, 1] >= result.thresholds[1]).sum() <= MOST * labels[:, 1].sum() + 1


def test_nothing_positive_is_no_fault() -> None:
    result = Balance.fit(np.full((4, 2), 0.1), np.zeros((4, 2)), np.zeros(2, dtype=bool))
    assert result.thresholds.tolist() == [1.0, 1.0]


def test_a_run_s_calibration_has_it_for_findings_and_reads_older_ones_without() -> None:
    probabilities, labels = studies()
    scores = np.log(probabilities / (1 - probabilities))
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


def test_the_expected_best_f1_is_reached_by_calibrated_probabilities() -> None:
    """The best that a handful of labels shows lies above it: of many thresholds the luckiest is taken."""
    rng = np.random.default_rng(1)
    probabilities = 1 / (1 + np.exp(-rng.normal(-4.0, 1.5, size=300)))
    shown = np.array(
        [best_threshold(probabilities, (rng.random(300) < probabilities).astype(float))[1] for _ in range(200)]
    )
    many = np.repeat(probabilities, 400)
    reached = best_threshold(many, (rng.random(len(many)) < many).astype(float))[1]
    assert expected_best(probabilities) == pytest.approx(reached, abs=0.01)
    assert shown.mean() > reached + 0.05
    assert expected_best(np.array([1.0, 1.0, 0.0])) == pytest.approx(1.0)


def test_macro_f1_may_count_more_than_it_was_fitted_for() -> None:
    probabilities, labels = studies()
    calibrated = np.array([True, True, False])
    result, pooled = Balance.fit(probabilities, labels, calibrated), best_threshold(probabilities, labels)[1] / 2
    same = rescaled(result.thresholds, result.weights, pooled, 1.0)
    assert same[0] == pytest.approx(result.thresholds)
    assert same[1] == pytest.approx(result.weights)
    micro = rescaled(result.thresholds, result.weights, pooled, 0.0)
    assert micro[0] == pytest.approx(pooled)
    assert micro[1].tolist() == [1, 1, 1]
    n = (probabilities >= pooled).sum() + labels.sum()
    more, weights = rescaled(result.thresholds, result.weights, pooled, 3.0)
    own = expected_best(probabilities[:, 0]) / 2
    of_own = 3 * MACRO / (2 * ((probabilities[:, 0] >= own).sum() + labels[:, 0].sum()))
    assert weights[0] == pytest.approx(1 + of_own * n)
    assert more[0] == pytest.approx((pooled / n + of_own * own) / (1 / n + of_own))
    assert (more[2], weights[2]) == (pooled, 1.0)


CLASSES = ("No Finding", "Edema", "Fracture", "Pneumonia")


def fitted(num: int = 400) -> tuple[RunCalibration, np.ndarray, np.ndarray]:
    """Heads that are twice as sure as they may be; of the third class there are four."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.5, 1.5, (num, len(CLASSES)))
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    labels[:, 2] = 0
    labels[:4, 2] = 1
    return RunCalibration.fit("heads", "val", CLASSES, 2 * logits, labels), 2 * logits, labels


def test_an_uncalibrated_class_shows_its_plain_score() -> None:
    calibration, scores, _ = fitted()
    shown = calibration.evidence(scores[7], "pooled")
    assert shown["calibration"]["uncalibrated"] == {"Fracture": 4}
    assert "Fracture" not in shown["calibration"]["alike"]
    assert shown["class_probabilities"]["Fracture"] == pytest.approx(1 / (1 + np.exp(-scores[7, 2])))
    # What is chosen by is its frequency: a head that nothing is known of may say anything.
    assert calibration(scores)[7, 2] == pytest.approx(4.5 / 401)
    for name in ("Edema", "Pneumonia"):
        head = 1 / (1 + np.exp(-scores[7, CLASSES.index(name)]))
        assert abs(shown["class_probabilities"][name] - 0.5) < abs(head - 0.5), "half as sure"


def test_similar_studies_are_counted_in_the_calibration_split() -> None:
    calibration, scores, labels = fitted()
    probabilities = calibration(scores)
    shown = calibration.evidence(scores[11], "pooled")["calibration"]
    had, count = shown["alike"]["Edema"]
    near = np.argsort(np.abs(probabilities[:, 1] - probabilities[11, 1]))[:count]
    assert count == 40, "a tenth of the studies"
    assert abs(labels[near, 1].sum() - had) <= 6, "the bin, which need not lie around the study"
    lowest = calibration.evidence(np.full(4, -50.0), "pooled")["calibration"]["alike"]["Edema"]
    assert lowest[0] <= 3
    assert lowest[1] == 40


def test_thresholds_are_half_of_the_best_pooled_or_class_f1() -> None:
    calibration, scores, labels = fitted()
    probabilities = calibration(scores)

    def best(columns: list[int]) -> float:
        """By trying every threshold."""
        result = 0.0
        for cut in np.unique(probabilities[:, columns]):
            asserted = probabilities[:, columns] >= cut
            both = (asserted & (labels[:, columns] > 0)).sum()
            result = max(result, 2 * both / (asserted.sum() + labels[:, columns].sum()))
        return float(result)

    assert set(calibration.thresholds("pooled")[1:]) == {best([1, 2, 3]) / 2}, "No Finding has no part in it"
    assert calibration.thresholds("pooled")[0] == pytest.approx(best([0]) / 2), "nor does that one say when it is there"
    assert calibration.thresholds("per_class").tolist() == pytest.approx([best([k]) / 2 for k in range(4)])
    shown = calibration.evidence(scores[0], "per_class")["calibration"]["thresholds"]
    assert "Fracture" not in shown, "what it cannot calibrate it does not assert"
    assert shown["Edema"] == calibration.classes["Edema"].threshold != calibration.threshold


def test_the_interval_of_a_share_is_wilsons() -> None:
    # By his formula for 0 of 10 and 5 of 10: 0 to z^2 / (n + z^2), and 0.5 -+ 0.2634.
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


def test_the_calibration_file_is_read_back_or_refused(tmp_path: Path) -> None:
    calibration, _, _ = fitted()
    save_calibration(calibration, tmp_path)
    assert load_calibration(tmp_path, CLASSES) == calibration
    with pytest.raises(InputError, match="not the classes of the run"):
        load_calibration(tmp_path, CLASSES[:3])
    with pytest.raises(InputError, match="not the classes of the run"):
        load_calibration(tmp_path, CLASSES[::-1])
    whole = json.loads((tmp_path / FILE).read_text())
    for change in (
        {"studies": 0},
        {"threshold": 2},
        {"split": "test"},
        {"classes": {**whole["classes"], "Edema": {**whole["classes"]["Edema"], "reliability": []}}},
        {"classes": {**whole["classes"], "Edema": {**whole["classes"]["Edema"], "positives": 4000}}},
    ):
        (tmp_path / FILE).write_text(json.dumps({**whole, **change}))
        with pytest.raises(InputError, match=r"calibration\.json"):
            load_calibration(tmp_path, CLASSES)


def test_reports_that_say_nothing_of_a_class_weigh_nothing_and_good_ones_sharpen_it() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((4000, 3)) < 0.3).astype(float)
    scores = labels + rng.normal(size=(4000, 3))
    reports = 9
    useless, useful = rng.binomial(reports, 0.3, size=(4000, 3)), rng.binomial(reports, 0.1 + 0.7 * labels)
    names = ("Edema", "Cardiomegaly", "Atelectasis")

    def fitted(counts: np.ndarray) -> RunCalibration:  # type: ignore[type-arg]
        stated = stated_log_odds(counts.astype(float), reports)
        return RunCalibration.fit("heads", "val", names, scores, labels, stated)

    assert max(one.own for one in fitted(useless).classes.values()) < 0.15
    assert min(one.own for one in fitted(useful).classes.values()) > 0.8
    stated = stated_log_odds(np.array([[9.0, 0.0, 4.5]]), reports)
    surely, hardly, _ = fitted(useful)(np.zeros((1, 3)), stated)[0]
    assert surely > 0.9
    assert hardly < 0.1
