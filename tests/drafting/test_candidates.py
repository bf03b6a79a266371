"""Candidates: what they are made of, and whose it is."""

from __future__ import annotations

import pytest

from radweave.base.study import LabelState
from radweave.drafting.candidates import CandidateOptions, build_candidates, split_sentences
from radweave.labels import NO_FINDING, get_labeler

LABELER = get_labeler("chexpert14")
NORMAL = "The heart is normal in size. The lungs are clear. No pleural effusion or pneumothorax."
REPORTS = [
    NORMAL,
    "There is cardiomegaly. The lungs are clear. No pleural effusion.",
    "There is a small right pleural effusion. The heart is normal in size.",
    "The XXXX are intact. There is a left basilar opacity.",
    NORMAL,
]


def stated(text: str) -> set[str]:
    mentions = LABELER.label([text])[0]
    return {name for name, mention in mentions.items() if mention.state is LabelState.POSITIVE} - {NO_FINDING}


def test_every_sentence_names_the_report_that_has_it() -> None:
    candidates = build_candidates(REPORTS, LABELER)
    assert any(candidate.is_composed for candidate in candidates)
    for candidate in candidates:
        for sentence in candidate.sentences:
            assert sentence.text in split_sentences(REPORTS[sentence.row])


def test_reports_come_once_each_and_composites_add_new_texts() -> None:
    candidates = build_candidates(REPORTS, LABELER)
    texts = [candidate.text for candidate in candidates]
    assert len(texts) == len(set(texts))
    assert texts.count(NORMAL) == 1
    assert sum(not candidate.is_composed for candidate in candidates) == 4


def test_a_composite_states_its_finding_and_denies_it_nowhere() -> None:
    composed = [candidate for candidate in build_candidates(REPORTS, LABELER) if candidate.is_composed]
    assert {"Cardiomegaly"} in [stated(candidate.text) for candidate in composed]
    assert {"Cardiomegaly", "Pleural Effusion"} in [stated(candidate.text) for candidate in composed]
    for candidate in composed:
        new = [sentence for sentence in candidate.sentences if sentence.kind == "finding"]
        wanted = set().union(*(stated(sentence.text) for sentence in new))
        assert stated(candidate.text) == wanted
        for sentence in candidate.sentences:
            mentions = LABELER.label([sentence.text])[0]
            assert not any(mentions[name].state is LabelState.NEGATIVE for name in wanted)


def test_the_sentence_that_denied_it_gives_its_place() -> None:
    composed = [c.text for c in build_candidates(REPORTS, LABELER) if c.is_composed]
    assert "The heart is normal in size. The lungs are clear. There is a small right pleural effusion." in composed


def test_deidentification_marks_stand_in_a_candidate_only_when_asked_for() -> None:
    def marked(marks: bool) -> bool:
        options = CandidateOptions(marks=marks)
        return any("XXXX" in candidate.text for candidate in build_candidates(REPORTS, LABELER, options=options))

    assert not marked(False)
    assert marked(True)


def test_a_sentence_can_be_rewritten_or_dropped() -> None:
    def clean(text: str) -> str:
        return "" if "heart" in text else text.replace("right", "left")

    texts = [candidate.text for candidate in build_candidates(REPORTS, LABELER, clean=clean)]
    assert "There is a small left pleural effusion." in texts
    assert not any("heart" in text or "right" in text for text in texts)


def test_one_report_is_enough_and_none_is_refused() -> None:
    (only,) = build_candidates(REPORTS[:1], LABELER)
    assert only.text == NORMAL
    with pytest.raises(ValueError, match="no training report"):
        build_candidates(["XXXX XXXX."], LABELER)


def test_a_consistent_draft_neither_contradicts_itself_nor_says_that_all_is_well() -> None:
    torn = "There is a small left pleural effusion. No pleural effusion or pneumothorax."
    plain, consistent = (
        build_candidates([*REPORTS, torn], LABELER, options=CandidateOptions(consistent=consistent))
        for consistent in (False, True)
    )
    assert torn in {candidate.text for candidate in plain}
    assert torn not in {candidate.text for candidate in consistent}
    beside = "There is a left basilar opacity. The heart is normal in size. The lungs are clear."
    assert any(candidate.text.startswith(beside) for candidate in plain)
    for candidate in consistent:
        if candidate.is_composed and "opacity" in candidate.text:
            assert "lungs are clear" not in candidate.text


def test_where_all_reports_contradict_themselves_something_is_still_said() -> None:
    torn = "There is a pleural effusion. There is no pleural effusion."
    assert [one.text for one in build_candidates([torn], LABELER, options=CandidateOptions(consistent=True))] == [torn]


def test_what_says_that_all_is_well() -> None:
    lungs, heart = frozenset({"Lung Opacity"}), frozenset({"Cardiomegaly"})
    assert denies_all("The lungs are clear.", lungs)
    assert not denies_all("The lungs are clear.", heart)
    assert not denies_all("The lungs are otherwise clear.", lungs)
    assert denies_all("No acute cardiopulmonary abnormality.", heart)
    assert not denies_all("No acute cardiopulmonary abnormality.", frozenset())
