"""The clinical table: all averages, both uncertain policies, every class, what is undefined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from radweave.base.study import LabelState
from radweave.evaluation.metrics.clinical import (
    AVERAGES,
    FEWEST_POSITIVES,
    POLICIES,
    LabelledPairs,
    class_scores,
    confusion_rows,
    frequent_columns,
    groups_of,
    is_positive,
)
from radweave.evaluation.protocols import Average, EvalProtocol, UncertainPolicy
from radweave.evaluation.records import (
    MEASURES,
    ClassGroup,
    ClinicalAverage,
    ClinicalKey,
    Estimate,
    Json,
    Measure,
    PrecisionRecall,
    number_or_none,
)
from radweave.evaluation.statistics import Interval, Statistic
from radweave.labels import NO_FINDING

PolicyName = Literal["uncertain_as_negative", "uncertain_as_positive"]
POLICY_NAMES: dict[UncertainPolicy, PolicyName] = {
    "negative": "uncertain_as_negative",
    "positive": "uncertain_as_positive",
}
StateCounts = Mapping[str, int]
Averages = Mapping[ClinicalAverage, PrecisionRecall]


@dataclass(frozen=True, slots=True)
class MarkedAverage:
    """The average that the protocol's source prints."""

    average: Average
    policy: PolicyName
    group: ClassGroup = "all"


@dataclass(frozen=True, slots=True)
class ClassScores:
    """One class: ``support`` positives of the reference, ``predicted`` of the report, ``both``; None where 0/0."""

    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int
    both: int


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """All scores with uncertain counted one way."""

    groups: Mapping[ClassGroup, Averages]
    per_class: Mapping[str, ClassScores]

    def undefined(self, measure: Measure) -> tuple[str, ...]:
        """Classes without a positive on the side or sides that the measure asks for."""
        return tuple(name for name, scores in self.per_class.items() if getattr(scores, measure) is None)

    def to_json(self) -> Json:
        undefined = {measure: list(self.undefined(measure)) for measure in MEASURES}
        return {
            "groups": {group: averages_json(averages) for group, averages in self.groups.items()},
            "per_class": {name: asdict(scores) for name, scores in self.per_class.items()},
            "undefined": {measure: {"classes": names, "number": len(names)} for measure, names in undefined.items()},
        }


@dataclass(frozen=True, slots=True)
class ClinicalTable:
    """Everything about the label agreement of one set of reports; ``states`` counts them on each side."""

    labeler: str
    labeler_kind: Literal["rule-based", "trained or given"]
    reference_labels: str
    classes: tuple[str, ...]
    marked: MarkedAverage | None
    states: Mapping[Literal["generated", "reference"], StateCounts]
    policies: Mapping[PolicyName, PolicyTable]
    frequent: tuple[str, ...]

    @property
    def asserted(self) -> tuple[str, ...]:
        """The findings that any report asserts at all."""
        scores = self.policies["uncertain_as_negative"].per_class
        return tuple(name for name, one in scores.items() if one.predicted and name != NO_FINDING)

    def to_json(self) -> Json:
        return {
            "labeler": self.labeler,
            "labeler_kind": self.labeler_kind,
            "reference_labels": self.reference_labels,
            "classes": list(self.classes),
            "marked": None if self.marked is None else asdict(self.marked),
            "states": {side: dict(counts) for side, counts in self.states.items()},
            "frequent": {"positives": FEWEST_POSITIVES, "number": len(self.frequent), "classes": list(self.frequent)},
            "asserted": self._asserted_json(),
            "policies": {policy: table.to_json() for policy, table in self.policies.items()},
        }

    def _asserted_json(self) -> Json:
        findings = [name for name in self.classes if name != NO_FINDING]
        said = list(self.asserted)
        return {"classes": said, "number": len(said), "of": len(findings), "share": len(said) / len(findings)}


@dataclass(frozen=True, slots=True)
class SidedTable:
    """Agreement on (finding, side): what a swap of left and right changes although every label stays."""

    scores: PrecisionRecall
    meaning: str = "findings with a side, pooled over studies: a finding on the other side is a miss and an invention"

    def to_json(self) -> Json:
        return {**self.scores.to_json(), "meaning": self.meaning}


def averages_json(averages: Averages) -> Json:
    return {average: scores.to_json() for average, scores in averages.items()}


def clinical_table(
    labelled: LabelledPairs,
    statistics: Mapping[ClinicalKey, Statistic],
    intervals: Mapping[str, Interval],
    protocol: EvalProtocol,
) -> ClinicalTable:
    """The label agreement from its statistics and the intervals by name (``interval_name``)."""
    rule = protocol.clinical
    estimates = {
        key: Estimate.of(statistic, intervals.get(interval_name(key))) for key, statistic in statistics.items()
    }
    return ClinicalTable(
        labeler=labelled.labeler,
        labeler_kind="rule-based" if labelled.labeler.startswith("rule-based") else "trained or given",
        reference_labels=labelled.reference_source,
        classes=labelled.classes,
        marked=None if rule is None else MarkedAverage(rule.average, POLICY_NAMES[rule.uncertain]),
        states=_state_counts(labelled),
        frequent=tuple(labelled.classes[k] for k in frequent_columns(labelled)),
        policies={POLICY_NAMES[policy]: _policy(labelled, estimates, policy) for policy in POLICIES},
    )


def interval_name(key: ClinicalKey) -> str:
    """The name under which the interval of a clinical score is drawn beside those of the other metrics."""
    return f"CE/{key.name}"


def _state_counts(labelled: LabelledPairs) -> dict[Literal["generated", "reference"], StateCounts]:
    names = [LabelState.BLANK, LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN]
    generated, reference = (
        {str(name): int((states == number).sum()) for number, name in enumerate(names)}
        for states in (labelled.hyp, labelled.ref)
    )
    return {"generated": generated, "reference": reference}


def _policy(labelled: LabelledPairs, estimates: Mapping[ClinicalKey, Estimate], policy: UncertainPolicy) -> PolicyTable:
    def scores(group: ClassGroup, average: ClinicalAverage) -> PrecisionRecall:
        return PrecisionRecall.of(lambda measure: estimates[ClinicalKey(policy, group, average, measure)])

    groups = {group: {average: scores(group, average) for average in AVERAGES} for group in groups_of(labelled)}
    return PolicyTable(groups, _per_class(labelled, policy))


def sided_table(statistics: Mapping[Measure, Statistic], intervals: Mapping[str, Interval]) -> SidedTable:
    """The agreement on sides from its statistics and the intervals by name (``sided_interval_name``)."""
    return SidedTable(PrecisionRecall.of(lambda m: Estimate.of(statistics[m], intervals.get(sided_interval_name(m)))))


def sided_interval_name(measure: Measure) -> str:
    return f"CE/sided/{measure}"


def _per_class(labelled: LabelledPairs, policy: UncertainPolicy) -> dict[str, ClassScores]:
    sums = confusion_rows(is_positive(labelled.hyp, policy), is_positive(labelled.ref, policy)).sum(
        axis=0, dtype=np.float64
    )
    scores = class_scores(sums)
    width = len(labelled.classes)
    tp, fp, fn = sums[:width], sums[width : 2 * width], sums[2 * width :]
    return {
        name: ClassScores(
            precision=number_or_none(scores["precision"][i]),
            recall=number_or_none(scores["recall"][i]),
            f1=number_or_none(scores["f1"][i]),
            support=int(tp[i] + fn[i]),
            predicted=int(tp[i] + fp[i]),
            both=int(tp[i]),
        )
        for i, name in enumerate(labelled.classes)
    }
