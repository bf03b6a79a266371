"""RadFact: a language model tells which sentences of a draft the reference supports, and the reverse.

Of the sentences of one report, held against the other report (precision: the draft's, recall: the reference's):

    RadFact           = supported / all
    RadFact_grounding = supported and boxes lie where those of the evidence do / supported with boxes
    RadFact_spatial   = the same / all with boxes

The evidence of a sentence are the sentences that support it. Boxes lie there if theirs cover more than half of their
area. Each score is the mean over studies that have a denominator.

Source: Bannur et al., "MAIRA-2: Grounded Radiology Report Generation", arXiv:2406.04449.

Deviations: sentences are those of the text, where the package of the authors lets a language model split it into
phrases of one finding; one question is asked about a pair of reports, in our words, where theirs asks about each
phrase; a box belongs to each sentence that states its label, by rules; areas are exact, not those of pixels. A
sentence that the answer leaves out is not supported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from radweave.core.study import FindingBox, LabelState
from radweave.data.boxes import covered_share
from radweave.labels import Labeler
from radweave.labels.text import sentences_by_part
from radweave.metrics.error_counts import ErrorCounter
from radweave.metrics.pairs import Pair
from radweave.metrics.statistics import Floats, Statistic, mean_statistic

KEYS: Final = ("RadFact_P", "RadFact_R")
OF_BOXES: Final = ("RadFact_grounding_P", "RadFact_spatial_P", "RadFact_grounding_R", "RadFact_spatial_R")
LEAST_COVERED: Final = 0.5
_SIDES: Final = ("draft", "reference")
_QUESTION: Final = (
    "Two reports of one chest examination follow, sentence by sentence. Tell of each sentence if the other report"
    " supports it: if all that it says of findings, their place, size and change follows from the other report. Name"
    " the sentences of the other report that this rests on. A sentence that the other report contradicts, or says"
    " nothing of, is not supported.\n\n"
)
_FORM: Final = (
    "\nAnswer with one JSON object and nothing else, with an entry for every sentence:\n"
    '{"draft": [{"sentence": 1, "supported": true, "evidence": [2]}, {"sentence": 2, "supported": false, "evidence":'
    ' []}], "reference": [{"sentence": 1, "supported": true, "evidence": [1]}]}\n'
)


def radfact_prompt(reference: str, draft: str) -> str:
    """The question about a pair of reports, with their sentences by number."""
    texts = dict(zip(_SIDES, (draft, reference), strict=True))
    lists = [
        f"Sentences of the {side}:\n" + "".join(f"{number}. {text}\n" for number, text in enumerate(split(report), 1))
        for side, report in texts.items()
    ]
    return _QUESTION + "\n".join(lists) + _FORM


def split(report: str) -> list[str]:
    """The sentences of a report."""
    return [text for _, text in sentences_by_part(report)]


Supported = Mapping[int, tuple[int, ...]]
"""Number of each supported sentence, from 1 -> numbers of its evidence in the other report."""


def read_answer(answer: str) -> tuple[Supported, Supported] | None:
    """The supported sentences of draft and reference; None for an answer without the form asked for."""
    match = re.search(r"\{.*\}", answer, re.DOTALL)
    try:
        record = json.loads(match.group() if match else answer)
        return _supported(record["draft"]), _supported(record["reference"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _supported(rows: Sequence[Mapping[str, Any]]) -> Supported:
    if not isinstance(rows, list):
        raise TypeError
    return {
        int(row["sentence"]): tuple(int(number) for number in row.get("evidence") or ())
        for row in rows
        if row["supported"] is True
    }


def is_usable(answer: str) -> float | None:
    """1 for an answer of the form asked for, None for any other, as ``ErrorCounter`` takes scores."""
    return None if read_answer(answer) is None else 1.0


def radfact_statistics(pairs: Sequence[Pair], counter: ErrorCounter, labeler: Labeler | None) -> dict[str, Statistic]:
    """The scores of pairs; those of boxes where a labeler reads which sentences they belong to and a pair has both.

    Of several references the best value of each score counts.

    Raises:
        InputError: as ``ErrorCounter.score``.
    """
    texts = [(pair.hyp, reference) for pair in pairs for reference in pair.refs]
    answers = iter(counter.score(texts).answers)
    keys = (*KEYS, *OF_BOXES)
    values = np.full((len(pairs), len(keys)), np.nan)
    for row, pair in enumerate(pairs):
        each = [_scores(pair, reference, next(answers), labeler) for reference in pair.refs]
        values[row] = np.fmax.reduce(each)
    boxed = labeler is not None and any(pair.boxes is not None and pair.ref_boxes is not None for pair in pairs)
    return {key: mean_statistic(values[:, column]) for column, key in enumerate(keys) if boxed or key in KEYS}


def _scores(pair: Pair, reference: str, answer: str, labeler: Labeler | None) -> Floats:
    """Values (6,) of ``KEYS`` and ``OF_BOXES`` for a draft and one reference, NaN where undefined."""
    read = read_answer(answer)
    if read is None:
        return np.full(len(KEYS) + len(OF_BOXES), np.nan)
    texts = split(pair.hyp), split(reference)
    placed = None
    if labeler is not None and pair.boxes is not None and pair.ref_boxes is not None:
        marked = zip(texts, (pair.boxes, pair.ref_boxes), strict=True)
        placed = [_boxes_of(own, boxes, labeler) for own, boxes in marked]
    shares, of_boxes = [], []
    for side, supported in enumerate(read):
        numbers = range(1, len(texts[side]) + 1)
        shares.append(_share(sum(number in supported for number in numbers), len(texts[side])))
        if placed is None:
            of_boxes += [np.nan, np.nan]
            continue
        own, others = placed[side], placed[1 - side]
        with_boxes = [number for number in numbers if own[number - 1]]
        right = sum(_lies_there(own[number - 1], supported.get(number, ()), others) for number in with_boxes)
        of_boxes += [_share(right, sum(number in supported for number in with_boxes)), _share(right, len(with_boxes))]
    return np.array([*shares, *of_boxes])


def _share(part: int, whole: int) -> float:
    return part / whole if whole else np.nan


def _boxes_of(texts: Sequence[str], boxes: Sequence[FindingBox], labeler: Labeler) -> list[list[tuple[float, ...]]]:
    """Boxes of each sentence: those of the classes that it affirms or leaves open."""
    stated = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    names = [{name for name, mention in read.items() if mention.state in stated} for read in labeler.label(texts)]
    return [[box.box for box in boxes if box.label in own] for own in names]


def _lies_there(
    boxes: Sequence[tuple[float, ...]], evidence: Sequence[int], others: Sequence[Sequence[tuple[float, ...]]]
) -> bool:
    """True if the boxes of the evidence cover more than half of these."""
    evidence_boxes = [box for number in evidence if 1 <= number <= len(others) for box in others[number - 1]]
    return covered_share(boxes, evidence_boxes) > LEAST_COVERED
