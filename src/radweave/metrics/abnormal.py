"""Language scores and findings F1 on the abnormal studies alone.

Normal reports are alike, and a score that counts equal phrases is high where there are many of them. CIDEr depends on
their share most: one system scores .72 on a test set of IU X-Ray with many normal studies, and .43 on one with fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.core.study import LabelState
from radweave.labels import NO_FINDING
from radweave.metrics.catalogue import METRICS
from radweave.metrics.clinical import STATE_NUMBERS, LabelledPairs, is_positive
from radweave.metrics.records import ClinicalKey, Json, Score
from radweave.metrics.statistics import Statistic, among

ABNORMAL_METRICS = tuple(key for key, metric in METRICS.items() if metric.in_benchmark and metric.clinical is None)
FINDINGS = "CE_F1"
"""Key of findings F1 among these scores."""


def abnormal_studies(labelled: LabelledPairs) -> NDArray[np.bool_]:
    """The studies (N,) whose reference is not normal: No Finding is not affirmed, or any finding is stated or open."""
    if NO_FINDING in labelled.classes:
        column = labelled.ref[:, labelled.classes.index(NO_FINDING)]
        return np.asarray(column != STATE_NUMBERS[LabelState.POSITIVE])
    return np.asarray(is_positive(labelled.ref, "positive").any(axis=1))


def abnormal_statistics(
    statistics: Mapping[str, Statistic], clinical: Mapping[ClinicalKey, Statistic], studies: NDArray[np.bool_]
) -> dict[str, Statistic]:
    """The statistics of the abnormal studies; document frequencies of CIDEr stay those of all studies."""
    chosen = {key: statistics[key] for key in ABNORMAL_METRICS if key in statistics}
    findings = METRICS[FINDINGS].statistic({}, clinical)
    if findings is not None:
        chosen[FINDINGS] = findings
    return among(chosen, studies)


def abnormal_interval_name(metric: str) -> str:
    """The name under which the interval is drawn beside those of the other metrics."""
    return f"abnormal/{metric}"


@dataclass(frozen=True, slots=True)
class AbnormalScores:
    """Scores over ``studies`` abnormal ones ``of`` all, and the same of each floor."""

    studies: int
    of: int
    labels: str
    corpus: Mapping[str, Score]
    floors: Mapping[str, Mapping[str, float | None]]

    @property
    def note(self) -> str:
        """A sentence to stand beside every CIDEr."""
        normal = self.of - self.studies
        text = (
            f"CIDEr depends on the share of normal studies: {normal} of {self.of} references are normal ({self.labels})"
        )
        return text + (f"; scores on the other {self.studies} keep the document frequencies of all" if normal else "")

    def to_json(self) -> Json:
        return {
            "studies": self.studies,
            "of": self.of,
            "labels": self.labels,
            "corpus": {name: score.to_json() for name, score in self.corpus.items()},
            "floors": {name: dict(scores) for name, scores in self.floors.items()},
            "note": self.note,
        }
