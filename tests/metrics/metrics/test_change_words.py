"""F1 over change words, against counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from radweave.labels.comparisons import CHANGES
from radweave.metrics.pairs import Pair
from radweave.phantom.report import write_report
from radweave.phantom.study import course_of, slot_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Small left effusion, new since the prior study.", {"new"}),
        ("Right basilar opacity, larger than before.", {"larger"}),
        ("Effusion has increased since the prior study.", {"larger"}),
        ("Nodule, decreased since the prior study.", {"smaller"}),
        ("Previously seen left effusion has resolved.", {"resolved"}),
        ("The chest tube has been removed.", {"resolved"}),
        ("Cardiomegaly, stable from prior. Edema, unchanged.", {"unchanged"}),
        ("No significant interval change.", {"unchanged"}),
        ("No new consolidation. The heart is not enlarged.", set()),
        ("The effusion has not resolved but the edema is smaller.", {"smaller"}),
        ("The opacity is no longer seen.", {"resolved"}),
        ("The previous opacity is gone.", {"resolved"}),
        ("Increasing effusion and decreasing edema.", {"larger", "smaller"}),
        ("Pacemaker in place. No prior for comparison. Knee replacement renewed.", set()),
    ],
)
def test_words_of_one_report(text: str, wanted: set[str]) -> None:
    assert change_words(text) == wanted


def test_phantom_reports_name_the_changes_that_were_drawn() -> None:
    trends = {"new": "new", "increased": "larger", "decreased": "smaller", "resolved": "resolved"}
    seen: set[str] = set()
    for index in range(150):
        slot = slot_of(3, index)
        _, findings = course_of(3, slot, "long-tail")
        rng = np.random.default_rng(index)
        text = write_report(findings, rng, has_prior=slot.visit > 0).findings
        words = change_words(text)
        if slot.visit == 0:
            assert not words, text
            continue
        drawn = {trends[f.trend] for f in findings if f.trend in trends and f.name != "Support Devices"}
        assert drawn <= words, text
        seen |= drawn
    assert seen == set(trends.values())


def pair(number: int, hyp: str, *refs: str) -> Pair:
    return Pair(f"s{number}", hyp, refs, patient_id=f"p{number}")


def test_f1_equals_counting() -> None:
    pairs = [
        pair(0, "New effusion. Edema unchanged.", "Effusion, new from prior."),
        pair(1, "Effusion.", "Effusion, new from prior.", "Edema, larger than before."),
        pair(2, "New nodule.", "New nodule. Effusion has resolved."),
    ]
    found = {name: statistic.corpus() for name, statistic in change_statistics(pairs).items()}
    # new: 2 hits, 1 missed. unchanged: 1 too many. larger: 1 missed. resolved: 1 missed.
    assert found["new"] == pytest.approx(4 / 5)
    assert found["unchanged"] == found["larger"] == found["resolved"] == 0
    assert math.isnan(found["smaller"])
    assert found["micro"] == pytest.approx(4 / (4 + 1 + 3))
    assert found["macro"] == pytest.approx(0.8 / 4)
    table = change_table(pairs, resamples=50)
    assert table["new"]["references"] == 3
    assert table["new"]["reports"] == 2
    assert table["smaller"]["f1"] is None
    assert set(table) == {*CHANGES, "micro", "macro"}
    low, high = table["micro"]["interval"]
    assert 0 <= low <= 0.5 <= high <= 1


def test_the_same_words_everywhere_give_1() -> None:
    texts = ["New effusion.", "Edema, unchanged.", "Nodule, smaller than before."]
    statistics = change_statistics([pair(i, text, text) for i, text in enumerate(texts)])
    assert statistics["micro"].corpus() == 1
    assert np.array_equal(statistics["micro"].per_study, np.ones(3))
