"""The records that results are made of. A record's ``to_json`` is the only place where it becomes values of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from radweave.metrics.protocols import UncertainPolicy
from radweave.metrics.statistics import Interval, Statistic

Json = dict[str, object]
ClassGroup = Literal["all", "without_no_finding", "chexpert5", "frequent"]
ClinicalAverage = Literal["micro", "macro", "macro_defined", "weighted", "example"]
Measure = Literal["precision", "recall", "f1"]
MEASURES: tuple[Measure, ...] = ("precision", "recall", "f1")


class ClinicalKey(NamedTuple):
    """Key of a clinical score: uncertain policy, group of classes, average and measure."""

    policy: UncertainPolicy
    group: ClassGroup
    average: ClinicalAverage
    measure: Measure

    @property
    def name(self) -> str:
        return "/".join(self)


FINDING_F1 = ClinicalKey("negative", "without_no_finding", "micro", "f1")
"""Micro F1 of the findings, No Finding left out, uncertain as negative."""


def number_or_none(value: float) -> float | None:
    """The value as JSON has it, where an undefined one is null."""
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value of a table with its 95 % interval; None where undefined or not asked for."""

    value: float | None
    bounds: tuple[float, float] | None

    @classmethod
    def of(cls, statistic: Statistic, interval: Interval | None) -> Estimate:
        return cls(number_or_none(statistic.corpus()), interval.bounds if interval is not None else None)

    def to_json(self) -> Json:
        return {"value": self.value, "interval": None if self.bounds is None else list(self.bounds)}


@dataclass(frozen=True, slots=True)
class PrecisionRecall:
    """Precision, recall and F1 of one average."""

    precision: Estimate
    recall: Estimate
    f1: Estimate

    @classmethod
    def of(cls, estimate: Callable[[Measure], Estimate]) -> PrecisionRecall:
        return cls(*(estimate(measure) for measure in MEASURES))

    def to_json(self) -> Json:
        return {measure: getattr(self, measure).to_json() for measure in MEASURES}


@dataclass(frozen=True, slots=True)
class Score:
    """A corpus score with its interval; ``unavailable`` gives the reason where there is no value."""

    value: float | None
    interval: Interval | None = None
    unavailable: str | None = None

    @classmethod
    def of_estimate(cls, estimate: Estimate, undefined: str) -> Score:
        """The score of an estimate; ``undefined`` is the reason where that has no value."""
        interval = Interval(*estimate.bounds) if estimate.bounds else None
        return cls(estimate.value, interval, undefined if estimate.value is None else None)

    def __str__(self) -> str:
        """As a table has it: ``0.3415 [0.289, 0.401]``; without a value, why there is none."""
        if self.value is None:
            return f"none: {self.unavailable}" if self.unavailable else "none"
        bounds = self.estimate.bounds
        return f"{self.value:.4f}" + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.value, self.interval.bounds if self.interval is not None else None)

    def to_json(self) -> Json:
        record = self.estimate.to_json()
        if self.interval is not None and self.interval.note:
            record["interval_note"] = self.interval.note
        if self.unavailable:
            record["unavailable"] = self.unavailable
        return record


@dataclass(frozen=True, slots=True)
class FloorScores:
    """Source and scores of a baseline's reports; ``corpus`` is None where there are no reports.

    ``clinical`` has the clinical scores by their keys in the catalogue, empty without a label set. ``findings_f1`` is
    micro, uncertain as negative, No Finding left out; None without a label set.
    """

    source: str
    distinct_reports_share: float | None = None
    corpus: dict[str, float | None] | None = None
    findings_f1: float | None = None
    clinical: Mapping[str, float | None] = field(default_factory=dict)

    def score(self, metric: str) -> float | None:
        """The score of a metric, by its key in the catalogue; None where it has none."""
        return (self.corpus or {}).get(metric, self.clinical.get(metric))

    def to_json(self) -> Json:
        if self.corpus is None:
            return {"source": self.source, "corpus": None}
        return {
            "source": self.source,
            "distinct_reports_share": self.distinct_reports_share,
            "corpus": self.corpus,
            "findings_f1": self.findings_f1,
            "clinical": dict(self.clinical),
        }


@dataclass(frozen=True, slots=True)
class Resampling:
    """Settings of the intervals: ``units`` are drawn with replacement, ``resamples`` times."""

    unit: Literal["study", "patient"]
    units: int
    resamples: int
    seed: int
    method: str = "percentile bootstrap, 95 %, document frequencies of CIDEr kept fixed"

    def to_json(self) -> Json:
        return {
            "method": self.method,
            "unit": self.unit,
            "units": self.units,
            "resamples": self.resamples,
            "seed": self.seed,
        }
