"""Sentences on change: taken from training reports, said where a prior makes them likely, and never without one."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from radweave.core.evidence import OwnReports
from radweave.drafting.calibration import ClassCalibration, Reliability, RunCalibration
from radweave.drafting.candidates import (
    Candidate,
    CandidatePool,
    Sentence,
    affirmed_classes,
    candidate_options,
    utilities,
    utility_options,
)
from radweave.drafting.changes import ComparisonPool
from radweave.drafting.prior import UpdatedStudy
from radweave.drafting.smoothers import Changes, Evidence, Floats, PriorEvidence
from radweave.drafting.store import DraftingFacts, DraftingStore, labels_tensor
from radweave.drafting.writer import UtilityDraft, UtilityWriter
from radweave.labels import get_labeler
from radweave.labels.comparisons import MARK, STATES, compares_with_prior
from radweave.nn.decoding import ExpectedUtilityConfig
from radweave.nn.memory.bank import Bank

LABELER = get_labeler("chexpert14")
CLASSES = LABELER.classes
EFFUSION, HEART = CLASSES.index("Pleural Effusion"), CLASSES.index("Cardiomegaly")
CONFIG = ExpectedUtilityConfig(unsupported_places="keep")
REPORTS = [
    "The heart is normal in size. The lungs are clear. No pleural effusion.",
    "Small left pleural effusion, larger than before. The heart is normal in size.",
    "The heart is normal in size. The right pleural effusion has resolved.",
    "Small left pleural effusion is unchanged and the heart is enlarged. The lungs are clear.",
    "There is a small pleural effusion. The lungs are clear.",
    "There is a new right pleural effusion. The XXXX is new.",
]
NONE = np.zeros(len(REPORTS), dtype=bool)


class WriterOfChanges(UtilityWriter):
    """A writer for studies whose changes are given: the scores of the prior (K, 6) are their probabilities."""

    def _updated(self, evidence: Evidence, stated: Floats | None) -> UpdatedStudy | None:
        if evidence.prior is None:
            return None
        nothing = np.zeros(len(CLASSES))
        probabilities = self.calibration(evidence.scores[None])[0]
        return UpdatedStudy(evidence.prior.reported, probabilities, nothing, Changes(evidence.prior.scores, 0.3))


def writer_of(config: ExpectedUtilityConfig, *, marks: bool = False) -> UtilityWriter:
    facts = DraftingFacts(
        classes=CLASSES,
        label_set="chexpert14",
        source="stack",
        wording=utility_options(config),
        candidates=candidate_options(config),
    )
    rows = tuple({"study_id": f"s{row}", "patient": f"p{row}", "text": text} for row, text in enumerate(REPORTS))
    bank = Bank({"labels": labels_tensor(affirmed_classes(REPORTS, LABELER))}, rows)
    pool = CandidatePool.build(REPORTS, LABELER, config)
    store = DraftingStore(bank, facts, pool.candidates, pool.asserts, utilities(pool.candidates, REPORTS, config, None))
    shown = Reliability(said=0.5, seen=0.5, count=10, low=0.0)
    curve = ClassCalibration(slope=1.0, offset=0.0, threshold=0.95, positives=5, reliability=(shown,))
    known = dict.fromkeys(CLASSES, curve)
    calibration = RunCalibration(source="stack", split="train", studies=10, threshold=0.3, classes=known)
    return WriterOfChanges(store, calibration, config, marks=marks)


@pytest.fixture(scope="module")
def writer() -> UtilityWriter:
    return writer_of(CONFIG)


def evidence_of(effusion: float, **states: float) -> Evidence:
    """Log-odds of an effusion, and probabilities of what became of it, if any are given."""
    scores = np.full(len(CLASSES), -4.0)
    scores[EFFUSION] = effusion
    prior = None
    if states:
        each = np.tile(np.array([1.0, 0, 0, 0, 0, 0]), (len(CLASSES), 1))
        each[EFFUSION] = [states.get(state, 0.0) for state in STATES]
        prior = PriorEvidence(each, np.zeros(len(CLASSES), dtype=np.int64))
    return Evidence(scores, np.array([0.3, 0.1, 0.1, 0.1, 0.3, 0.1]), prior=prior)


def test_a_likely_change_is_stated_in_words_of_a_training_report(writer: UtilityWriter) -> None:
    draft = writer.write(evidence_of(2.0, worse=0.9), NONE)
    assert "Small left pleural effusion, larger than before." in draft.text
    assert draft.text.count("effusion") == 1, "it takes the place of what was said of the class"
    (statement,) = [row for row in draft.evidence["sentences"] if "larger" in row["text"]]
    assert statement["source"] == {"kind": "comparison", "study_id": "s1"}
    utility = draft.evidence["expected_utility"]
    assert utility["compared"] == [["Pleural Effusion", "worse"]]
    assert utility["changes"] == pytest.approx(6.0 * 0.6)


def test_without_a_prior_or_a_likely_change_nothing_is_compared(writer: UtilityWriter) -> None:
    plain = writer.write(evidence_of(2.0), NONE)
    unsure = writer.write(evidence_of(2.0, worse=0.25, unchanged=0.25, improved=0.25, new=0.25), NONE)
    for draft in (plain, unsure):
        assert "effusion" in draft.text
        assert not compares_with_prior(draft.text)
        assert "changes" not in draft.evidence["expected_utility"]
    assert plain.text == unsure.text


def test_a_resolved_finding_replaces_its_denial(writer: UtilityWriter) -> None:
    draft = writer.write(evidence_of(-4.0, resolved=0.9, absent=0.1), NONE)
    assert "The right pleural effusion has resolved." in draft.text
    assert "No pleural effusion" not in draft.text
    assert draft.evidence["expected_utility"]["asserted"] == []


def test_a_sentence_of_the_patient_s_own_report_is_not_lent(writer: UtilityWriter) -> None:
    own = np.array([False, True, False, False, False, False])
    assert not compares_with_prior(writer.write(evidence_of(2.0, worse=0.9), own).text)


def test_changes_of_a_written_report_count_by_their_probability(writer: UtilityWriter) -> None:
    better, worse = (
        f"There is a small pleural effusion, {word}. The lungs are clear." for word in ("improved", "worsening")
    )

    def written(**states: float) -> UtilityDraft:
        return writer.write(evidence_of(2.0, **states), NONE, OwnReports((better, worse)))

    assert "improved" in written(improved=0.95).text
    assert "improved" not in written(worse=0.95).text


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("places", ["keep", "remove"])
def test_comparisons_and_written_reports_are_edited_as_the_options_say(
    places: Literal["keep", "remove"], consistent: bool, marks: bool
) -> None:
    """Places go where drafts are consistent and unsupported places are removed; marks stay if they may."""
    config = ExpectedUtilityConfig(consistent=consistent, unsupported_places=places)
    made = writer_of(config, marks=marks)
    texts = {one.text for sentences in made.comparisons.sentences.values() for one in sentences}
    gone = consistent and places == "remove"
    worse, marked = "mall pleural effusion, larger than before.", "Small left pleural effusion is XXXX larger."
    assert (f"S{worse}" in texts) == gone
    assert (f"Small left {worse[5:]}" in texts) == (not gone)
    proposals = made.proposals
    assert (proposals.places, proposals.consistent, proposals.marks) == (not gone, consistent, marks)
    assert (made.comparisons.consistent, made.finding_sentences.consistent) == (consistent, consistent)
    lent = ComparisonPool([*REPORTS, marked], LABELER, marks=marks, consistent=consistent)
    assert any(MARK.search(one.text) for each in lent.sentences.values() for one in each) == marks


def test_sentences_that_compare_state_one_change_of_one_class() -> None:
    comparing = ComparisonPool(REPORTS, LABELER, marks=False, consistent=True)
    result = {key: [one.text for one in sentences] for key, sentences in comparing.sentences.items()}
    assert result == {
        ("Pleural Effusion", "worse"): ["Small left pleural effusion, larger than before."],
        ("Pleural Effusion", "resolved"): ["The right pleural effusion has resolved."],
        ("Pleural Effusion", "new"): ["There is a new right pleural effusion."],
    }, "neither two classes in one sentence nor a mark of de-identification"


def test_a_sentence_with_another_finding_stays_without_repetition() -> None:
    comparing = ComparisonPool(REPORTS, LABELER, marks=False, consistent=True)
    each = np.zeros((len(CLASSES), 6))
    each[EFFUSION, STATES.index("worse")] = 1.0
    both = Candidate((Sentence("The heart is enlarged and there is a pleural effusion.", "report", 0),))
    compared = Candidate((Sentence(REPORTS[5].split(" The")[0], "report", 5),))
    for draft in (both, compared):
        assert list(comparing.variants(draft, Changes(each, 0.3), CLASSES, NONE)) == []
