"""What a draft is told of the patient's prior study: fits in closed terms, thresholds, and states that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from radweave.core.errors import InputError
from radweave.drafting.calibration import logistic_regression
from radweave.drafting.prior import (
    FILE,
    FOLDS,
    PRIOR_INPUTS,
    Known,
    PriorCalibration,
    PriorCurve,
    UpdatedStudy,
    load_prior,
    multinomial,
    only_of_one_patient,
    reported_classes,
    save_prior,
)
from radweave.drafting.smoothers import PriorEvidence
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import PRESENT, STATES

CLASSES = ("Edema", "Pleural Effusion", NO_FINDING)
THRESHOLD = 0.35
_PRESENT = [STATES.index(state) for state in STATES if state in PRESENT]


class Followed:
    """Studies with priors: a class that was there mostly stays, one that was not mostly stays away."""

    def __init__(self, studies: int = 300, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        shape = (studies, len(CLASSES))
        before = rng.random(shape) < 0.4
        now = np.where(before, rng.random(shape) < 0.7, rng.random(shape) < 0.15)
        share = np.array([0.4 * 0.7 + 0.6 * 0.15, 0.4])
        offset = np.log(share / (1 - share))
        # Log-odds of noisy scores, calibrated: twice the score for means of -1 and 1 with deviation 1.
        self.own, self.before = (
            2 * (2 * one - 1 + rng.normal(size=shape)) + off for one, off in zip((now, before), offset, strict=True)
        )
        self.present = now.astype(float)
        self.prior = PriorEvidence(self.before, before.astype(np.int64))
        state = np.where(before, np.where(now, rng.choice([2, 3, 4], shape), 5), np.where(now, 1, 0))
        stated = state[..., None] == np.arange(len(STATES))
        self.known = Known(self.present, stated, stated)

    def fit(self) -> PriorCalibration:
        return PriorCalibration.fit("val", CLASSES, self.own, self.prior, self.known, THRESHOLD)


@pytest.fixture(scope="module")
def learned() -> PriorCalibration:
    return Followed().fit()


def stated_by(log_odds: Any, shifts: Any = 0.0) -> Any:
    return log_odds - shifts >= np.log(THRESHOLD / (1 - THRESHOLD))


def test_a_prior_makes_probabilities_better_and_its_report_more_than_its_image(learned: PriorCalibration) -> None:
    new = Followed(1000, seed=1)

    def misfit(log_odds: Any) -> float:
        return float((np.logaddexp(0, log_odds) - new.present * log_odds).mean())

    image, report, both = (misfit(learned.log_odds(told, new.own, new.prior)) for told in ("image", "report", "both"))
    assert misfit(new.own) > image > report
    assert both == pytest.approx(report, abs=0.01), "its report says all that its image could"


@pytest.mark.parametrize("told", PRIOR_INPUTS)
def test_new_findings_are_stated_as_often_as_without_a_prior(learned: PriorCalibration, told: Any) -> None:
    new = Followed(2000, seed=2)
    appeared = (new.present > 0) & (new.prior.reported == 0)
    appeared[:, CLASSES.index(NO_FINDING)] = False
    log_odds = learned.log_odds(told, new.own, new.prior)
    untold = stated_by(new.own)[appeared].mean()
    assert stated_by(log_odds, learned.shifts(told, new.prior))[appeared].mean() > untold - 0.05
    if told != "image":
        assert stated_by(log_odds)[appeared].mean() < untold - 0.05, "one threshold for all cells would hold them back"


def test_thresholds_are_of_log_odds_by_curves_without_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, fit = list[Any](), PriorCurve.fit

    def watched(own: Any, before: Any, truth: Any, cells: Any, *, image: bool) -> PriorCurve:
        if (cells.all(axis=1) | ~cells.any(axis=1)).all():  # the group of all cells
            whole.append(~cells.any(axis=1))
        return fit(own, before, truth, cells, image=image)

    monkeypatch.setattr(PriorCurve, "fit", watched)
    Followed(50).fit()
    left_out = np.stack(whole)
    assert (left_out.sum(axis=1) > 0).sum() == 2 * FOLDS, "for the image alone and for an unread report"
    assert (left_out.sum(axis=0) == 2).all(), "each study once"


def test_own_evidence_never_counts_less_beside_a_prior(learned: PriorCalibration) -> None:
    assert all(curve.own >= 1 for curves in learned.curves.values() for curve in curves.values())


def test_a_prior_whose_report_was_not_read_counts_by_its_image_alone(learned: PriorCalibration) -> None:
    one = Followed(5, seed=3)
    unread = PriorEvidence(one.before, np.full_like(one.prior.reported, -1))
    assert np.array_equal(learned.log_odds("both", one.own, unread), learned.log_odds("image", one.own, one.prior))
    assert np.array_equal(learned.log_odds("report", one.own, unread), one.own), "nothing is told"


@pytest.mark.parametrize("told", PRIOR_INPUTS)
def test_states_agree_with_the_probability_and_the_report(learned: PriorCalibration, told: Any) -> None:
    one = Followed(50, seed=4)
    for row in range(50):
        prior = PriorEvidence(one.before[row], one.prior.reported[row])
        study = UpdatedStudy.of(learned, told, one.own[row], prior)
        states = study.changes.probabilities
        assert states.sum(axis=-1) == pytest.approx(1.0)
        assert states[:, _PRESENT].sum(axis=-1) == pytest.approx(study.probabilities)
        if told != "image":
            affirmed = prior.reported == 1
            assert not states[affirmed][:, [STATES.index("new"), STATES.index("absent")]].any()
            assert not states[~affirmed][:, 2:6].any()
    shown = study.shown(CLASSES)
    assert set(shown) == set(CLASSES) - {NO_FINDING}
    assert {row["before"] for row in shown.values()} <= (
        {"not known"} if told == "image" else {"affirmed", "not affirmed"}
    )


def test_thresholds_move_as_log_odds() -> None:
    one = Followed(60)
    study = UpdatedStudy.of(one.fit(), "both", one.own[0], PriorEvidence(one.before[0], one.prior.reported[0]))
    before = np.array([0.2, 0.5, 1.0])
    after = study.thresholds(before)
    odds = before[:2] / (1 - before[:2]) * np.exp(study.shifts[:2])
    assert after[:2] == pytest.approx(odds / (1 + odds))
    assert after[2] == pytest.approx(1.0)


def test_a_study_does_not_depend_on_others(learned: PriorCalibration) -> None:
    one = Followed(40, seed=5)
    together = learned.states(learned.log_odds("both", one.own, one.prior), one.own, one.prior)
    alone = PriorEvidence(one.before[7], one.prior.reported[7])
    given = learned.log_odds("both", one.own[7], alone)
    assert np.array_equal(learned.states(given, one.own[7], alone), together[7])


def test_reports_are_read_as_drafts_are_and_an_empty_one_is_not_known() -> None:
    labeler = get_labeler("chexpert14")
    read = reported_classes(["There is a pleural effusion. Possible edema.", " "], labeler)
    column = {name: number for number, name in enumerate(labeler.classes)}
    assert read[0, column["Pleural Effusion"]] == 1
    assert read[0, column["Edema"]] == 0, "uncertain is not affirmed"
    assert (read[1] == -1).all()


def test_states_that_reports_leave_open_are_all_possible() -> None:
    labeler = get_labeler("chexpert14")
    place = labeler.classes.index("Pleural Effusion")
    texts = ["There is a pleural effusion.", "The pleural effusion is larger.", "The lungs are clear."]
    present = np.zeros((3, len(labeler.classes)))
    present[:2, place] = 1
    reported = np.ones_like(present, dtype=np.int64)
    known = Known.of(texts, present, reported, labeler)
    names = [{STATES[n] for n in np.flatnonzero(row)} for row in known.possible[:, place]]
    assert names == [{"worse", "unchanged", "improved"}, {"worse"}, {"resolved"}]
    assert known.stated[:, place].sum(axis=-1).tolist() == [0, 1, 0]


def test_a_prior_of_another_patient_is_refused_without_a_name() -> None:
    only_of_one_patient(["p1"], ["p1"])
    with pytest.raises(InputError, match="another patient") as caught:
        only_of_one_patient(["p1"], ["p2"])
    assert "p2" not in str(caught.value)


def test_a_run_keeps_what_it_learned_and_refuses_that_of_other_classes(
    learned: PriorCalibration, tmp_path: Path
) -> None:
    assert load_prior(tmp_path, CLASSES) is None
    save_prior(learned, tmp_path)
    assert load_prior(tmp_path, CLASSES) == learned
    with pytest.raises(InputError, match="classes"):
        load_prior(tmp_path, CLASSES[::-1])
    broken = (tmp_path / FILE).read_text().replace('"unread"', '"other"')
    (tmp_path / FILE).write_text(broken)
    with pytest.raises(InputError, match=FILE):
        load_prior(tmp_path, CLASSES)


def test_the_regressions_are_those_of_sklearn() -> None:
    rng = np.random.default_rng(4)
    values = np.concatenate([rng.normal(size=(300, 3)), np.ones((300, 1))], axis=1)
    targets = (rng.random(300) < 1 / (1 + np.exp(-(values @ np.array([1.0, 0.5, 0.3, -1.0]))))).astype(float)
    free = np.full(4, -np.inf)
    mine = logistic_regression(values, targets, np.zeros(4), np.full(4, 0.5), free)
    reference = LogisticRegression(C=0.25, fit_intercept=False, tol=1e-10, max_iter=1000).fit(values, targets).coef_[0]
    assert mine == pytest.approx(reference, abs=1e-4)
    bounded = logistic_regression(values, targets, np.zeros(4), np.full(4, 0.5), np.array([2.0, *free[1:]]))
    assert bounded[0] == 2.0
    values, states = rng.normal(size=(80, 5)), rng.integers(0, 3, 80)
    mine = multinomial(values, states[:, None] == np.arange(3), 0.7)
    reference = LogisticRegression(C=0.49, fit_intercept=False, tol=1e-10, max_iter=2000).fit(values, states).coef_
    assert np.allclose(mine.T, reference, atol=1e-3)


def test_unstated_changes_share_the_remaining_probability() -> None:
    values = np.ones((50, 1))
    weights = multinomial(values, np.tile([True, True, False], (50, 1)), 1.0)[0]
    assert weights[0] == pytest.approx(weights[1])
    assert weights[2] < weights[0] - 1
