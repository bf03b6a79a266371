"""Sides and lobes leave every sentence but those that only deny."""

from __future__ import annotations

import pytest

from radweave.drafting.candidates import clean_sentence
from radweave.labels import get_labeler
from radweave.labels.contradictions import names_place


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
