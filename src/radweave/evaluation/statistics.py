"""Metrics as sufficient statistics: a row of sums per study, and a formula from summed rows to the score.

Every corpus score here is a function of sums over studies (BLEU: matches, candidates and lengths; a mean: values and
a count; F1: true and false positives). Resampling then is one matrix product, and a resampled BLEU is computed anew
rather than averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 1000
_CHUNK_RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Statistic:
    """One metric of N studies.

    Attributes:
        rows: (N, D) what each study adds to the sums.
        value: (..., D) summed rows -> (...) scores; NaN where undefined.
        per_study: (N,) the score of each study by itself; NaN where there is none.
    """

    rows: Floats
    value: Callable[[Floats], Floats]
    per_study: Floats

    def corpus(self) -> float:
        return float(self.value(self.rows.sum(axis=0)))


def mean_statistic(values: Floats) -> Statistic:
    """The mean over studies of one value per study (N,); studies where it is NaN do not count."""
    defined = ~np.isnan(values)
    rows = np.stack([np.where(defined, values, 0.0), defined.astype(np.float64)], axis=1)
    return Statistic(rows, _ratio_of_sums, values)


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


def cluster_index(patients: Sequence[str | None]) -> NDArray[np.int64]:
    """Number the resampling units (N,): a patient's studies share one, a study without patient stands alone."""
    numbers: dict[str, int] = {}
    units = [f"patient {patient}" if patient is not None else f"study {i}" for i, patient in enumerate(patients)]
    return np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.int64)


def resampled_weights(clusters: NDArray[np.int64], resamples: int, seed: int) -> Iterator[Floats]:
    """Yield chunks (r, N) of how often each study is drawn; units are drawn whole, with replacement."""
    generator = np.random.default_rng(seed)
    units = int(clusters.max()) + 1
    for start in range(0, resamples, _CHUNK_RESAMPLES):
        size = min(_CHUNK_RESAMPLES, resamples - start)
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
        defined = drawn[~np.isnan(drawn)]
        if defined.size == 0:
            intervals[name] = Interval(None, None, "undefined in every resample")
            continue
        low, high = np.quantile(defined, [tail, 1.0 - tail])
        missing = drawn.size - defined.size
        partial = f"undefined in {missing} of {drawn.size} resamples" if missing else None
        intervals[name] = Interval(float(low), float(high), partial)
    return intervals
