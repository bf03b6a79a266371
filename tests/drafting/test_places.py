"""Places of findings: what sentences say, and what images say of it."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.core.evidence import FindingPlace
from radweave.drafting.candidates import Candidate, Sentence
from radweave.drafting.places import PlacedSentences, PlaceUtility, place_probability, sentence_places
from radweave.labels import get_labeler
from radweave.labels.places import Place, get_place_labeler

READER = get_place_labeler("chexpert14")
LEFT = FindingPlace(
    sides={"left": 0.9, "right": 0.2},
    zones={"upper": 0.1, "lower": 0.8},
    boxes=({"view": 0, "box": [0.5, 0.5, 0.9, 0.9]},),
)


def test_a_place_counts_as_far_as_it_is_stated() -> None:
    assert place_probability(LEFT, {Place("left", None)}) == 0.9
    assert place_probability(LEFT, {Place("left", "lower")}) == pytest.approx(0.72)
    assert place_probability(LEFT, {Place("left", None), Place("right", None)}) == 0.2, (
        "both are as likely as the worse"
    )
    assert place_probability(LEFT, {Place("left", "lower"), Place("left", "upper")}) == pytest.approx(0.09)


def test_a_place_that_the_images_do_not_know_is_not_checked() -> None:
    assert place_probability(LEFT, ()) is None
    assert place_probability(LEFT, {Place(None, "pleura")}) is None
    assert place_probability(LEFT, {Place("left", "pleura")}) == 0.9, "of side and zone the one that is known counts"
    assert place_probability(FindingPlace(), {Place("left", "lower")}) is None


def test_a_row_for_each_finding_that_a_sentence_states() -> None:
    rows = sentence_places("There is a left basilar opacity and cardiomegaly.", READER, {"Lung Opacity": LEFT})
    by_name = {row["finding"]: row for row in rows}
    assert set(by_name) == {"Cardiomegaly", "Lung Opacity"}
    opacity, heart = by_name["Lung Opacity"], by_name["Cardiomegaly"]
    assert (opacity["sides"], opacity["zones"]) == (["left"], ["lower"])
    assert opacity["probability"] == pytest.approx(0.72)
    assert opacity["boxes"] == list(LEFT.boxes)
    assert opacity["probabilities"] == {"left": 0.9, "right": 0.2, "upper": 0.1, "lower": 0.8}
    assert (heart["sides"], heart["probability"], heart["boxes"]) == ([], None, [])


def test_a_denied_finding_has_no_place() -> None:
    assert sentence_places("No left pleural effusion.", READER, {"Pleural Effusion": LEFT}) == []


REPORTS = [
    "There is a small left basilar opacity. The heart is normal in size.",
    "There is a right basilar opacity. The heart is normal in size.",
    "There is a right upper lobe opacity. No pleural effusion.",
    "There is a large right basilar opacity. The heart is normal in size.",
    "There is a 2 cm left upper lobe opacity. No pleural effusion.",
    "There is a left perihilar opacity. No pleural effusion.",
    "Left basilar opacity, unchanged from the prior study. No pleural effusion.",
    "A right internal jugular catheter is in place.",
]
OPACITY = frozenset({"Lung Opacity"})
NONE = np.zeros(len(REPORTS), dtype=bool)


def utility(place: FindingPlace, weight: float = 6.0) -> PlaceUtility:
    return PlaceUtility({"Lung Opacity": place}, {"Lung Opacity": 0.5}, READER, weight)


def pool() -> PlacedSentences:
    return PlacedSentences(REPORTS, get_labeler("chexpert14"), READER, marks=False)


def test_a_likely_place_pays_off_a_wrong_one_costs_and_none_is_neutral() -> None:
    right, left, none, zone = utility(LEFT)(
        ["A right opacity.", "A left opacity.", "There is an opacity.", "A left upper lobe opacity."]
    )
    assert right == pytest.approx(6 * 0.5 * (0.2 - 2 / 3))
    assert left == pytest.approx(6 * 0.5 * (0.9 - 2 / 3))
    assert none == 0
    assert zone == pytest.approx(left + 6 * 0.5 * 0.9 * (0.1 - 2 / 3)), "a zone counts as far as its side is right"
    assert utility(FindingPlace())(["A left opacity."])[0] < 0, "a place that the images do not know costs"
    assert utility(LEFT)(["No left opacity."])[0] == 0


def test_no_sentence_states_what_no_evidence_speaks_for() -> None:
    texts = {sentence.text for own in pool().sentences.values() for sentence in own}
    assert set(pool().sentences) == {OPACITY}
    assert not any(word in text for text in texts for word in ("cm", "perihilar", "catheter", "unchanged"))
    assert "There is a right basilar opacity." in texts


def draft(*texts: str) -> Candidate:
    return Candidate(tuple(Sentence(text, "template", 0) for text in texts))


def test_a_sentence_is_replaced_by_one_with_the_same_findings_and_a_likelier_place() -> None:
    made = list(pool().variants(draft("There is an opacity.", "The heart is normal."), utility(LEFT), NONE))
    assert [one.sentences[0].text for one in made] == ["Left basilar opacity."], "the right one costs"
    assert made[0].sentences[0].kind == "finding"
    assert made[0].sentences[1].text == "The heart is normal."
    assert list(pool().variants(draft("Left basilar opacity."), utility(LEFT), NONE)) == []


def test_severity_is_never_brought_in_and_the_patients_own_words_are_not_lent() -> None:
    made = {one.text for one in pool().variants(draft("There is a small opacity."), utility(LEFT), NONE)}
    assert made == {"There is a small left basilar opacity.", "Left basilar opacity."}
    own = np.arange(len(REPORTS)) == 0
    made = {one.text for one in pool().variants(draft("There is a small opacity."), utility(LEFT), own)}
    assert made == {"Left basilar opacity."}


def test_a_sentence_that_denies_a_class_is_not_replaced_by_one_that_does_not() -> None:
    for text in ("There is a right opacity without effusion.", "Right opacity, no effusion."):
        assert list(pool().variants(draft(text), utility(LEFT), NONE)) == []
    assert list(pool().variants(draft("There is a right opacity."), utility(LEFT), NONE))


def test_a_sentence_of_another_meaning_does_not_stand_for_it() -> None:
    reports = ["Acute displaced left rib fractures.", "Healing left rib fracture."]
    own = PlacedSentences(reports, get_labeler("chexpert14"), READER, marks=False)
    worth = PlaceUtility({"Fracture": LEFT}, {"Fracture": 0.5}, READER, 6.0)
    made = [one.text for one in own.variants(draft("Healing rib fracture."), worth, np.zeros(2, dtype=bool))]
    assert made == ["Healing left rib fracture."]
