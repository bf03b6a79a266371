"""The clinical table as JSON values: all averages, both uncertain policies, every class, what is undefined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from radweave.base.study import LabelState
from radweave.evaluation.metrics.clinical import (
    AVERAGES,
    MEASURES,
    POLICIES,
    LabelledPairs,
    class_groups,
    class_scores,
    confusion_rows,
    is_positive,
)
from radweave.evaluation.protocols import EvalProtocol, UncertainPolicy
from radweave.evaluation.statistics import Interval, Statistic

POLICY_NAMES: dict[UncertainPolicy, str] = {"negative": "uncertain_as_negative", "positive": "uncertain_as_positive"}

Keyed = Mapping[tuple[str, str, str, str], Statistic]


def clinical_table(
    labelled: LabelledPairs, statistics: Keyed, intervals: Mapping[str, Interval], protocol: EvalProtocol
) -> dict[str, Any]:
    """Everything about the label agreement of one set of reports.

    The result holds ``policies`` -> policy -> ``groups`` -> group -> average -> measure, ``per_class`` and
    ``undefined``; ``marked`` names the average that the protocol's source prints.
    """
    marked = protocol.clinical
    return {
        "labeler": labelled.labeler,
        "labeler_kind": "rule-based" if labelled.labeler.startswith("rule-based") else "trained or given",
        "reference_labels": labelled.reference_source,
        "classes": list(labelled.classes),
        "marked": None
        if marked is None
        else {"average": marked.average, "policy": POLICY_NAMES[marked.uncertain], "group": "all"},
        "states": _state_counts(labelled),
        "policies": {POLICY_NAMES[policy]: _policy(labelled, statistics, intervals, policy) for policy in POLICIES},
    }


def _state_counts(labelled: LabelledPairs) -> dict[str, dict[str, int]]:
    names = [LabelState.BLANK, LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN]
    return {
        side: {str(name): int((states == number).sum()) for number, name in enumerate(names)}
        for side, states in (("generated", labelled.hyp), ("reference", labelled.ref))
    }


def _policy(
    labelled: LabelledPairs, statistics: Keyed, intervals: Mapping[str, Interval], policy: UncertainPolicy
) -> dict[str, Any]:
    per_class = _per_class(labelled, policy)
    undefined = {
        measure: [name for name, scores in per_class.items() if scores[measure] is None] for measure in MEASURES
    }
    groups = {
        group: {
            average: {measure: _score(statistics, intervals, (policy, group, average, measure)) for measure in MEASURES}
            for average in AVERAGES
        }
        for group in class_groups(labelled.classes)
    }
    return {
        "groups": groups,
        "per_class": per_class,
        "undefined": {measure: {"classes": names, "number": len(names)} for measure, names in undefined.items()},
    }


def sided_table(statistics: Mapping[str, Statistic], intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """Agreement on (finding, side): what a swap of left and right changes although every label stays."""
    scores = {m: _value(statistic, intervals.get(f"CE/sided/{m}")) for m, statistic in statistics.items()}
    meaning = "findings with a side, pooled over studies: a finding on the other side is a miss and an invention"
    return {**scores, "meaning": meaning}


def _score(statistics: Keyed, intervals: Mapping[str, Interval], key: tuple[str, str, str, str]) -> dict[str, Any]:
    return _value(statistics[key], intervals.get(f"CE/{'/'.join(key)}"))


def _value(statistic: Statistic, interval: Interval | None) -> dict[str, Any]:
    value = statistic.corpus()
    bounds = None if interval is None or interval.low is None else [interval.low, interval.high]
    return {"value": None if np.isnan(value) else value, "interval": bounds}


def _per_class(labelled: LabelledPairs, policy: UncertainPolicy) -> dict[str, dict[str, Any]]:
    """Class -> scores, ``support`` (positives of the reference), ``predicted``, ``both``; None where 0/0."""
    sums = confusion_rows(is_positive(labelled.hyp, policy), is_positive(labelled.ref, policy)).sum(axis=0)
    scores = class_scores(sums)
    width = len(labelled.classes)
    tp, fp, fn = sums[:width], sums[width : 2 * width], sums[2 * width :]
    return {
        name: {
            **{m: None if np.isnan(scores[m][i]) else float(scores[m][i]) for m in MEASURES},
            "support": int(tp[i] + fn[i]),
            "predicted": int(tp[i] + fp[i]),
            "both": int(tp[i]),
        }
        for i, name in enumerate(labelled.classes)
    }
