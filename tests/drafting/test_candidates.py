"""Candidates of training reports: sentences, composites, places and sources."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import numpy as np
import pytest

from radweave.core.study import LabelState
from radweave.drafting.candidates import (
    CandidateOptions,
    CandidatePool,
    build_candidates,
    candidate_options,
    clean_sentence,
)
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.contradictions import contradictions_of, names_place, states_something
from radweave.labels.text import split_sentences
from radweave.nn.decoding import ExpectedUtilityConfig
from radweave.phantom.ct_report import write_ct_report
from radweave.phantom.report import write_report
from radweave.phantom.study import course_of, slot_of

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


def test_a_finding_replaces_the_sentence_that_denies_it() -> None:
    composed = [c.text for c in build_candidates(REPORTS, LABELER) if c.is_composed]
    assert "The heart is normal in size. The lungs are clear. There is a small right pleural effusion." in composed


def test_deidentification_marks_are_in_candidates_only_by_option() -> None:
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
    neighbouring = "There is a left basilar opacity. The heart is normal in size. The lungs are clear."
    assert any(candidate.text.startswith(neighbouring) for candidate in plain)
    for candidate in consistent:
        if candidate.is_composed and "opacity" in candidate.text:
            assert "lungs are clear" not in candidate.text


def test_contradicting_reports_are_used_if_there_are_no_others() -> None:
    torn = "There is an effusion and the heart is normal. The heart is enlarged and there is no effusion."
    assert [one.text for one in build_candidates([torn], LABELER, options=CandidateOptions(consistent=True))] == [torn]


def phantom_reports(modality: Literal["xray", "ct"]) -> list[str]:
    write = write_report if modality == "xray" else write_ct_report
    reports = []
    for index in range(60):
        slot = slot_of(5, index)
        _, findings = course_of(5, slot, "balanced", modality)
        reports.append(write(findings, np.random.default_rng([5, index]), has_prior=slot.visit > 0).findings)
    return reports


def test_negations_of_a_finding_are_dropped_from_a_report() -> None:
    torn = "There is a left basilar opacity. The heart is normal in size. The lungs are clear. No acute disease."
    (one,) = build_candidates([torn], LABELER)
    assert one.text == "There is a left basilar opacity. The heart is normal in size."
    (retained,) = build_candidates([torn], LABELER, options=CandidateOptions(consistent=False))
    assert retained.text == torn


def test_a_sentence_with_otherwise_needs_one_before_it() -> None:
    candidates = build_candidates([*REPORTS, "The lungs are otherwise clear.", "Effusion. Otherwise clear."], LABELER)
    assert not any(candidate.text == "The lungs are otherwise clear." for candidate in candidates)


@pytest.mark.parametrize(("modality", "label_set"), [("xray", "chexpert14"), ("ct", "ct18")])
def test_no_candidate_of_phantom_reports_contradicts_itself(modality: Literal["xray", "ct"], label_set: str) -> None:
    reports = phantom_reports(modality)
    labeler = get_labeler(label_set)
    pool = {
        consistent: CandidatePool.build(reports, labeler, ExpectedUtilityConfig(consistent=consistent))
        for consistent in (False, True)
    }
    torn = {
        consistent: sum(bool(contradictions_of(one.text)) for one in made.candidates)
        for consistent, made in pool.items()
    }
    assert torn[False] > 20
    assert torn[True] == 0
    assert len(pool[True].candidates) > 0.5 * len(pool[False].candidates), "findings take the place of what denies them"
    sentences_of_pool = [sentence.text for one in pool[True].candidates for sentence in one.sentences]
    assert not any(names_place(text) and states_something(text) for text in sentences_of_pool)
    stated = pool[True].asserts.any(axis=0)
    assert (stated == pool[False].asserts.any(axis=0)).all(), "no finding is lost"


def test_without_consistency_candidates_are_those_of_earlier_versions() -> None:
    torn = "There is a small left pleural effusion. No pleural effusion or pneumothorax. No acute disease."
    more = [*REPORTS, torn, "The lungs are otherwise clear. Stable right lower lobe opacity. PICC in place."]
    pool = CandidatePool.build(more, LABELER, ExpectedUtilityConfig(consistent=False))
    listing = "\n".join("|".join(f"{s.kind}{s.row} {s.text}" for s in c.sentences) for c in pool.candidates)
    # Of the version before consistency was the default.
    assert hashlib.sha256(listing.encode()).hexdigest().startswith("75a96f93bea15e78")


@pytest.mark.parametrize(
    "text",
    [
        "There is a calcified lymph node in the right hilum.",
        "There are chronic appearing right basilar interstitial markings.",
        "There is round density within the anterior segment of the right upper lobe.",
        "Bilateral apical pleural capping.",
        "There is a calcified granuloma in the left infrahilar region.",
        "There is airspace disease in the left lower lobe.",
    ],
)
def test_no_side_stays_in_a_sentence_that_states_something(text: str) -> None:
    now = clean_sentence(text, get_labeler("chexpert14"), compares=False, places=False)
    assert not names_place(now)
    assert "hilar" not in now
    assert clean_sentence(text, get_labeler("chexpert14"), compares=False, places=True) == text


@pytest.mark.parametrize("text", ["The right lung is clear.", "No left pleural effusion.", "Both lungs are clear."])
def test_a_denial_keeps_its_side(text: str) -> None:
    assert clean_sentence(text, get_labeler("chexpert14"), compares=False, places=False) == text


DEVICES = [
    "The heart is normal in size. The nasogastric tube tip is in the stomach. A right sided pacemaker is in place.",
    "The endotracheal tube terminates 3 cm above the carina. There is a small right pleural effusion.",
    "Surgical clips are present. The lungs are clear.",
    NORMAL,
]
KIND = re.compile(r"tube|pacemaker|carina|stomach|clips")


def test_a_draft_names_no_kind_of_device_and_states_the_class_once() -> None:
    pool = CandidatePool.build(DEVICES, LABELER, ExpectedUtilityConfig())
    texts = [candidate.text for candidate in pool.candidates]
    assert texts[:3] == [
        "The heart is normal in size. Support devices are present.",
        "Support devices are present. There is a small pleural effusion.",
        "The lungs are clear.",
    ]
    assert not any(KIND.search(text) for text in texts)
    column = LABELER.classes.index("Support Devices")
    assert [bool(row[column]) for row in pool.asserts[:3]] == [True, True, False]


@pytest.mark.parametrize("options", [{"unsupported_places": "keep"}, {"consistent": False}])
def test_kinds_of_devices_stay_where_places_stay(options: dict[str, Any]) -> None:
    pool = CandidatePool.build(DEVICES, LABELER, ExpectedUtilityConfig.model_validate(options))
    assert {candidate.text for candidate in pool.candidates} >= {*DEVICES}


def test_candidates_with_kinds_of_devices_are_made_again() -> None:
    """Those of runs before this version hold kinds, and nothing in their options says so."""
    assert candidate_options(ExpectedUtilityConfig())["kinds_of_devices"] is False
    assert candidate_options(ExpectedUtilityConfig(unsupported_places="keep"))["kinds_of_devices"] is True
