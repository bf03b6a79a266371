"""Several training seeds of two systems: mean, standard deviation, two-sided Welch t-test.

The published table that this follows (Tian et al., "DiffVP", arXiv:2603.17718, Table 5) says "two-sided t-test" over
five seeds; its p-values are those of Welch's test (unequal variances) on its printed scores, and its standard
deviations have n - 1 below (ddof 1). What a seed varies must be said by whoever reports it; that table's seeds vary
the pairing at test time, not the training. A seed test says nothing about other test sets (see ``significance``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from radweave.base.errors import InputError
from radweave.evaluation.significance import holm
from radweave.evaluation.statistics import Floats

TEST = "two-sided Welch t-test"
DDOF = 1
# Relative spread below which scores differ by rounding alone.
_NO_SPREAD = 1e-12


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """One metric over seeds of systems A and B; ``difference`` is mean B minus mean A.

    ``p`` is None with a reason in ``note`` where the test is undefined.
    """

    metric: str
    a_scores: tuple[float, ...]
    b_scores: tuple[float, ...]
    a_mean: float
    a_std: float
    b_mean: float
    b_std: float
    difference: float
    p: float | None
    p_holm: float | None = None
    note: str | None = None


def compare_seeds(
    a: Sequence[Mapping[str, float | None]], b: Sequence[Mapping[str, float | None]]
) -> list[SeedComparison]:
    """Compare corpus scores (metric -> value, one mapping per seed) of two systems.

    Raises:
        InputError: with fewer than two seeds of a system.
    """
    for name, runs in (("first", a), ("second", b)):
        if len(runs) < 2:
            raise InputError(f"the {name} system needs several seeds", got=len(runs), expected="2 or more")
    comparisons = []
    for metric in a[0]:
        first = [value for run in a if (value := run.get(metric)) is not None]
        second = [value for run in b if (value := run.get(metric)) is not None]
        if len(first) == len(a) and len(second) == len(b):
            comparisons.append(_compare_metric(metric, first, second))
    by_holm = holm([comparison.p for comparison in comparisons])
    return [replace(comparison, p_holm=p) for comparison, p in zip(comparisons, by_holm, strict=True)]


def _welch_p_value(a: Floats, b: Floats) -> float:
    """Two-sided p-value of Welch's test (1947), with Satterthwaite's degrees of freedom."""
    from scipy.stats import t

    variances = np.array([a.var(ddof=1) / a.size, b.var(ddof=1) / b.size])
    statistic = (b.mean() - a.mean()) / np.sqrt(variances.sum())
    freedom = variances.sum() ** 2 / (variances**2 / np.array([a.size - 1, b.size - 1])).sum()
    return float(2.0 * t.sf(abs(statistic), freedom))


def _compare_metric(metric: str, a: Sequence[float], b: Sequence[float]) -> SeedComparison:
    first, second = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    stds = float(first.std(ddof=DDOF)), float(second.std(ddof=DDOF))
    p: float | None = None
    note = None
    if max(stds) <= _NO_SPREAD * max(abs(first.mean()), abs(second.mean())):
        note = "undefined: the scores do not vary over seeds"
    else:
        p = _welch_p_value(first, second)
    return SeedComparison(
        metric=metric,
        a_scores=tuple(a),
        b_scores=tuple(b),
        a_mean=float(first.mean()),
        a_std=stds[0],
        b_mean=float(second.mean()),
        b_std=stds[1],
        difference=float(second.mean() - first.mean()),
        p=p,
        note=note,
    )
