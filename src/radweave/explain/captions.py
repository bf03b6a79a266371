"""What the figures of a page mean that are no maps: each says what it is of, in which unit, and what it does not say.

Maps have their captions in ``base/map_kinds.py``, which methods name in their evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RECALLED: Final[Mapping[str, str]] = {
    "report": "A report: the whole text that a study has in the training split. Its scores say how alike the"
    " images are, or how much it counted; not that this patient has what it says.",
    "sentence": "A sentence from a training report, chosen for this image or for one finding of it. Its scores"
    " say how near it is or how much it counted; not that it is true here.",
    "region": "A region: a cell of another patient's image, from where the activation of a finding was strongest"
    ' there. "activation" is a share of that image\'s own peak, "weight" the share of the memory\'s attention that'
    " it got. It is no place in the image of this study.",
    "image": 'An image that this one was compared with. "squared distance" adds up over the latent tokens and has'
    " no unit; a large one is no abnormality.",
    "volume": 'A scan that this one was compared with. "squared distance" adds up over the latent tokens and has'
    " no unit; a large one is no abnormality.",
}
"""Kind of a recalled case -> what it is. Of a kind that is not here the page says nothing."""

OTHERS: Final[Mapping[str, str]] = {
    "auxiliary_probabilities": "Probabilities, 0 to 1, of a second head that helps in training. Nothing is"
    " decided by them, and they are not calibrated.",
    "token_importance": "Squared distance of each latent token from the same token of the reference. No unit;"
    " tokens are no places in the image, their order means nothing.",
    "top_8_share": "Share, 0 to 1, of that distance which the eight farthest tokens hold: near 1 where few tokens"
    " differ.",
    "disease_states": "The most probable of four states of each class. It is decided by comparing the four, not"
    " by the thresholds above.",
    "routing": "Weights, 0 to 1, of the attention masks of each layer: how far around a place was looked, not where.",
    "fusion": "Share, 0 to 1, of each class in the fused token, and how much of the decoder's input is of"
    " classes, not of patches. It does not say that a class is there.",
    "familiarity": "How like the training images each view is: 0 is typical, lower is stranger; below the two"
    " thresholds it is doubted or refused. It does not say that a draft of a familiar image is right.",
    "expected_utility": "What the chosen draft is expected to score by wording and by findings, if the"
    ' probabilities above are right; "asserted" are the findings that it was made to state.',
    "contradictions": "Sentences of the draft that cannot all be true, by rules: what one states and another denies.",
    "marks_removed": "Sentences that were taken out because they held marks of de-identification.",
}
"""Key of evidence that has no table of its own -> what it is."""

SOURCES: Final = (
    "The probability that each source of evidence gives to a finding by itself, times (x) its weight where their"
    " log-odds are added up. Weights say how much a source counts, for all studies alike; a weight below 0 corrects"
    " another source. Neither says where in the image anything is, nor that a source is right here."
)
CHANGES: Final = (
    "Whether the report of the study before affirms a finding, and the probability, in percent, of what became of it"
    " since, from both studies. It is of the model's reading of both, and measures no size."
)
