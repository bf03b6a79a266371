"""Places of findings: taken out where the rest still stands, and None where it does not."""

from __future__ import annotations

import pytest

from radweave.labels import get_labeler
from radweave.labels.contradictions import names_place, with_verb_number, without_kind, without_place

XRAY, CT = get_labeler("chexpert14"), get_labeler("ct18")


@pytest.mark.parametrize(
    ("sentence", "now"),
    [
        ("There is right lower lobe airspace disease.", "There is airspace disease."),
        ("There is a left basilar opacity.", "There is an opacity."),
        ("Small left pleural effusion.", "Small pleural effusion."),
        ("Patchy opacity in the right mid and lower lung.", "Patchy opacity."),
        ("In the left lower lobe a patchy infiltrate is present.", "A patchy infiltrate is present."),
        ("Streaky opacities are present in the left lung base.", "Streaky opacities are present."),
        ("Bilateral effusions, right greater than left.", "Effusions."),
        ("Old right rib fractures.", "Old rib fractures."),
        (
            "Degenerative changes are present in the right shoulder.",
            "Degenerative changes are present in the shoulder.",
        ),
        ("There is a right-sided pneumothorax measuring 2.5 cm.", "There is a pneumothorax."),
        ("The heart is enlarged.", "The heart is enlarged."),
    ],
)
def test_the_place_goes_and_the_finding_stays(sentence: str, now: str) -> None:
    assert without_place(sentence, XRAY) == now
    assert not names_place(now)


@pytest.mark.parametrize(
    ("sentence", "now"),
    [
        ("A 7 mm nodule in the right upper lobe.", "A nodule."),
        ("Extensive ground-glass opacities in both lower lobes.", "Extensive ground-glass opacities."),
        ("Left pleural effusion measuring 14 mm.", "Pleural effusion."),
        ("Pericardial effusion measuring 9 mm.", "Pericardial effusion."),
    ],
)
def test_of_scans_too(sentence: str, now: str) -> None:
    assert without_place(sentence, CT) == now


@pytest.mark.parametrize(
    "sentence",
    [
        "Surgical suture material projects over the right lung apex.",
        "There is a moderate left pleural effusion and a small right pleural effusion.",
        "Hyperlucent right apex with scarring.",
        "Granulomatous disease in the bilateral.",
    ],
)
def test_no_fragments_are_returned(sentence: str) -> None:
    assert without_place(sentence, XRAY) is None


def test_names_of_structures_are_no_places() -> None:
    assert not names_place("The left ventricle is prominent.")
    assert names_place("There is an opacity on the left.")


@pytest.mark.parametrize(
    ("sentence", "now"),
    [
        ("There is streaky airspace opacities in the left suprahilar region.", "There are streaky airspace opacities."),
        ("Right and left lower lobe opacity are seen.", "Opacity is seen."),
        ("There are right and left pleural effusion.", "There is pleural effusion."),
        ("There has been patchy infiltrates in the right lung.", "There have been patchy infiltrates."),
        ("There is a few small nodules in the right upper lobe.", "There are a few small nodules."),
    ],
)
def test_the_verb_agrees_with_the_remaining_subject(sentence: str, now: str) -> None:
    assert without_place(sentence, XRAY) == now


@pytest.mark.parametrize(
    "sentence",
    [
        "There is an opacity.",
        "There are small calcified granulomata.",
        "There are pleural effusion and atelectasis.",
        "There is a cluster of nodules.",
        "Opacity and effusion are present.",
        "Diseases of the lungs are noted.",
        "There is mass effect.",
        "Bullae are present.",
        "Opacities in the lungs are stable.",
    ],
)
def test_a_verb_that_agrees_or_has_another_subject_stays(sentence: str) -> None:
    assert with_verb_number(sentence) == sentence


@pytest.mark.parametrize(
    "sentence",
    [
        "The nasogastric tube tip is in the stomach.",
        "Endotracheal tube tip is 4 cm above the carina.",
        "A right sided pacemaker is in place.",
        "Median sternotomy wires and hardware are intact.",
        "There is a left-sided PICC with tip at the caval atrial junction.",
        "Tracheostomy tube remains in the trachea.",
        "Support devices are present.",
    ],
)
def test_a_device_is_stated_as_its_class_alone(sentence: str) -> None:
    assert without_kind(sentence, XRAY) == "Support devices are present."


def test_a_device_of_a_scan_is_stated_as_its_class_too() -> None:
    assert without_kind("A port catheter ends in the superior vena cava.", CT) == "Medical material is present."
    assert without_kind("The drain has been removed.", CT, compares=True) == "Medical material has been removed."


@pytest.mark.parametrize(
    ("sentence", "now"),
    [
        ("The nasogastric tube is unchanged.", "Support devices are unchanged."),
        ("There is a new right chest tube.", "New support devices are present."),
        ("The right chest tube has been removed.", "Support devices have been removed."),
        ("The endotracheal tube terminates above the carina.", "Support devices are present."),
        ("There is no chest tube.", "There is no chest tube."),
    ],
)
def test_the_change_of_a_device_stays(sentence: str, now: str) -> None:
    assert without_kind(sentence, XRAY, compares=True) == now


@pytest.mark.parametrize(
    "sentence",
    [
        "Surgical clips are present in the right upper quadrant.",
        "Stable cardiomegaly and a pacemaker.",
        "The lungs are clear and a pacemaker is in place.",
        "Overlying EKG leads.",
        "Left humeral head bone anchors.",
        "Prior anterior cervical fusion.",
        "Possible retained catheter fragment.",
    ],
)
def test_devices_without_evidence_or_next_to_a_finding_give_no_sentence(sentence: str) -> None:
    assert without_kind(sentence, XRAY) is None


@pytest.mark.parametrize(
    "sentence", ["The heart is enlarged.", "The trachea is midline.", "No support devices.", "Linear atelectasis."]
)
def test_a_sentence_without_a_device_stays(sentence: str) -> None:
    assert without_kind(sentence, XRAY) == sentence


def test_no_device_is_stated_where_no_class_has_them() -> None:
    assert without_kind("A pacemaker is in place.", get_labeler("nih14")) is None
