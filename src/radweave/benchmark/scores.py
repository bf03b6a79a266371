"""Scores of a method over its seeds, resampled over studies, and tested against others.

Two questions, two tests. Over seeds: would another training give the same? (Welch's test, from the ablation's record.)
Over studies: would other studies? Here studies are drawn anew, a patient's together, 10,000 times, the same draw for
every method and seed; each draw gives every seed's corpus score, and their mean is the method's. A difference that
holds must hold in both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radweave.ablate.one_run import named_statistics, summary
from radweave.base.errors import InputError
from radweave.contract.tables import METRICS
from radweave.evaluation import Evaluation, Options, evaluate_pairs, read_pairs
from radweave.evaluation.floors import shuffled_pairing
from radweave.evaluation.pairs import Pair
from radweave.evaluation.significance import holm
from radweave.evaluation.statistics import Floats, Statistic, cluster_index, resampled_weights
from radweave.evaluation.systems import FLOOR_NAMES
from radweave.labels import Labeler

ALPHA = 0.05
DRAWS = 10_000
"""Resamples: the least p-value is 1 in 10,001, so that after Holm over a hundred cells one of .01 can be reached."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How predictions are scored: protocol, labeler, training reports (for a protocol's vocabulary), patients."""

    protocol: str
    labeler: Labeler
    train_texts: tuple[str, ...]
    patients: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Contrast:
    """One metric of a method against another system: means' difference, interval over studies and p-values.

    ``p_studies`` is two-sided from the resamples, ``p_holm`` after Holm over all methods and metrics of the table;
    ``p_seeds`` Welch's over seeds. None where a test is undefined.
    """

    difference: float
    low: float | None
    high: float | None
    p_studies: float | None
    p_seeds: float | None = None
    p_holm: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it holds over studies, corrected, and over seeds where the other system has any."""
        over_seeds = self.p_seeds is None or self.p_seeds < ALPHA
        return self.p_holm is not None and self.p_holm < ALPHA and over_seeds


@dataclass(frozen=True, slots=True)
class SystemScores:
    """A system's evaluations, one per seed (a floor has one), and the draws (R,) of each metric."""

    evaluations: tuple[Evaluation, ...]
    values: Mapping[str, tuple[float | None, ...]]
    draws: Mapping[str, Floats]

    @property
    def study_ids(self) -> tuple[str, ...]:
        return self.evaluations[0].study_ids

    def by_seed(self) -> list[dict[str, float | None]]:
        """The corpus scores of each seed."""
        return [{name: values[place] for name, values in self.values.items()} for place in range(len(self.evaluations))]

    def mean(self, metric: str) -> float | None:
        values = [value for value in self.values.get(metric, ()) if value is not None]
        return float(np.mean(values)) if values and len(values) == len(self.values[metric]) else None

    def std(self, metric: str) -> float | None:
        values = [value for value in self.values.get(metric, ()) if value is not None]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def interval(self, metric: str) -> tuple[float, float] | None:
        """95 % over studies, of the mean over seeds."""
        return _interval(self.draws[metric]) if metric in self.draws else None


def read_run(folder: Path, scoring: Scoring) -> list[Pair]:
    """The predictions of a run with the patients of its studies."""
    pairs = read_pairs(folder / "predictions.jsonl", skip_invalid=True).pairs
    return [dataclasses.replace(pair, patient_id=scoring.patients.get(pair.study_id)) for pair in pairs]


