"""Ranking and calibration of drafts' probabilities, and F1 of the heads beside that of the draft.

AUROC and average precision measure how well probabilities rank the studies of a class, at any threshold. The expected
calibration error is their distance from observed frequencies. F1 of the heads, at the thresholds stored with the
drafts, is that of a draft which states exactly the heads' findings. The table gives the share of it that drafts reach.

Sources: Hanley and McNeil, Radiology 1982 (AUROC); Davis and Goadrich, ICML 2006 (average precision without
interpolation); Naeini, Cooper and Hauskrecht, AAAI 2015 (calibration error).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.labels import NO_FINDING
from radweave.metrics.clinical import FEWEST_POSITIVES, LabelledPairs, is_positive
from radweave.metrics.pairs import Pair
from radweave.metrics.records import Estimate, Json, number_or_none
from radweave.metrics.statistics import Floats, ReliabilityBin, percentiles, reliability, resampled_weights


def expected_calibration_error(probabilities: Floats, labels: Floats, *, num_bins: int = 10) -> float:
    """Mean distance between probability and frequency, over bins of equal count (N,).

    Source: Naeini, Cooper and Hauskrecht, AAAI 2015.
    """
    bins = reliability(probabilities, labels, num_bins=num_bins)
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.probability - one.frequency) for one in bins) / total if total else float("nan")


Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ClassRanking:
    """Values of one class; None with fewer than five positives or negatives, which are too few for an estimate.

    ``bins`` are the reliability curve of a calibrated class, ``calibration_error`` the error of that curve.
    """

    positives: int
    threshold: float | None
    auroc: Estimate
    average_precision: Estimate
    calibrated: bool
    calibration_error: float | None
    bins: tuple[ReliabilityBin, ...]

    def to_json(self) -> Json:
        return {
            "positives": self.positives,
            "threshold": self.threshold,
            "auroc": self.auroc.to_json(),
            "average_precision": self.average_precision.to_json(),
            "calibrated": self.calibrated,
            "calibration_error": self.calibration_error,
            "reliability": [one.to_json() for one in self.bins],
        }


@dataclass(frozen=True, slots=True)
class HeadTable:
    """All classes with probabilities in the drafts. No Finding is excluded from all means.

    ``heads_f1`` and ``draft_f1`` are over the same findings, micro and macro over those with five positives or more;
    ``share`` is draft over heads (micro). ``calibration_error`` pools all calibrated findings.
    """

    classes: Mapping[str, ClassRanking]
    calibrated_on: str | None
    micro_average_precision: Estimate
    heads_f1: float | None
    draft_f1: float | None
    heads_macro_f1: float | None
    draft_macro_f1: float | None
    calibration_error: float | None
    bins: tuple[ReliabilityBin, ...]

    @property
    def share(self) -> float | None:
        return self.draft_f1 / self.heads_f1 if self.draft_f1 is not None and self.heads_f1 else None

    def to_json(self) -> Json:
        return {
            "classes": {name: one.to_json() for name, one in self.classes.items()},
            "calibrated_on": self.calibrated_on,
            "micro_average_precision": self.micro_average_precision.to_json(),
            "heads_f1": self.heads_f1,
            "draft_f1": self.draft_f1,
            "draft_share_of_heads": self.share,
            "heads_macro_f1": self.heads_macro_f1,
            "draft_macro_f1": self.draft_macro_f1,
            "calibration_error": self.calibration_error,
            "reliability": [one.to_json() for one in self.bins],
        }


def head_table(
    pairs: Sequence[Pair], labelled: LabelledPairs, clusters: NDArray[np.int64], *, resamples: int, seed: int
) -> HeadTable | None:
    """The table of the classes with a probability in every draft; None without such a class."""
    optional = [pair.probabilities for pair in pairs]
    if any(one is None for one in optional):
        return None
    known = [one for one in optional if one is not None]
    names = [name for name in labelled.classes if all(name in one.values for one in known)]
    findings = [k for k, name in enumerate(names) if name != NO_FINDING]
    if not findings:
        return None
    columns = [labelled.classes.index(name) for name in names]
    probabilities = np.array([[one.values[name] for name in names] for one in known])
    cuts = np.array([[one.threshold(name) for name in names] for one in known])
    true = is_positive(labelled.ref, "negative")[:, columns]
    draft = is_positive(labelled.hyp, "negative")[:, columns]
    calibrated = [name for name in names if all(name in one.calibrated for one in known)]
    draws = _Draws(clusters, resamples, seed)
    counted = [k for k in findings if names[k] in calibrated]
    frequent = [k for k in findings if true[:, k].sum() >= FEWEST_POSITIVES]
    heads = probabilities >= cuts
    return HeadTable(
        classes={
            name: _ranking(
                probabilities[:, k],
                true[:, k],
                number_or_none(cuts[0, k]) if cuts[0, k] <= 1 else None,
                name in calibrated,
                draws,
            )
            for k, name in enumerate(names)
        },
        calibrated_on=known[0].split,
        micro_average_precision=draws.estimate(probabilities[:, findings], true[:, findings])[1],
        heads_f1=_f1(heads[:, findings], true[:, findings]),
        draft_f1=_f1(draft[:, findings], true[:, findings]),
        heads_macro_f1=_macro_f1(heads, true, frequent),
        draft_macro_f1=_macro_f1(draft, true, frequent),
        calibration_error=_error(probabilities[:, counted].ravel(), true[:, counted].ravel()),
        bins=tuple(reliability(probabilities[:, counted].ravel(), true[:, counted].ravel().astype(np.float64))),
    )


def _ranking(
    probabilities: Floats, true: Flags, threshold: float | None, calibrated: bool, draws: _Draws
) -> ClassRanking:
    positives = int(true.sum())
    enough = min(positives, len(true) - positives) >= FEWEST_POSITIVES
    nothing = Estimate(None, None)
    auroc, precision = draws.estimate(probabilities[:, None], true[:, None]) if enough else (nothing, nothing)
    shown = calibrated and enough
    return ClassRanking(
        positives=positives,
        threshold=threshold,
        auroc=auroc,
        average_precision=precision,
        calibrated=calibrated,
        calibration_error=_error(probabilities, true) if shown else None,
        bins=tuple(reliability(probabilities, true.astype(np.float64))) if shown else (),
    )


def _error(probabilities: Floats, true: Flags) -> float | None:
    return (
        number_or_none(expected_calibration_error(probabilities, true.astype(np.float64)))
        if len(probabilities)
        else None
    )


def _f1(predicted: Flags, true: Flags) -> float | None:
    both, total = int((predicted & true).sum()), int(predicted.sum() + true.sum())
    return 2 * both / total if total else None


def _macro_f1(predicted: Flags, true: Flags, columns: Sequence[int]) -> float | None:
    """Macro F1 over classes with positives in the references, so that every F1 is defined."""
    each = [_f1(predicted[:, k], true[:, k]) for k in columns]
    return float(np.mean([one for one in each if one is not None])) if each else None


@dataclass(frozen=True, slots=True)
class _Draws:
    """Resamples of the patients with all their studies; every class uses the same ones."""

    clusters: NDArray[np.int64]
    resamples: int
    seed: int

    def estimate(self, probabilities: Floats, true: Flags) -> tuple[Estimate, Estimate]:
        """AUROC and average precision over all entries (N, K), with intervals."""
        ones = np.ones((1, len(probabilities)))
        observed = [float(values[0]) for values in ranking(probabilities, true, ones)]
        if not self.resamples or int(self.clusters.max()) < 1:
            auroc, precision = (Estimate(number_or_none(value), None) for value in observed)
            return auroc, precision
        chunks = [
            ranking(probabilities, true, weights)
            for weights in resampled_weights(self.clusters, self.resamples, self.seed)
        ]
        drawn = [np.concatenate([chunk[place] for chunk in chunks]) for place in range(2)]
        auroc, precision = (
            Estimate(number_or_none(value), percentiles(values)) for value, values in zip(observed, drawn, strict=True)
        )
        return auroc, precision


def ranking(probabilities: Floats, true: Flags, weights: Floats) -> tuple[Floats, Floats]:
    """AUROC and average precision (R,) of entries (N, K) for each row of study weights (R, N); NaN where undefined.

    Ties count half in AUROC and are one step of the precision curve.
    """
    classes = probabilities.shape[1]
    order = np.argsort(-probabilities.ravel(), kind="stable")
    flat = probabilities.ravel()[order]
    ends = np.append(flat[1:] != flat[:-1], True)
    drawn = weights[:, order // classes]
    positive = true.ravel()[order]
    hits = np.cumsum(drawn * positive, axis=1)[:, ends]
    misses = np.cumsum(drawn * ~positive, axis=1)[:, ends]
    new_hits, new_misses = (np.diff(side, axis=1, prepend=0.0) for side in (hits, misses))
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = (new_misses * (hits - new_hits / 2)).sum(axis=1)
        auroc = pairs / (hits[:, -1] * misses[:, -1])
        steps = new_hits * np.nan_to_num(hits / (hits + misses))
        precision = steps.sum(axis=1) / hits[:, -1]
    return np.asarray(auroc), np.asarray(precision)
