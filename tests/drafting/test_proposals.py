"""Reports that a language model wrote beside those of training: chosen by the same utility, and named."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.core.evidence import OwnReports, RecalledText
from radweave.drafting.candidates import Candidate, Sentence
from radweave.drafting.choice import Choice
from radweave.drafting.smoothers import Changes
from radweave.drafting.writer import NO_ROW, Proposals
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import STATES
from radweave.metrics.pairwise import WordingWeights

REPORTS = [
    "The heart is normal in size. The lungs are clear.",
    "The heart is enlarged. There is a small left pleural effusion.",
    "The lungs are clear. There is no effusion.",
]
NORMAL = Choice(Candidate((Sentence(REPORTS[0], "report", 0),)), (), 0.0, 0.0)
NONE_BARRED = np.zeros(3, dtype=bool)


def proposals(*, marks: bool = False) -> Proposals:
    labeler = get_labeler("chexpert14")
    thresholds = np.full(len(labeler.classes), 0.3)
    counts = np.array([name != NO_FINDING for name in labeler.classes], dtype=np.float64)
    weights = WordingWeights(1.0, 5.0, 0.0)
    return Proposals(
        REPORTS, labeler, counts=counts, thresholds=thresholds, weights=weights, point=None, beta=6.0, marks=marks
    )


def chosen(
    texts: list[str],
    weights: list[float],
    *,
    likely: str | None = None,
    changes: Changes | None = None,
    barred: np.ndarray = NONE_BARRED,  # type: ignore[type-arg]
) -> Choice:
    names = get_labeler("chexpert14").classes
    probabilities = np.array([0.9 if name == likely else 0.05 for name in names])
    return proposals().choose(NORMAL, OwnReports(tuple(texts)), probabilities, np.array(weights), barred, changes)


def test_a_report_of_the_likely_findings_is_chosen_and_named() -> None:
    choice = chosen([REPORTS[1]], [0.2, 0.6, 0.2], likely="Pleural Effusion")
    assert {sentence.kind for sentence in choice.candidate.sentences} == {"decoder"}
    assert {sentence.row for sentence in choice.candidate.sentences} == {NO_ROW}
    assert "Pleural Effusion" in choice.asserted


def test_a_written_report_that_invents_is_not_chosen() -> None:
    assert chosen(["There is a large pneumothorax. There is a mass."], [0.8, 0.1, 0.1]) is NORMAL


def test_the_draft_stays_where_nothing_is_better_or_nothing_was_written() -> None:
    assert chosen([], [1.0, 0.0, 0.0]) is NORMAL
    assert chosen([REPORTS[0], ""], [1.0, 0.0, 0.0]) is NORMAL, "an equal one does not take its place"


def test_comparisons_need_a_prior_that_was_compared_with_and_marks_are_left_out() -> None:
    text = "The heart is enlarged. The effusion has increased since the prior study. XXXX of a line."
    alone = chosen([text], [0.0, 1.0, 0.0], likely="Cardiomegaly")
    absent = np.tile(np.eye(len(STATES))[0], (len(get_labeler("chexpert14").classes), 1))
    with_change = chosen([text], [0.0, 1.0, 0.0], likely="Cardiomegaly", changes=Changes(absent, 0.0))
    assert "increased" not in alone.candidate.text
    assert "increased" in with_change.candidate.text
    assert "XXXX" not in with_change.candidate.text


def test_a_finding_that_is_taken_up_has_to_be_worth_its_words_with_half() -> None:
    names = get_labeler("chexpert14").classes
    more = Candidate((*NORMAL.candidate.sentences, Sentence("There is a small left pleural effusion.", "finding", 1)))
    held, weights = proposals(), np.array([0.1, 0.0, 0.0])

    def least(counts: float, *, further: bool) -> float:
        """The least that the probability has to be above the threshold."""
        held.counts = np.where(proposals().counts > 0, counts, 0.0)
        for above in np.arange(0, 1, 0.005).tolist():
            probabilities = np.where(np.array(names) == "Pleural Effusion", 0.3 + above, 0.0)
            if held.best(NORMAL, [more], probabilities, weights, NONE_BARRED, None, further=further) is not NORMAL:
                return above
        return 1.0

    plain = least(1.0, further=False)
    assert 0 < plain < 0.5
    assert least(1.0, further=True) == pytest.approx(2 * plain, abs=0.011)
    assert least(20.0, further=False) < plain / 10 + 0.005
    assert least(20.0, further=True) == least(1.0, further=True), "a rare one counts as any other"


def test_the_patients_own_report_does_not_support_a_proposal() -> None:
    own = np.arange(3) == 1
    heard = chosen([REPORTS[1]], [0.1, 0.8, 0.1], likely="Pleural Effusion")
    deaf = chosen([REPORTS[1]], [0.1, 0.8, 0.1], likely="Pleural Effusion", barred=own)
    without = chosen([REPORTS[1]], [0.1, 0.0, 0.1], likely="Pleural Effusion")
    assert {one.candidate.text for one in (heard, deaf, without)} == {REPORTS[1]}
    assert deaf.wording == pytest.approx(without.wording)
    assert deaf.wording < heard.wording


def test_a_recalled_report_is_chosen_and_names_its_study() -> None:
    own = OwnReports((), (RecalledText(REPORTS[1], "s1", is_sentence=False),))
    names = get_labeler("chexpert14").classes
    probabilities = np.array([0.9 if name == "Pleural Effusion" else 0.05 for name in names])
    choice = proposals().choose(NORMAL, own, probabilities, np.array([0.2, 0.6, 0.2]), NONE_BARRED)
    assert {(sentence.kind, sentence.study_id) for sentence in choice.candidate.sentences} == {("recalled", "s1")}


def test_a_recalled_sentence_joins_a_draft_that_does_not_state_its_finding() -> None:
    sentence = RecalledText("There is a small left pleural effusion.", "s1", is_sentence=True)
    names = get_labeler("chexpert14").classes

    def choice(probability: float) -> Choice:
        probabilities = np.array([probability if name == "Pleural Effusion" else 0.05 for name in names])
        own = OwnReports((), (sentence,))
        return proposals().choose(NORMAL, own, probabilities, np.array([0.2, 0.1, 0.1]), NONE_BARRED)

    (joined,) = (one for one in choice(0.95).candidate.sentences if one.kind == "recalled")
    assert (joined.text, joined.study_id) == (sentence.text, "s1")
    assert choice(0.1) is NORMAL


def test_own_reports_speak_for_the_wording_but_none_for_itself() -> None:
    held = proposals()
    one, other = "The lungs are clear. There is no effusion.", "There is a small effusion."
    nothing = held.between([one], [other])[0, 0]
    wording = held.own_wording(OwnReports((one, other, other)), 0.5)
    assert wording is not None
    given = np.array([2.0, 2.0, 2.0], dtype=np.float32)
    by_both = wording([one, other, "The heart is normal in size."], given)
    assert by_both[0] == pytest.approx(1 + 0.5 * nothing)
    assert by_both[1] == pytest.approx(1 + 0.25 * (held.between([other], [other, one]).sum()))
    assert held.own_wording(OwnReports((one,)), 0.0) is None
    alone = held.own_wording(OwnReports((one,)), 0.5)
    assert alone is not None
    assert alone([one], given[:1]) == pytest.approx(given[:1]), "the only report says nothing of itself"


def test_the_report_of_a_prior_loses_headings_and_comparisons_and_is_not_too_long() -> None:
    held = proposals()
    made = held.of_prior("FINDINGS: The heart is enlarged. No change. IMPRESSION: The effusion has increased.")
    assert made is not None
    assert made.text == "The heart is enlarged."
    assert {sentence.kind for sentence in made.sentences} == {"prior"}
    assert held.of_prior("No change.") is None
    assert held.of_prior("The heart is enlarged. " * 1000) is None
