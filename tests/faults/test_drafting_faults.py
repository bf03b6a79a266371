"""Banks that have too little to draft from: each has an outcome of its own, and none is a wrong finding."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.drafting.calibration import PlattCalibration, f1_threshold
from radweave.drafting.candidates import CandidatePool, affirmed_classes, bleu_point, build_candidates, utilities
from radweave.drafting.choice import ExpectedUtility, NearbyUtility
from radweave.drafting.smoothers import EmbeddedStudies
from radweave.labels import get_labeler
from radweave.methods.descriptors import Described, DescriptorsConfig, distances, placed
from radweave.metrics.pairwise import WordingWeights
from radweave.nn.decoding import ExpectedUtilityConfig

LABELER, CONFIG = get_labeler("chexpert14"), ExpectedUtilityConfig()
NORMAL = ["The heart is normal in size. The lungs are clear.", "The lungs are clear. No pleural effusion."]


def drafted(reports: list[str]) -> tuple[str, tuple[str, ...]]:
    """The draft of a study that looks like the first one, and what it asserts."""
    labels = affirmed_classes(reports, LABELER)
    vectors = np.random.default_rng(0).normal(size=(len(reports), 4))
    studies = EmbeddedStudies.fit(vectors, labels)
    barred = np.zeros(len(reports), dtype=bool)
    evidence = studies.evidence_for(vectors[0] + 0.01, barred)
    scores = np.stack([studies.evidence_for(vector, barred).scores for vector in vectors])
    calibration = PlattCalibration.fit(scores, labels)
    threshold = f1_threshold(calibration(scores), labels)
    pool = CandidatePool.build(reports, LABELER, CONFIG)
    point = bleu_point(pool.candidates, reports, list(range(len(reports))))
    worth = utilities(pool.candidates, reports, CONFIG, point)
    thresholds = np.full(len(LABELER.classes), threshold)
    chooser = ExpectedUtility(pool.candidates, pool.asserts, worth, classes=LABELER.classes, thresholds=thresholds)
    (choice,) = chooser.best(1, calibration(evidence.scores[None])[0], evidence.weights, barred)
    assert np.isfinite([choice.wording, choice.findings]).all()
    return choice.candidate.text, choice.asserted


def test_a_bank_without_any_finding_asserts_none() -> None:
    text, asserted = drafted(NORMAL)
    assert text in NORMAL
    assert set(asserted) <= {"No Finding"}


def test_one_training_report_is_the_draft() -> None:
    assert drafted(NORMAL[:1])[0] == NORMAL[0]


def test_a_class_without_training_positives_is_never_asserted() -> None:
    labels = np.zeros((8, 2))
    labels[:4, 0] = 1
    scores = np.stack([labels[:, 0], np.linspace(0, 1, 8)], axis=1)
    calibrated = PlattCalibration.fit(scores, labels)(np.array([[1.0, 1e6]]))
    assert np.isfinite(calibrated).all()
    assert f1_threshold(calibrated[:, 1], np.zeros(1)) == 1.0
    assert calibrated[0, 1] < 0.1, "its score says nothing"


def test_reports_without_a_sentence_make_no_candidates() -> None:
    for reports in ([], ["", "  "], ["XXXX XXXX."]):
        with pytest.raises(ValueError, match="no training report has a sentence"):
            build_candidates(reports, LABELER)


def test_without_neighbours_there_is_no_draft() -> None:
    chooser = NearbyUtility(
        [], np.zeros((0, 1)), [], classes=("x",), thresholds=np.ones(1), weights=WordingWeights(), point=None
    )
    assert chooser.best(1, np.zeros(1), np.zeros(0), np.zeros(0, dtype=bool)) == []


def test_a_study_without_views_has_neutral_distances() -> None:
    """Its distances say nothing, and are finite."""
    rng = np.random.default_rng(0)
    extractor, studies = DescriptorsConfig().build(), Described.empty(6)
    studies.vectors[:] = rng.normal(size=studies.vectors.shape)
    studies.present[:, 0] = True
    extractor.fit_scales(studies)
    apart = distances(extractor, Described.empty(1), placed(extractor, studies))
    assert apart.findings == pytest.approx(np.full((1, 6), 1.0), abs=0.1)
    assert apart.wording == pytest.approx(np.full((1, 6), 1.0), abs=0.3)
