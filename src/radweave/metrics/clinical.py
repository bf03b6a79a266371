"""Clinical efficacy: agreement of the generated report's findings with those of the reference.

Papers print one number called "F1" that may be any of the averages here, with uncertain mentions counted either way. On
the same labels these numbers differ by a factor, so all of them are computed, and the protocol marks its source's one.

An average follows the papers (sklearn) in taking 0/0 as 0; ``macro_defined`` leaves undefined classes out instead. A
class without a positive on either side is undefined, not 0: its values are NaN and it is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.labels import CHEXPERT5, NO_FINDING, Labeler
from radweave.metrics.pairs import Pair
from radweave.metrics.protocols import UncertainPolicy
from radweave.metrics.records import MEASURES, ClassGroup, ClinicalAverage, ClinicalKey, Measure
from radweave.metrics.statistics import Floats, Rows, Statistic, mean_statistic

States = NDArray[np.int8]

STATE_NUMBERS = {LabelState.BLANK: 0, LabelState.POSITIVE: 1, LabelState.NEGATIVE: 2, LabelState.UNCERTAIN: 3}
_POSITIVE, _UNCERTAIN = STATE_NUMBERS[LabelState.POSITIVE], STATE_NUMBERS[LabelState.UNCERTAIN]
# When several references disagree, the strongest statement holds.
_PRECEDENCE = (LabelState.POSITIVE, LabelState.UNCERTAIN, LabelState.NEGATIVE)

POLICIES: tuple[UncertainPolicy, ...] = ("negative", "positive")
AVERAGES: tuple[ClinicalAverage, ...] = ("micro", "macro", "macro_defined", "weighted", "example")
FEWEST_POSITIVES = 5
"""Positive references that a class needs to count in a mean over classes; with fewer, F1 is mostly noise."""
_TEXTS_AT_A_TIME = 4096
_POOLED: tuple[ClinicalAverage, ...] = ("micro", "macro", "macro_defined", "weighted")


@dataclass(frozen=True, slots=True)
class LabelledPairs:
    """Label states of both sides, (N, K) with columns in the order of ``classes``."""

    classes: tuple[str, ...]
    hyp: States
    ref: States
    labeler: str
    reference_source: str


def label_pairs(pairs: Sequence[Pair], labeler: Labeler) -> LabelledPairs:
    """Label both sides; hand-set reference labels are taken where every pair has them.

    Raises:
        InputError: if hand-set labels do not name exactly the labeler's classes, or only some pairs have them.
    """
    classes = labeler.classes
    hyp = states_of([pair.hyp for pair in pairs], labeler)
    with_labels = sum(pair.labels is not None for pair in pairs)
    if with_labels == len(pairs):
        hand_set = [_hand_set_states(pair, classes) for pair in pairs]
        return LabelledPairs(
            classes, hyp, np.array(hand_set, dtype=np.int8), _identity(labeler), "given with the pairs"
        )
    if with_labels:
        raise InputError(
            "only some pairs carry labels", field="labels", got=f"{with_labels} of {len(pairs)}", expected="all or none"
        )
    each = states_of([ref for pair in pairs for ref in pair.refs], labeler)
    ref = np.zeros_like(hyp)
    first = 0
    for study, pair in enumerate(pairs):
        group = each[first : first + len(pair.refs)]
        for state in reversed(_PRECEDENCE):
            ref[study, (group == STATE_NUMBERS[state]).any(axis=0)] = STATE_NUMBERS[state]
        first += len(pair.refs)
    return LabelledPairs(classes, hyp, ref, _identity(labeler), f"{_identity(labeler)} on the reference text")


def _identity(labeler: Labeler) -> str:
    return f"{labeler.name} {labeler.version}"


def states_of(texts: Sequence[str], labeler: Labeler) -> States:
    """Label texts (N,) -> states (N, K); equal texts are read once."""
    numbers: dict[str, int] = {}
    place = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    distinct = list(numbers)
    rows = np.zeros((len(distinct), len(labeler.classes)), dtype=np.int8)
    # A few at a time: the labels of a text take more memory than the text.
    for first in range(0, len(distinct), _TEXTS_AT_A_TIME):
        for row, mentions in enumerate(labeler.label(distinct[first : first + _TEXTS_AT_A_TIME]), start=first):
            rows[row] = [STATE_NUMBERS[mentions[name].state] for name in labeler.classes]
    return np.asarray(rows[place], dtype=np.int8)


def _hand_set_states(pair: Pair, classes: Sequence[str]) -> list[int]:
    labels: Mapping[str, LabelState] = pair.labels or {}
    if set(labels) != set(classes):
        odd = sorted(set(labels) ^ set(classes))
        raise InputError(
            "labels do not name the classes of the label set",
            file=f"study {pair.study_id}",
            field="labels",
            got=f"missing or unknown: {', '.join(odd[:5])}",
            expected=", ".join(classes),
        )
    return [STATE_NUMBERS[labels[name]] for name in classes]


def is_positive(states: States, uncertain: UncertainPolicy) -> NDArray[np.bool_]:
    """Binary view of label states: uncertain counts as positive or as negative."""
    positive = states == _POSITIVE
    return np.asarray(positive | (states == _UNCERTAIN) if uncertain == "positive" else positive)


def class_groups(classes: Sequence[str]) -> dict[ClassGroup, list[int]]:
    """Sets of columns that averages are taken over: all, without No Finding, the five of the CheXpert competition."""
    groups: dict[ClassGroup, list[int]] = {"all": list(range(len(classes)))}
    if NO_FINDING in classes:
        groups["without_no_finding"] = [i for i, name in enumerate(classes) if name != NO_FINDING]
    if set(CHEXPERT5) <= set(classes):
        groups["chexpert5"] = [classes.index(name) for name in CHEXPERT5]
    return groups


def groups_of(labelled: LabelledPairs) -> dict[ClassGroup, list[int]]:
    """``class_groups``, and ``frequent``: the findings with enough positive references for a mean over classes."""
    frequent = frequent_columns(labelled)
    return {**class_groups(labelled.classes), **({"frequent": frequent} if frequent else {})}


def frequent_columns(labelled: LabelledPairs) -> list[int]:
    """The columns of findings with ``FEWEST_POSITIVES`` or more positive references; uncertain is negative."""
    positives = is_positive(labelled.ref, "negative").sum(axis=0)
    return [k for k, name in enumerate(labelled.classes) if name != NO_FINDING and positives[k] >= FEWEST_POSITIVES]


def confusion_rows(hyp: NDArray[np.bool_], ref: NDArray[np.bool_]) -> NDArray[np.int8]:
    """True positives, false positives, false negatives per study and class, (N, K) each, side by side (N, 3K)."""
    return np.concatenate([hyp & ref, hyp & ~ref, ~hyp & ref], axis=1).astype(np.int8)


def _split(sums: Floats) -> tuple[Floats, Floats, Floats]:
    width = sums.shape[-1] // 3
    return sums[..., :width], sums[..., width : 2 * width], sums[..., 2 * width :]


def _ratio(above: Floats, below: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(below > 0, above / below, np.nan))


def _measure(tp: Floats, fp: Floats, fn: Floats, measure: Measure) -> Floats:
    """Precision, recall or F1 (2 TP / (2 TP + FP + FN)); NaN where 0/0."""
    if measure == "precision":
        return _ratio(tp, tp + fp)
    if measure == "recall":
        return _ratio(tp, tp + fn)
    return _ratio(2.0 * tp, 2.0 * tp + fp + fn)


def class_scores(sums: Floats) -> dict[Measure, Floats]:
    """Precision, recall, F1 of each class (K,) from summed confusion rows (3K,)."""
    return {measure: _measure(*_split(sums), measure) for measure in MEASURES}


def _average_of(average: ClinicalAverage, measure: Measure) -> Callable[[Floats], Floats]:
    def value(sums: Floats) -> Floats:
        tp, fp, fn = _split(sums)
        if average == "micro":
            return _measure(tp.sum(axis=-1), fp.sum(axis=-1), fn.sum(axis=-1), measure)
        each = _measure(tp, fp, fn, measure)
        if average == "macro":
            return np.asarray(np.nan_to_num(each).mean(axis=-1))
        if average == "macro_defined":
            return _ratio(np.nansum(each, axis=-1), (~np.isnan(each)).sum(axis=-1).astype(np.float64))
        support = tp + fn
        return _ratio((np.nan_to_num(each) * support).sum(axis=-1), support.sum(axis=-1))

    return value


def average_statistics(rows: Rows) -> dict[tuple[ClinicalAverage, Measure], Statistic]:
    """Every (average, measure) of one group of classes as a statistic over studies; rows (N, 3K)."""
    tp, fp, fn = (part.sum(axis=-1, dtype=np.float64) for part in np.split(rows, 3, axis=-1))
    statistics: dict[tuple[ClinicalAverage, Measure], Statistic] = {}
    for measure in MEASURES:
        # A report positive on neither side counts 0 in an example average, as in the published scripts.
        example = np.nan_to_num(_measure(tp, fp, fn, measure))
        statistics["example", measure] = mean_statistic(example)
        for average in _POOLED:
            statistics[average, measure] = Statistic(rows, _average_of(average, measure), example)
    return statistics


def pooled_statistics(rows: Rows) -> dict[Measure, Statistic]:
    """Precision, recall and F1 pooled over all studies, from each one's true and false positives, misses (N, 3)."""
    return {measure: average_statistics(rows)["micro", measure] for measure in MEASURES}


