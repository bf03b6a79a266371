"""A draft held against its evidence, as readers get it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from radweave.core.study import Report, Study
from radweave.engine.run_folder import read_card
from radweave.labels import get_labeler
from radweave.workstation.finished import StatedPlace, evidence_lines, model_facts, place_line
from radweave.workstation.result import StudyContext, result_of
from tests.workstation.reports import finished

TEXT = "There is a new pleural effusion. No pneumothorax. The heart is large."
EVIDENCE = {
    "class_probabilities": {"Pleural Effusion": 0.9, "Pneumothorax": 0.8, "Cardiomegaly": 0.6},
    "calibration": {
        "split": "val", "studies": 40, "thresholds": {"Pleural Effusion": 0.4, "Pneumothorax": 0.4},
        "alike": {"Pleural Effusion": (18, 20), "Pneumothorax": (16, 20)}, "uncalibrated": {"Cardiomegaly": 2},
    },
    "recalled": [
        {"kind": "report", "study_id": "t1", "text": "No pneumothorax. Small pleural effusion.", "scores": {}}
    ],
}  # fmt: skip
PRIOR = Study(study_id="p_v1", patient_id="p", report="There is a pleural effusion.")
STUDY = Study(study_id="p_v2", patient_id="p", prior="p_v1", indication="Cough.", report="ITS OWN REPORT.")


@pytest.fixture
def result(toy_run: Path) -> dict[str, Any]:
    report = Report(TEXT, "s", EVIDENCE)
    return result_of(report, read_card(toy_run), get_labeler("chexpert14"), StudyContext(STUDY, PRIOR))


def test_a_map_of_no_class_is_no_finding(toy_run: Path) -> None:
    report = Report(TEXT, "s", {**EVIDENCE, "attention_maps": {"difference": [[[1.0]]], "Cardiomegaly": [[[1.0]]]}})
    made = result_of(report, read_card(toy_run), get_labeler("chexpert14"), StudyContext(STUDY, PRIOR))
    names = [row["name"] for row in made["findings"]]
    assert "difference" not in names
    assert "Cardiomegaly" in names
    assert set(made["evidence"]["attention_maps"]) == {"difference", "Cardiomegaly"}


def test_a_draft_holds_storable_text_only(toy_run: Path) -> None:
    raw, clean = "The heart\tis\x00 large.\ud800", "The heart is large."
    labeler, card = get_labeler("chexpert14"), read_card(toy_run)
    inputs = {"sentences": [{"text": raw, "confidence": 0.5}], "sentence_fit": [{"text": raw, "fit": 0.25}]}
    for evidence in ({}, inputs):
        made = result_of(Report(raw, "s", evidence), card, labeler, StudyContext())
        assert (made["text"], [row["text"] for row in made["sentences"]]) == (clean, [clean])
        assert not re.search(r"\\u0000|\\ud800|\\t", json.dumps(made))


def test_each_sentence_has_its_probability_and_the_reason_of_its_flag(result: dict[str, Any]) -> None:
    rows = result["sentences"]
    assert [(row["probability"], row["details"]["calibrated"]) for row in rows] == [
        (0.9, True), (pytest.approx(0.2), True), (0.6, False),
    ]  # fmt: skip
    assert [row["verdict"] for row in rows] == [
        "checked in part", "evidence disagrees", "not confirmed"
    ]  # fmt: skip
    # The first is new, which no classifier knows; the last has a probability that is not calibrated.
    assert [(row["details"]["checked"], row["details"]["not_checked"]) for row in rows] == [
        (["finding"], ["change"]), ([], ["finding"]), ([], ["finding"]),
    ]  # fmt: skip
    # The first is flagged by the prior alone.
    assert [row["flagged"] for row in rows] == [True, True, False]
    assert rows[0]["details"]["prior"] == ["calls Pleural Effusion new, and the prior report affirms it"]
    (claim,) = rows[1]["details"]["claims"]
    assert (claim["said"], claim["threshold"], claim["agree"], claim["differ"]) == ("denied", 0.4, [1], [])
    assert rows[1]["details"]["verbatim"] == [1]


def test_findings_have_recalled_states_and_calibration(result: dict[str, Any]) -> None:
    actual = {row["name"]: row for row in result["findings"]}
    assert actual["Pneumothorax"]["recalled"] == [{"number": 1, "says": "denied"}]
    assert (actual["Pneumothorax"]["calibrated"], actual["Cardiomegaly"]["calibrated"]) == (True, False)


def test_a_studys_own_report_is_never_shown_and_its_prior_is(result: dict[str, Any]) -> None:
    inputs = result["evidence"]["study"]
    assert inputs["indication"] == "Cough."
    assert inputs["prior"]["report"] == PRIOR.report
    assert {row["name"]: row["change"] for row in inputs["prior"]["changes"]}["Pleural Effusion"] == "still there"
    assert "ITS OWN REPORT" not in str(result)


def test_the_bank_has_one_hash_which_changes_with_any_of_its_files(toy_run: Path) -> None:
    card = read_card(toy_run)
    first = next(name for name in card.files if name.startswith("drafting/"))
    changed = card.model_copy(update={"files": {**card.files, first: "0" * 64}})
    other = card.model_copy(update={"files": {**card.files, "config.yaml": "0" * 64}})
    assert model_facts(card)["bank"] == model_facts(other)["bank"] != model_facts(changed)["bank"]


OPACITY = "There is an opacity in the left upper lung."


def _placed(
    toy_run: Path, probability: float | None, *boxes: tuple[int, list[float]], text: str = OPACITY
) -> dict[str, Any]:
    """The only sentence of a draft of a study with two radiographs, the second one the first in the model's order."""
    place = {
        "finding": "Lung Opacity", "sides": ["left"], "zones": ["upper"], "probability": probability,
        "probabilities": {"left": 0.123456789}, "boxes": [{"view": view, "box": box} for view, box in boxes],
    }  # fmt: skip
    square = [(0.0, 1.0), (-0.1, 1.2)]
    evidence: Any = {
        "sentences": [{"text": text, "places": [place]}],
        "views": [{"file": "b.png", "image": 1, "view": "PA", "covers": square},
                  {"file": "a.png", "image": 0, "view": "LATERAL", "covers": square}],
    }  # fmt: skip
    made = result_of(Report(text, "s", evidence), read_card(toy_run), get_labeler("chexpert14"), StudyContext())
    json.dumps(made, allow_nan=False)
    (row,) = made["sentences"]
    return dict(row)


