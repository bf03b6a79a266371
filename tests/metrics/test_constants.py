"""The best constant reports: chosen for one score, on training reports only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.core.study import Study
from radweave.labels import get_labeler
from radweave.metrics.evaluate import Options, evaluate_pairs, finding_f1
from radweave.metrics.floors import best_constants, best_for_findings, best_for_wording, constant_f1, training_reports
from radweave.metrics.pairs import Pair
from radweave.metrics.protocols import get_protocol

FULL, LABELER = get_protocol("full"), get_labeler("chexpert14")
NORMAL = "The lungs are clear. The heart is normal in size."
TEXTS = [NORMAL] * 3 + [
    "The lungs are clear. The heart is of normal size.",
    "There is cardiomegaly.",
    "There is cardiomegaly. The lungs are clear.",
    "There is a large pleural effusion.",
]


def score(report: str) -> tuple[float, float]:
    """Findings F1, and CIDEr + ROUGE-L, of one report for all training studies, by the metrics themselves."""
    pairs = [Pair(str(i), report, (text,)) for i, text in enumerate(TEXTS)]
    scored = evaluate_pairs(pairs, labeler=LABELER, options=Options(meteor=False, floors=False, resamples=0))
    corpus = scored.corpus
    return finding_f1(scored).value or 0.0, (corpus["CIDEr"].value or 0) + (corpus["ROUGE_L"].value or 0)


def test_each_is_the_best_by_its_own_score() -> None:
    findings, wording = zip(*(score(text) for text in TEXTS), strict=True)
    best = best_constants(TEXTS, FULL, LABELER)
    assert best["constant_wording"] == TEXTS[int(np.argmax(wording))] == NORMAL
    assert score(best["constant_findings"])[0] == pytest.approx(max(findings))
    assert score(best["constant_findings"])[0] > score(best["constant_wording"])[0]


def test_f1_of_a_constant_is_that_of_the_metric() -> None:
    rng = np.random.default_rng(0)
    stated = rng.random((20, 4)) < 0.3
    for row, result in zip(stated, constant_f1(stated), strict=True):
        hits = (row & stated).sum()
        assert result == pytest.approx(2 * hits / (20 * row.sum() + stated.sum()))


def test_references_without_findings_have_no_findings_floor() -> None:
    assert best_for_findings([NORMAL, "The lungs are clear."], FULL, LABELER) is None
    assert set(best_constants([NORMAL], FULL, LABELER)) == {"constant_wording"}
    assert set(best_constants(TEXTS, FULL, None)) == {"constant_wording"}


def test_a_report_is_not_its_own_reference() -> None:
    """A long odd one would be the best by matching itself."""
    odd = " ".join(f"w{i}" for i in range(30))
    assert best_for_wording([odd, *TEXTS], FULL) == NORMAL


def test_a_floor_chosen_with_test_reports_is_refused() -> None:
    studies = [
        Study(study_id=str(i), patient_id=str(i), split=split, images=(), report=NORMAL)
        for i, split in enumerate(itertools.repeat("train", 2))
    ]
    assert training_reports(studies) == (NORMAL, NORMAL)
    with pytest.raises(InputError, match="training reports only"):
        training_reports([*studies, studies[0].model_copy(update={"split": "test"})])
