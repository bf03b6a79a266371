"""From report text to findings: class names, rule-based labelers, adapters for trained ones."""

from __future__ import annotations

from radweave.core.ontology import CHEXPERT5, CHEXPERT14, CLASSES, CT18, NIH14, NO_FINDING
from radweave.labels.labeler import BLANK, Labeler, Mention
from radweave.labels.registry import LABELER_OF, get_labeler, label_set_of

__all__ = [
    "BLANK",
    "CHEXPERT5",
    "CHEXPERT14",
    "CLASSES",
    "CT18",
    "LABELER_OF",
    "NIH14",
    "NO_FINDING",
    "Labeler",
    "Mention",
    "get_labeler",
    "label_set_of",
]
