"""Metrics as sufficient statistics: a row of sums per study, and a formula from summed rows to the score.

Every corpus score here is a function of sums over studies (BLEU: matches, candidates and lengths; a mean: values and
a count; F1: true and false positives). Resampling then is one matrix product, and a resampled BLEU is computed anew
rather than averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.float64] | NDArray[np.int8]

RESAMPLES = 1000
# Resamples that are weighed at a time, of so many studies at most: a weight takes 8 bytes, and is held three times.
_CHUNK_RESAMPLES, _CHUNK_WEIGHTS = 100, 5_000_000


@dataclass(frozen=True, slots=True)
class Statistic:
    """One metric of N studies.

    Attributes:
        rows: (N, D) what each study adds to the sums; of yes and no, one byte each.
        value: (..., D) summed rows -> (...) scores; NaN where undefined.
        per_study: (N,) the score of each study by itself; NaN where there is none.
    """

    rows: Rows
    value: Callable[[Floats], Floats]
    per_study: Floats

    def corpus(self) -> float:
        return float(self.value(self.sums()))

    def sums(self) -> Floats:
        """The rows (D,) of all studies together."""
        return np.asarray(self.rows.sum(axis=0, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class ExternalScores:
    """Statistics by metric from an outside program or network, with its version."""

    statistics: dict[str, Statistic]
    version: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The reason why an outside program or network gives no scores."""

    reason: str


def mean_statistic(values: Floats) -> Statistic:
    """The mean over studies of one value per study (N,); studies where it is NaN do not count."""
    defined = ~np.isnan(values)
    rows = np.stack([np.where(defined, values, 0.0), defined.astype(np.float64)], axis=1)
    return Statistic(rows, _ratio_of_sums, values)


def concatenated(parts: Sequence[Mapping[str, Statistic]]) -> dict[str, Statistic]:
    """The statistics of parts of a set of studies, one after another, as those of the set.

    Metrics that share their rows in the parts share them here.
    """
    rows: dict[int, Rows] = {}
    whole = {}
    for name, first in parts[0].items():
        if id(first.rows) not in rows:
            rows[id(first.rows)] = np.concatenate([part[name].rows for part in parts])
        per_study = np.concatenate([part[name].per_study for part in parts])
        whole[name] = Statistic(rows[id(first.rows)], first.value, per_study)
    return whole


def among(statistics: Mapping[str, Statistic], studies: NDArray[np.bool_]) -> dict[str, Statistic]:
    """The statistics of some of the studies (N,): the others stay in place and add nothing, so that resamples agree."""
    rows = {id(statistic.rows): statistic.rows for statistic in statistics.values()}
    masked = {key: np.where(studies[:, None], own, np.zeros((), own.dtype)) for key, own in rows.items()}
    return {
        name: Statistic(masked[id(one.rows)], one.value, np.where(studies, one.per_study, np.nan))
        for name, one in statistics.items()
    }


class RunningSums:
    """The corpus scores of a set of studies that is seen in parts; nothing is kept of a study."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Callable[[Floats], Floats], Floats]] = {}

    def add(self, part: Mapping[str, Statistic], among: NDArray[np.bool_] | None = None) -> None:
        """Count the studies of a part, or those ``among`` them (N,)."""
        for name, statistic in part.items():
            so_far = self._sums[name][1] if name in self._sums else 0.0
            sums = statistic.sums() if among is None else statistic.rows[among].sum(axis=0, dtype=np.float64)
            self._sums[name] = statistic.value, np.asarray(so_far + sums)

    def corpus(self) -> dict[str, float]:
        """Metric -> score of all studies."""
        return {name: float(value(sums)) for name, (value, sums) in self._sums.items()}


def _ratio_of_sums(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile interval. ``low`` and ``high`` are None, with the reason in ``note``, where it is undefined."""

    low: float | None
    high: float | None
    note: str | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


