"""Places of findings: what sentences say, and what images say of it."""

from __future__ import annotations

import pytest

from radweave.core.evidence import FindingPlace
from radweave.drafting.places import place_probability, sentence_places
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
