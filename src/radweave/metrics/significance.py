"""Significance tests of two systems: paired bootstrap and approximate randomisation over studies, Welch over seeds.

Both tests over studies recompute the corpus score in every resample from summed rows. P-values are (b + 1) / (R + 1),
never 0 (Davison and Hinkley, 1997, ch. 4). Randomisation: Noreen, 1989, as Riezler and Maxwell, 2005, use it. They
generalise to other studies of this kind, and not to other training seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.metrics.catalogue import METRICS
from radweave.metrics.protocols import ClinicalRule
from radweave.metrics.records import ClinicalKey
from radweave.metrics.result import Evaluation
from radweave.metrics.statistics import (
    RESAMPLES,
    Floats,
    Rows,
    Statistic,
    cluster_index,
    percentiles,
    resampled_weights,
)

# Rounding in summed rows must not make a tie look smaller than the observed difference.
_ROUNDING = 1e-12
_CHUNK = 100

Clusters = NDArray[np.int64]
TESTED_FINDINGS = ("CE_F1", "CE_F1_macro", "CE_F1_macro_5", "CE_F1_example")
OF_PRIORS = ("CE_with_prior_F1", "new_R", "resolved_R", "changed_F1")
"""The scores beside priors that are tested (``radweave.metrics.priors``)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of systems A and B: ``difference`` is B minus A, ``low`` and ``high`` its 95 % bootstrap interval.

    P-values are two-sided; ``p_holm`` and ``p_bh`` correct ``p_randomisation`` over the declared family (Holm primary,
    Benjamini-Hochberg exploratory). None where a test is undefined, with the reason in ``note``.
    """

    metric: str
    a: float | None
    b: float | None
    difference: float | None
    low: float | None = None
    high: float | None = None
    p_bootstrap: float | None = None
    p_randomisation: float | None = None
    p_holm: float | None = None
    p_bh: float | None = None
    note: str | None = None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (1979); undefined entries stay undefined and do not count."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[i] = largest
    return corrected


def benjamini_hochberg(p_values: Sequence[float | None]) -> list[float | None]:
    """Benjamini and Hochberg's step-up correction (1995); undefined entries stay undefined and do not count."""
    from scipy.stats import false_discovery_control

    corrected = iter(false_discovery_control([p for p in p_values if p is not None]).tolist())
    return [None if p is None else next(corrected) for p in p_values]


def marked_rule(evaluation: Evaluation) -> ClinicalRule:
    """The clinical average that the protocol's source prints; the micro average of a protocol that names none."""
    return evaluation.protocol.rules.clinical or ClinicalRule()


def compared_statistics(evaluation: Evaluation) -> dict[str, Statistic]:
    """The metrics that are tested: F1 of the findings, the clinical average over all classes that the protocol's source
    prints if it prints one, language, and where there are priors F1 of the findings beside them, recall of new and of
    resolved ones, and F1 of changed cells.
    """
    of_findings = {key: METRICS[key].statistic({}, evaluation.clinical_statistics) for key in TESTED_FINDINGS}
    findings = {key: statistic for key, statistic in of_findings.items() if statistic is not None}
    rule = evaluation.protocol.rules.clinical
    printed = None if rule is None else ClinicalKey(rule.uncertain, "all", rule.average, "f1")
    tested = {METRICS[key].clinical_key(evaluation.clinical_statistics) for key in findings}
    if printed is not None and printed in evaluation.clinical_statistics and printed not in tested:
        findings[f"CE_{printed.average}_F1"] = evaluation.clinical_statistics[printed]
    sided = {"CE_sided_findings_F1": evaluation.sided_statistics["f1"]}
    priors = {key: evaluation.prior_statistics[key] for key in OF_PRIORS if key in evaluation.prior_statistics}
    return {**findings, **evaluation.statistics, **sided, **priors}


def compare(a: Evaluation, b: Evaluation, *, resamples: int = RESAMPLES, seed: int = 0) -> list[Difference]:
    """Test B against A on the studies they share, which must be all.

    Raises:
        InputError: if the studies, the protocols or the reports of prior studies differ.
    """
    _check_comparable(a, b)
    place = {study: i for i, study in enumerate(b.study_ids)}
    order = [place[study] for study in a.study_ids]
    left, right = compared_statistics(a), compared_statistics(b)
    shared = [name for name in left if name in right]
    clusters = cluster_index(a.patients)
    tested = {name: _Paired(left[name], right[name].rows[order]) for name in shared}
    differences = _test(tested, clusters, resamples, seed)
    return corrected(differences)


def _check_comparable(a: Evaluation, b: Evaluation) -> None:
    if a.protocol.hash != b.protocol.hash:
        raise InputError(
            "the two results were scored by different protocols",
            field="protocol",
            got=" and ".join(f"{result.protocol.name} {result.protocol.hash[:8]}" for result in (a, b)),
        )
    only_a, only_b = set(a.study_ids) - set(b.study_ids), set(b.study_ids) - set(a.study_ids)
    if only_a or only_b:
        raise InputError(
            "the two results are not about the same studies",
            field="study_id",
            got=f"{len(only_a)} only in the first, {len(only_b)} only in the second (first: {min(only_a | only_b)})",
        )
    if dict(zip(a.study_ids, a.patients, strict=True)) != dict(zip(b.study_ids, b.patients, strict=True)):
        raise InputError("the two results assign the studies to different patients", field="patient_id")
    refuse_other_priors(a, b)


