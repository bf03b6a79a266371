"""Scores by how frequent the classes are in training: the long tail.

The classes are ordered by their positives in the *training* split and cut into thirds: head, middle, tail. A method
against imbalance must show its gain in the tail; an average over all studies is nearly all head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.ontology import CLASSES
from radweave.core.study import LabelState, Study
from radweave.labels import NO_FINDING, Labeler
from radweave.metrics.clinical import (
    POLICIES,
    LabelledPairs,
    average_statistics,
    confusion_rows,
    is_positive,
    states_of,
)
from radweave.metrics.protocols import UncertainPolicy
from radweave.metrics.records import MEASURES, ClinicalAverage, Estimate, Json, Measure, PrecisionRecall
from radweave.metrics.statistics import Statistic, bootstrap
from radweave.metrics.tables import POLICY_NAMES, Averages, PolicyName, averages_json

Third = Literal["head", "middle", "tail"]
GROUPS: tuple[Third, ...] = ("head", "middle", "tail")
GROUP_AVERAGES: tuple[ClinicalAverage, ...] = ("macro", "macro_defined", "micro")


class ThirdKey(NamedTuple):
    """Key of a score of a third of the classes."""

    policy: UncertainPolicy
    third: Third
    average: ClinicalAverage
    measure: Measure

    @property
    def name(self) -> str:
        return "/".join(self)


@dataclass(frozen=True, slots=True)
class ClassFrequencies:
    """Number of training studies that are positive for each class; uncertain counts as not."""

    positives: Mapping[str, int]
    studies: int
    source: str

    def groups(self) -> dict[Third, tuple[str, ...]]:
        """Thirds of the classes by frequency, the most frequent first; equal counts in the order of the classes.

        No Finding stands for the absence of the others and is in no group. Where the number of classes is no multiple
        of three, the head is the larger.
        """
        ordered = sorted((name for name in self.positives if name != NO_FINDING), key=lambda n: -self.positives[n])
        parts = np.array_split(np.arange(len(ordered)), len(GROUPS))
        return {group: tuple(ordered[i] for i in part) for group, part in zip(GROUPS, parts, strict=True)}

    def to_json(self) -> Json:
        """Counts and shares, the most frequent class first."""
        ordered = sorted(self.positives, key=lambda name: -self.positives[name])
        return {
            "studies": self.studies,
            "labels": self.source,
            "classes": {
                name: {"positives": self.positives[name], "share": self.positives[name] / self.studies}
                for name in ordered
            },
        }


@dataclass(frozen=True, slots=True)
class LongTailTable:
    """Scores of head, middle and tail classes, for both uncertain policies.

    The classes one by one are in the clinical table.
    """

    training: ClassFrequencies
    groups: Mapping[Third, tuple[str, ...]]
    policies: Mapping[PolicyName, Mapping[Third, Averages]]

    def to_json(self) -> Json:
        return {
            "training": self.training.to_json(),
            "groups": {third: list(names) for third, names in self.groups.items()},
            "policies": {
                policy: {third: averages_json(averages) for third, averages in thirds.items()}
                for policy, thirds in self.policies.items()
            },
        }


def class_frequencies(studies: Iterable[Study], labeler: Labeler) -> ClassFrequencies:
    """Count the positives of each of the labeler's classes over the training studies.

    A study's own labels of that label set are taken; the labeler reads the report of a study that has none.

    Raises:
        InputError: if a study is not of the training split, or there is none to count.
    """
    label_set = next((name for name, classes in CLASSES.items() if set(classes) == set(labeler.classes)), "")
    positives = dict.fromkeys(labeler.classes, 0)
    own, texts = 0, []
    for study in studies:
        if study.split != "train":
            raise InputError(
                "frequencies come from the training split only", field="split", got=study.split, expected="train"
            )
        if label_set in study.labels:
            own += 1
            for name, state in study.labels[label_set].items():
                if name in positives:
                    positives[name] += state == LabelState.POSITIVE
        elif study.report:
            texts.append(study.report)
    if not own + len(texts):
        raise InputError("no training study with labels or a report", field="train-labels")
    counted = is_positive(states_of(texts, labeler), "negative").sum(axis=0) if texts else np.zeros(len(positives))
    for name, count in zip(labeler.classes, counted.tolist(), strict=True):
        positives[name] += int(count)
    parts = [f"labels of {own} studies"] * bool(own)
    parts += [f"{labeler.name} {labeler.version} on {len(texts)} reports"] * bool(texts)
    return ClassFrequencies(positives, own + len(texts), ", ".join(parts))


def long_tail_table(
    labelled: LabelledPairs,
    frequencies: ClassFrequencies,
    clusters: NDArray[np.int64],
    *,
    resamples: int,
    seed: int,
) -> LongTailTable:
    """Scores of the thirds with bootstrap intervals; None where 0/0.

    Raises:
        InputError: if the frequencies are of other classes.
    """
    if set(frequencies.positives) != set(labelled.classes):
        raise InputError("the training labels are of other classes than the labeler's", field="train-labels")
    groups = frequencies.groups()
    statistics: dict[ThirdKey, Statistic] = {}
    for policy in POLICIES:
        hyp, ref = is_positive(labelled.hyp, policy), is_positive(labelled.ref, policy)
        for third, names in groups.items():
            columns = [labelled.classes.index(name) for name in names]
            averages = average_statistics(confusion_rows(hyp[:, columns], ref[:, columns]))
            for average in GROUP_AVERAGES:
                for measure in MEASURES:
                    statistics[ThirdKey(policy, third, average, measure)] = averages[average, measure]
    named = {key.name: statistic for key, statistic in statistics.items()}
    intervals = bootstrap(named, clusters, resamples=resamples, seed=seed) if resamples else {}

    def scores(policy: UncertainPolicy, third: Third, average: ClinicalAverage) -> PrecisionRecall:
        keys = {measure: ThirdKey(policy, third, average, measure) for measure in MEASURES}
        return PrecisionRecall.of(lambda m: Estimate.of(statistics[keys[m]], intervals.get(keys[m].name)))

    return LongTailTable(
        training=frequencies,
        groups=groups,
        policies={
            POLICY_NAMES[policy]: {
                third: {average: scores(policy, third, average) for average in GROUP_AVERAGES} for third in groups
            }
            for policy in POLICIES
        },
    )