def score_system(runs: Sequence[Sequence[Pair]], scoring: Scoring, *, resamples: int = DRAWS) -> SystemScores:
    """Evaluate a system's predictions of all seeds.

    Raises:
        InputError: if the seeds are not about the same studies.
    """
    options = Options(meteor=False, floors=False, resamples=0)
    evaluations = tuple(
        evaluate_pairs(
            pairs, scoring.protocol, labeler=scoring.labeler, train_texts=scoring.train_texts, options=options
        )
        for pairs in runs
    )
    for evaluation in evaluations:
        if evaluation.study_ids != evaluations[0].study_ids:
            raise InputError("runs of one data set are not about the same studies", field="study_id")
    values: dict[str, tuple[float | None, ...]] = {}
    summaries = [summary(evaluation) for evaluation in evaluations]
    for name in METRICS:
        values[name] = tuple(found.get(name) for found in summaries)
    return SystemScores(evaluations, values, _draws(evaluations, resamples) if resamples else {})


def _draws(evaluations: Sequence[Evaluation], resamples: int) -> dict[str, Floats]:
    """Metric -> mean over seeds in each resample (R,)."""
    clusters: NDArray[np.int64] = cluster_index(evaluations[0].patients)
    if int(clusters.max()) < 1:
        return {}
    seeds: list[dict[str, Statistic]] = [named_statistics(evaluation) for evaluation in evaluations]
    drawn: dict[str, list[Floats]] = {name: [] for name in seeds[0]}
    for weights in resampled_weights(clusters, resamples, seed=0):
        for name, chunks in drawn.items():
            chunks.append(np.mean([seed[name].value(weights @ seed[name].rows) for seed in seeds], axis=0))
    return {name: np.concatenate(chunks) for name, chunks in drawn.items()}


def floor_systems(pairs: Sequence[Pair], scoring: Scoring) -> dict[str, SystemScores]:
    """The floors that came with the predictions, scored like a method."""
    systems = {}
    for key, name in FLOOR_NAMES.items():
        if all(key in pair.floors for pair in pairs):
            systems[name] = score_system([[dataclasses.replace(pair, hyp=pair.floors[key]) for pair in pairs]], scoring)
    return systems


def shuffled_system(name: str, pairs: Sequence[Pair], scoring: Scoring) -> dict[str, SystemScores]:
    """A system's reports given to other studies, scored like a method: what its wording scores without its eyes."""
    texts = shuffled_pairing(pairs, seed=0).texts
    if texts is None:
        return {}
    moved = [dataclasses.replace(pair, hyp=text) for pair, text in zip(pairs, texts, strict=True)]
    return {f"{name}'s reports, given to other studies": score_system([moved], scoring)}


def compare(
    systems: Mapping[str, SystemScores],
    other: SystemScores,
    metrics: Sequence[str],
    p_seeds: Mapping[tuple[str, str], float | None] | None = None,
) -> dict[tuple[str, str], Contrast]:
    """(system, metric) -> its difference to ``other``; Holm over all of them. Systems on other studies are left out."""
    found: dict[tuple[str, str], Contrast] = {}
    for name, system in systems.items():
        if system.study_ids != other.study_ids:
            continue
        for metric in metrics:
            ours, theirs = system.mean(metric), other.mean(metric)
            if ours is None or theirs is None:
                continue
            tested = Contrast(ours - theirs, None, None, None, (p_seeds or {}).get((name, metric)))
            if metric in system.draws and metric in other.draws:
                draws = system.draws[metric] - other.draws[metric]
                low, high = _interval(draws) or (None, None)
                tested = dataclasses.replace(tested, low=low, high=high, p_studies=_p_value(draws, ours - theirs))
            found[name, metric] = tested
    corrected = holm([tested.p_studies for tested in found.values()])
    return {
        key: dataclasses.replace(tested, p_holm=p) for (key, tested), p in zip(found.items(), corrected, strict=True)
    }


def _interval(draws: Floats) -> tuple[float, float] | None:
    defined = draws[~np.isnan(draws)]
    if defined.size == 0:
        return None
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


def _p_value(draws: Floats, observed: float) -> float:
    """Two-sided: the share of draws that lie as far from the difference found as nothing does; never 0."""
    far = np.isnan(draws) | (np.abs(draws - observed) >= abs(observed) - 1e-12)
    return (int(far.sum()) + 1) / (draws.size + 1)
