"""The best constant reports: what one report for everybody reaches that was chosen for one score alone.

Micro F1 of findings is beaten by whoever states the most frequent finding of everybody, and CIDEr by a well-worded
normal report; each of them is worth nothing by the other score. Both are chosen among training reports, on training
reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.study import Study
from radweave.evaluation.metrics.clinical import is_positive, states_of
from radweave.evaluation.metrics.pairwise import PairwiseWording
from radweave.evaluation.prepare import prepare_hypotheses
from radweave.evaluation.protocols import EvalProtocol
from radweave.labels import NO_FINDING, Labeler

FINDINGS, WORDING = "constant_findings", "constant_wording"
"""Names of the two floors: chosen for micro F1 of the findings, and for mean CIDEr + ROUGE-L."""
SOURCES = {
    FINDINGS: "the training report with the best micro F1 of findings on the training set",
    WORDING: "the training report with the best mean CIDEr + ROUGE-L on the training set",
}
MOST_REFERENCES, MOST_CANDIDATES, MOST_EQUALS = 2000, 4000, 200


def training_reports(studies: Iterable[Study]) -> tuple[str, ...]:
    """Reports of training studies, to choose a floor from.

    Raises:
        InputError: for a study of another split: a floor that has seen what it is scored on is none.
    """
    chosen = list(studies)
    for study in chosen:
        if study.split != "train":
            raise InputError(
                "a floor is chosen on training reports only", field="split", got=study.split, expected="train"
            )
    return tuple(study.report.strip() for study in chosen if study.report and study.report.strip())


def best_constants(train_texts: Sequence[str], protocol: EvalProtocol, labeler: Labeler | None) -> dict[str, str]:
    """Floor name -> report. Without a labeler, or without any finding, there is none for findings."""
    best = {WORDING: best_for_wording(train_texts, protocol)}
    findings = best_for_findings(train_texts, protocol, labeler) if labeler is not None else None
    return best | ({FINDINGS: findings} if findings is not None else {})


def best_for_findings(train_texts: Sequence[str], protocol: EvalProtocol, labeler: Labeler) -> str | None:
    """The report whose findings, stated of every training study, have the highest micro F1; the best worded of equals.

    None if no report states a finding.
    """
    counted = [number for number, name in enumerate(labeler.classes) if name != NO_FINDING]
    stated = is_positive(states_of(train_texts, labeler), "negative")[:, counted]
    scores = constant_f1(stated)
    if not scores.any():
        return None
    equal = list(dict.fromkeys(train_texts[row] for row in np.flatnonzero(scores == scores.max()).tolist()))
    return best_for_wording(train_texts, protocol, _spread(equal, MOST_EQUALS))


def constant_f1(stated: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Micro F1 (N,) of giving row n of ``stated`` (N, K) to all N studies."""
    frequency = stated.sum(axis=0)
    hits = stated @ frequency
    said = len(stated) * stated.sum(axis=1)
    return np.asarray(2 * hits / np.maximum(said + frequency.sum(), 1), dtype=np.float64)


def best_for_wording(
    train_texts: Sequence[str], protocol: EvalProtocol, candidates: Sequence[str] | None = None
) -> str:
    """The candidate with the highest mean CIDEr-D + ROUGE-L over the training reports, itself left out once.

    Of more than ``MOST_REFERENCES`` reports and ``MOST_CANDIDATES`` distinct ones, the most frequent are tried, then an
    even spread of the others.
    """
    references = _spread(train_texts, MOST_REFERENCES)
    counts = Counter(train_texts)
    if candidates is None:
        often = [text for text, count in counts.most_common(MOST_CANDIDATES // 2) if count > 1]
        known = set(often)
        candidates = [*often, *_spread([text for text in counts if text not in known], MOST_CANDIDATES - len(often))]
    words = [[text.split() for text in prepare_hypotheses(texts, protocol)] for texts in (candidates, references)]
    wording = PairwiseWording(*words)
    first = {text: row for row, text in reversed(list(enumerate(references)))}
    own = np.array([first.get(text, -1) for text in candidates])
    worth = np.zeros(len(candidates))
    for start in range(0, len(candidates), 256):
        rows = slice(start, min(start + 256, len(candidates)))
        utility = wording.cider(rows) + wording.rouge_l(rows)
        taken = own[rows] >= 0
        utility[np.flatnonzero(taken), own[rows][taken]] = 0
        worth[rows] = utility.sum(axis=1) / np.maximum(len(references) - taken, 1)
    return candidates[int(worth.argmax())]


def _spread(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of them, evenly spread."""
    return [texts[number * len(texts) // most] for number in range(most)] if len(texts) > most else list(texts)