def test_a_sentence_has_its_places_with_the_image_of_each_box(toy_run: Path) -> None:
    row = _placed(toy_run, 0.7, (0, [0.1, 0.2, 0.3, 0.4]), (1, [0.5, 0.5, 1, 1]))
    (place,) = row["details"]["places"]
    assert (place["named"], place["probability"], place["improbable"]) == ("left upper zone", 0.7, False)
    assert place["probabilities"] == {"left": 0.1235}
    assert place["boxes"] == [{"image": 1, "box": [0.1, 0.2, 0.3, 0.4]}, {"image": 0, "box": [0.5, 0.5, 1, 1]}]


def test_a_place_tells_whether_its_finding_is_left_open(toy_run: Path) -> None:
    said = (OPACITY, "There may be an opacity in the left upper lung.")
    places = [_placed(toy_run, 0.7, text=text)["details"]["places"][0] for text in said]
    assert [place["uncertain"] for place in places] == [False, True]
    assert [StatedPlace.of("", place).is_uncertain for place in places] == [False, True]


def test_a_box_that_is_not_on_its_image_is_left_out(toy_run: Path) -> None:
    wrong = [(0, [0.1, 0.2, 0.3, 1.4]), (2, [0.1, 0.2, 0.3, 0.4]), (-1, [0.1, 0.2, 0.3, 0.4]), (1, [0.5, 0.5, 0.4, 1]),
             (0, [0.1, 0.1, 0.1, 0.2, 0.2, 0.2])]  # fmt: skip
    (place,) = _placed(toy_run, None, *wrong)["details"]["places"]
    assert (place["boxes"], place["probability"]) == ([], None)


def test_a_box_that_covers_nearly_the_whole_image_is_left_out_with_a_note(toy_run: Path) -> None:
    (place,) = _placed(toy_run, None, (0, [0.1, 0.2, 0.3, 0.4]), (0, [0.02, 0.05, 0.97, 0.99]))["details"]["places"]
    assert place["boxes"] == [{"image": 1, "box": [0.1, 0.2, 0.3, 0.4]}]
    stated = StatedPlace.of(OPACITY, place)
    note = "a box covers nearly the whole image, which says no place, and is left out"
    assert place_line(stated) == f"Place of Lung Opacity: left upper zone, place not checked, {note}"
    assert f"Place of Lung Opacity: {note}" in evidence_lines(finished(places=(replace(stated, named=""),)))


def test_an_improbable_place_is_flagged_and_a_run_without_places_has_none(
    toy_run: Path, result: dict[str, Any]
) -> None:
    row = _placed(toy_run, 0.1)
    assert (row["verdict"], row["flagged"]) == ("its place is improbable", True)
    assert row["details"]["places"][0]["improbable"]
    assert all("places" not in row["details"] for row in result["sentences"])