def refuse_other_priors(a: Evaluation, b: Evaluation) -> None:
    """Refuse results whose scores beside priors are over other studies, or from other findings of the priors.

    Raises:
        InputError: if both have reports of prior studies, and these differ.
    """
    if a.priors is None or b.priors is None:
        return
    first = dict(zip(a.study_ids, a.priors.findings, strict=True))
    second = dict(zip(b.study_ids, b.priors.findings, strict=True))
    differing = [study for study in first if first[study] != second[study]]
    if differing:
        raise InputError(
            "the two results have other reports of prior studies",
            field="prior_report",
            got=f"{len(differing)} of {len(first)} studies differ (first: {min(differing)})",
            expected="the same in both, or none in one",
        )


@dataclass(frozen=True, slots=True)
class _Paired:
    """A metric's rows of both systems in the same order of studies."""

    first: Statistic
    second_rows: Rows

    def values(self) -> tuple[float, float]:
        return self.first.corpus(), float(self.first.value(self.second_rows.sum(axis=0, dtype=np.float64)))


def _test(tested: Mapping[str, _Paired], clusters: Clusters, resamples: int, seed: int) -> list[Difference]:
    observed = {name: paired.values() for name, paired in tested.items()}
    if int(clusters.max()) < 1:
        note = "tests undefined: one study or one patient only"
        return [_difference(name, *values, note=note) for name, values in observed.items()]
    if resamples < 1:
        raise InputError("a comparison needs resamples", field="resamples", got=resamples, expected="1 or more")
    drawn: dict[str, list[Floats]] = {name: [] for name in tested}
    for weights in resampled_weights(clusters, resamples, seed):
        for name, paired in tested.items():
            value = paired.first.value
            drawn[name].append(value(weights @ paired.second_rows) - value(weights @ paired.first.rows))
    swapped = _swapped(tested, clusters, resamples, seed)
    results = []
    for name, (a, b) in observed.items():
        if np.isnan(a) or np.isnan(b):
            results.append(_difference(name, a, b, note="undefined for at least one system"))
            continue
        bootstrap = np.concatenate(drawn[name])
        low, high = percentiles(bootstrap) or (None, None)
        results.append(
            replace(
                _difference(name, a, b),
                low=low,
                high=high,
                p_bootstrap=resampled_p_value(bootstrap - (b - a), b - a),
                p_randomisation=resampled_p_value(swapped[name], b - a),
            )
        )
    return results


def _swapped(tested: Mapping[str, _Paired], clusters: Clusters, resamples: int, seed: int) -> dict[str, Floats]:
    """Differences (R,) after exchanging the two systems' outputs for a random half of the units."""
    generator = np.random.default_rng([seed, 1])
    units = int(clusters.max()) + 1
    differences: dict[str, list[Floats]] = {name: [] for name in tested}
    for start in range(0, resamples, _CHUNK):
        flips = generator.integers(0, 2, size=(min(_CHUNK, resamples - start), units))[:, clusters].astype(np.float64)
        for name, paired in tested.items():
            moved = flips @ (paired.second_rows - paired.first.rows)
            value = paired.first.value
            first = value(paired.first.sums() + moved)
            second = value(paired.second_rows.sum(axis=0, dtype=np.float64) - moved)
            differences[name].append(second - first)
    return {name: np.concatenate(chunks) for name, chunks in differences.items()}


def resampled_p_value(null: Floats, observed: float) -> float:
    """Two-sided: share of null differences at least as large, never 0; an undefined one counts as large."""
    extreme = np.isnan(null) | (np.abs(null) >= abs(observed) - _ROUNDING)
    return (int(extreme.sum()) + 1) / (null.size + 1)


def _difference(metric: str, a: float, b: float, note: str | None = None) -> Difference:
    first, second = (None if np.isnan(value) else float(value) for value in (a, b))
    gap = None if first is None or second is None else second - first
    return Difference(metric, first, second, gap, note=note)


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Correct the randomisation p-values over all given differences, which are the family."""
    p_values = [difference.p_randomisation for difference in differences]
    return [
        replace(difference, p_holm=by_holm, p_bh=by_bh)
        for difference, by_holm, by_bh in zip(differences, holm(p_values), benjamini_hochberg(p_values), strict=True)
    ]


# Several training seeds of two systems: mean, standard deviation, two-sided Welch t-test.
#
# The published table that this follows (Tian et al., "DiffVP", arXiv:2603.17718, Table 5) says "two-sided t-test" over
# five seeds; its p-values are those of Welch's test (unequal variances) on its printed scores, and its standard
# deviations have n - 1 below (ddof 1). That table's seeds vary the pairing at test time, not the training. A test over
# seeds says nothing about other test sets.

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


def _compare_metric(metric: str, a: Sequence[float], b: Sequence[float]) -> SeedComparison:
    from scipy.stats import ttest_ind_from_stats

    (a_mean, b_mean), (a_std, b_std) = zip(
        *((float(np.mean(scores)), float(np.std(scores, ddof=DDOF))) for scores in (a, b)), strict=True
    )
    p, note = None, None
    if max(a_std, b_std) <= _NO_SPREAD * max(abs(a_mean), abs(b_mean)):
        note = "undefined: the scores do not vary over seeds"
    else:
        p = float(ttest_ind_from_stats(a_mean, a_std, len(a), b_mean, b_std, len(b), equal_var=False).pvalue)
    return SeedComparison(
        metric=metric,
        a_scores=tuple(a),
        b_scores=tuple(b),
        a_mean=a_mean,
        a_std=a_std,
        b_mean=b_mean,
        b_std=b_std,
        difference=b_mean - a_mean,
        p=p,
        note=note,
    )