def clinical_statistics(labelled: LabelledPairs) -> dict[ClinicalKey, Statistic]:
    """Every clinical score as a statistic over studies."""
    statistics: dict[ClinicalKey, Statistic] = {}
    for policy in POLICIES:
        hyp, ref = is_positive(labelled.hyp, policy), is_positive(labelled.ref, policy)
        for group, columns in groups_of(labelled).items():
            rows = confusion_rows(hyp[:, columns], ref[:, columns])
            for (average, measure), statistic in average_statistics(rows).items():
                statistics[ClinicalKey(policy, group, average, measure)] = statistic
    return statistics


def crg_statistic(labelled: LabelledPairs) -> Statistic:
    """Clinically relevant gain of all studies and classes but No Finding; uncertain counts as negative.

        CRG = U / (2U - s),   U = (X - A) / 2,   s = r TP - r FN - FP,   r = (X - A) / (2A)

    X counts the labels (studies times classes), A the positive ones of the references. A correct report of everything
    has 1, one of nothing 1/3. NaN where A is 0.

    Source: Hamamci et al., "CRG Score: A Distribution-Aware Clinical Metric", arXiv:2505.17167, as the evaluation of
    the VLM3D challenge computes it.
    """
    groups = class_groups(labelled.classes)
    columns = groups.get("without_no_finding", groups["all"])
    hyp, ref = (is_positive(side[:, columns], "negative") for side in (labelled.hyp, labelled.ref))
    counts = [(hyp & ref).sum(axis=1), (hyp & ~ref).sum(axis=1), (~hyp & ref).sum(axis=1)]
    rows = np.stack([*counts, np.full(len(hyp), len(columns))], axis=1).astype(np.float64)
    return Statistic(rows, _crg, _crg(rows))


def _crg(sums: Floats) -> Floats:
    tp, fp, fn, labels = (sums[..., column] for column in range(4))
    positives = tp + fn
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = (labels - positives) / 2.0
        ratio = gain / positives
        below = 2.0 * gain - (ratio * (tp - fn) - fp)
        # Nothing to gain where every label is positive: 0, as there.
        return np.asarray(np.where(positives == 0, np.nan, np.where(below == 0, 0.0, gain / below)))
