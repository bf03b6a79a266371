"""The calibration of a run: which classes have one, what drafts show of it, and its file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.drafting.calibration import FILE, RunCalibration, load_calibration, save_calibration
from radweave.metrics.statistics import wilson_interval

CLASSES = ("No Finding", "Edema", "Fracture", "Pneumonia")


def fitted(num: int = 400) -> tuple[RunCalibration, np.ndarray, np.ndarray]:
    """Heads that are twice as sure as they may be; of the third class there are four."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.5, 1.5, (num, len(CLASSES)))
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    labels[:, 2] = 0
    labels[:4, 2] = 1
    return RunCalibration.fit("heads", "val", CLASSES, 2 * logits, labels), 2 * logits, labels


def test_a_class_with_too_few_positives_says_so_and_keeps_what_its_head_said() -> None:
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


def test_what_became_of_such_studies_is_counted_among_the_calibrations_own() -> None:
    calibration, scores, labels = fitted()
    said = calibration(scores)
    shown = calibration.evidence(scores[11], "pooled")["calibration"]
    had, count = shown["alike"]["Edema"]
    near = np.argsort(np.abs(said[:, 1] - said[11, 1]))[:count]
    assert count == 40, "a tenth of the studies"
    assert abs(labels[near, 1].sum() - had) <= 6, "the bin, which need not lie around the study"
    lowest = calibration.evidence(np.full(4, -50.0), "pooled")["calibration"]["alike"]["Edema"]
    assert lowest[0] <= 3
    assert lowest[1] == 40


def test_thresholds_are_half_of_the_best_f1_there_of_all_or_of_each() -> None:
    calibration, scores, labels = fitted()
    said = calibration(scores)

    def best(columns: list[int]) -> float:
        """By trying every threshold."""
        found = 0.0
        for cut in np.unique(said[:, columns]):
            asserted = said[:, columns] >= cut
            both = (asserted & (labels[:, columns] > 0)).sum()
            found = max(found, 2 * both / (asserted.sum() + labels[:, columns].sum()))
        return float(found)

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


def test_the_file_is_read_back_and_refused_where_it_cannot_be(tmp_path: Path) -> None:
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
