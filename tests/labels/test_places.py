"""Places of findings: taken out where the rest still stands, and None where it does not."""

from __future__ import annotations

import pytest

from radweave.labels import get_labeler
from radweave.labels.contradictions import names_place, without_place

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
def test_what_would_be_a_fragment_is_none(sentence: str) -> None:
    assert without_place(sentence, XRAY) is None


def test_names_of_structures_are_no_places() -> None:
    assert not names_place("The left ventricle is prominent.")
    assert names_place("There is an opacity on the left.")
