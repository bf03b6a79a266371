"""Temporal F1: agreement of a draft with its reference on the words of change.

Source: Zhang et al., "Libra: Leveraging Temporal Images for Biomedical Radiology Analysis", 2024, the temporal entity
F1, with the words of Bannur et al., "Learning to Exploit Temporal Structure for Biomedical Vision-Language Processing",
CVPR 2023, as the RadEval package 2.2.1 computes it. With D and R the sets of words of draft and reference,

    F1 = 2 P R / (P + R + e),   P = (|D & R| + e) / (|D| + e),   R = (|D & R| + e) / (|R| + e),   e = 1e-10

1 where both sets are empty, e where only the reference's is; of several references the words are united.

Deviations: the package also asks an entity tagger for words of the same list, which can only find what its own cleaning
glues together ("worse/new"); only words are read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHANGE_WORDS: Final = frozenset({
    "bigger", "change", "cleared", "constant", "decrease", "decreased", "decreasing", "elevated", "elevation",
    "enlarged", "enlargement", "enlarging", "expanded", "greater", "growing", "improved", "improvement",
    "improving", "increase", "increased", "increasing", "larger", "new", "persistence", "persistent",
    "persisting", "progression", "progressive", "reduced", "removal", "resolution", "resolved", "resolving",
    "smaller", "stability", "stable", "stably", "unaltered", "unchanged", "unfolded", "worse", "worsen",
    "worsened", "worsening",
})  # fmt: skip
_EPSILON: Final = 1e-10
_APART: Final = re.compile(r"[\n_-]+")
_DROPPED: Final = re.compile(r"[^\w\s.,:;()]")
_WORD: Final = re.compile(r"\b(?:" + "|".join(sorted(CHANGE_WORDS, key=len, reverse=True)) + r")\b")


def change_words(text: str) -> frozenset[str]:
    """The words of change in a text; hyphens part words, other marks within a word are dropped."""
    return frozenset(_WORD.findall(_DROPPED.sub("", _APART.sub(" ", text)).lower()))


def temporal_f1(drafts: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Temporal F1 (N,) of N drafts, each with its references."""
    scores = np.empty(len(drafts))
    words: dict[str, frozenset[str]] = {}
    for study, (draft, group) in enumerate(zip(drafts, references, strict=True)):
        for text in (draft, *group):
            if text not in words:
                words[text] = change_words(text)
        scores[study] = _f1(words[draft], frozenset[str]().union(*(words[text] for text in group)))
    return scores


def _f1(draft: frozenset[str], reference: frozenset[str]) -> float:
    if not reference:
        return _EPSILON if draft else 1.0
    common = len(draft & reference) + _EPSILON
    precision, recall = common / (len(draft) + _EPSILON), common / (len(reference) + _EPSILON)
    return 2.0 * precision * recall / (precision + recall + _EPSILON)
