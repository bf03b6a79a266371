"""Whether a sentence compares with an earlier examination: thirty sentences of our own that do, thirty that do not."""

from __future__ import annotations

import pytest

from radweave.labels.comparisons import compares_with_prior

COMPARES = (
    # sameness
    "The same small nodule projects over the left apex.", "There is the same blunting of the right angle.",
    "Appearance of the chest is identical.", "The cardiac size is about the same.", "Static appearance of the scar.",
    "Once more, a faint opacity is shown.", "The heart is as large as it was.", "A fracture is again seen.",
    # change
    "Insignificantly changed.", "Barely changed left effusion.", "The consolidation is fainter.",
    "The interstitial edema has become milder.", "Considerably larger left effusion.", "The hilar mass is 4 mm larger.",
    "Right basal opacity is now less evident.", "There is less pulmonary edema.", "More pleural fluid.",
    "Markedly decreased right pleural effusion.", "The infiltrate is slightly decreased.",
    "Slow deterioration of both lungs.",
    # up and down, and an end
    "Heart size went up.", "The effusions came down.", "The edema has subsided.", "The left base has cleared.",
    "Both infiltrates shrank.", "The pneumothorax has vanished.",
    # an earlier examination, a device
    "The rib lesion was already visible.", "Formerly there was a drain on the left.",
    "The catheter was pulled.", "The left drain is out.",
)  # fmt: skip
STATES = (
    "Remains of contrast in the colon.", "Old healed fracture of the left clavicle.", "Residual scarring at the apex.",
    "The opacity extends up to the hilum.", "The tube goes down into the stomach.", "Increased kyphosis.",
    "Increased interstitial markings at both bases.", "Decreased lung volumes.", "Bone density is decreased.",
    "Vascular markings are increased.", "Right effusion larger than the left one.", "Effusions, left more than right.",
    "The left hemidiaphragm is higher than the right.", "A more focal opacity at the left base.",
    "Nodules at the same level on both sides.", "The same holds for the left lung.",
    "No difference between the two sides.", "The nodule is better seen on the lateral view.",
    "The haze is more pronounced at the right base.", "Scarring, less marked on the left.",
    "Aortic valve was replaced surgically.", "Effusion is less likely than thickening.",
    "Degenerative changes of the spine.", "Postsurgical change in the right axilla.",
    "Recent fracture of the eighth rib.", "Known sarcoidosis.", "Enlarged heart with edema.",
    "One or more nodules on the right.", "The catheter continues to the superior vena cava.",
    "Smaller patients need less dose.",
)  # fmt: skip


def test_each_kind_has_thirty() -> None:
    assert (len({*COMPARES}), len({*STATES})) == (30, 30)


@pytest.mark.parametrize("sentence", COMPARES)
def test_a_sentence_that_compares(sentence: str) -> None:
    assert compares_with_prior(sentence)


@pytest.mark.parametrize("sentence", STATES)
def test_statements_without_comparison_are_recognised(sentence: str) -> None:
    assert not compares_with_prior(sentence)