def wilson_interval(hits: int, trials: int) -> tuple[float, float] | None:
    """95 % interval of a share; None without trials.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927. By hand, so that a
    page of evidence loads no scipy.stats; SciPy's ``proportion_ci`` gives the same within 4e-16.
    """
    if trials == 0:
        return None
    z = 1.959963984540054
    share = hits / trials
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    # At a share of exactly 0 or 1 the formula reaches the end up to rounding.
    return (0.0 if hits == 0 else centre - half, 1.0 if hits == trials else centre + half)


def percentiles(draws: Floats, low: float = 0.025, high: float = 0.975) -> tuple[float, float] | None:
    """Percentile interval of the defined draws; None without any."""
    defined = draws[~np.isnan(draws)]
    if not defined.size:
        return None
    lower, upper = np.quantile(defined, [low, high])
    return float(lower), float(upper)


def cluster_index(patients: Sequence[str | None]) -> NDArray[np.int64]:
    """Number the resampling units (N,): a patient's studies share one, a study without patient stands alone."""
    numbers: dict[str, int] = {}
    units = [f"patient {patient}" if patient is not None else f"study {i}" for i, patient in enumerate(patients)]
    return np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.int64)


def resampled_weights(clusters: NDArray[np.int64], resamples: int, seed: int) -> Iterator[Floats]:
    """Yield chunks (r, N) of how often each study is drawn; units are drawn whole, with replacement."""
    generator = np.random.default_rng(seed)
    units = int(clusters.max()) + 1
    most = min(_CHUNK_RESAMPLES, max(1, _CHUNK_WEIGHTS // len(clusters)))
    for start in range(0, resamples, most):
        size = min(most, resamples - start)
        drawn = generator.multinomial(units, np.full(units, 1.0 / units), size=size)
        yield drawn[:, clusters].astype(np.float64)


def bootstrap(
    statistics: dict[str, Statistic],
    clusters: NDArray[np.int64],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Percentile bootstrap intervals by study (or patient), the same resamples for every metric.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13. Quantiles are numpy's linear ones.
    """
    if not statistics:
        return {}
    if int(clusters.max()) < 1:
        note = "undefined: one study or one patient only"
        return dict.fromkeys(statistics, Interval(None, None, note))
    values: dict[str, list[Floats]] = {name: [] for name in statistics}
    for weights in resampled_weights(clusters, resamples, seed):
        # Metrics that share their rows (BLEU-1 to -4, the clinical averages) share the product as well.
        sums = {id(statistic.rows): statistic.rows for statistic in statistics.values()}
        products = {key: weights @ rows for key, rows in sums.items()}
        for name, statistic in statistics.items():
            values[name].append(statistic.value(products[id(statistic.rows)]))
    tail = (1.0 - level) / 2.0
    intervals = {}
    for name, chunks in values.items():
        drawn = np.concatenate(chunks)
        bounds = percentiles(drawn, tail, 1.0 - tail)
        if bounds is None:
            intervals[name] = Interval(None, None, "undefined in every resample")
            continue
        missing = int(np.isnan(drawn).sum())
        partial = f"undefined in {missing} of {drawn.size} resamples" if missing else None
        intervals[name] = Interval(*bounds, partial)
    return intervals


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """A bin of the reliability curve: ``count`` cases, their mean probability and the frequency of the finding.

    ``low`` is the smallest probability among them.
    """

    probability: float
    frequency: float
    count: int
    low: float

    def to_json(self) -> dict[str, float]:
        return {"said": self.probability, "seen": self.frequency, "count": self.count, "low": self.low}


def reliability(probabilities: Floats, labels: Floats, *, num_bins: int = 10) -> list[ReliabilityBin]:
    """Bins of equal count over the probabilities (N,) of one class; ties stay together, so that there may be fewer."""
    if not len(probabilities):
        return []
    # Bins by rank; equal probabilities share the rank of the first of them.
    bins = np.searchsorted(np.sort(probabilities), probabilities) * num_bins // len(probabilities)
    return [
        ReliabilityBin(
            float(probabilities[own].mean()), float(labels[own].mean()), int(own.sum()), float(probabilities[own].min())
        )
        for own in (bins == number for number in np.unique(bins))
    ]
