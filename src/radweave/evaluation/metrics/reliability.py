"""How far probabilities are from what was seen: the reliability curve, and its distance from the diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radweave.evaluation.statistics import Floats


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Of ``count`` cases with a mean probability of ``said``, the share ``seen`` had the finding.

    ``low`` is the smallest probability among them.
    """

    said: float
    seen: float
    count: int
    low: float


def reliability(probabilities: Floats, labels: Floats, *, num_bins: int = 10) -> list[ReliabilityBin]:
    """Bins of equal count over the probabilities (N,) of one class; ties stay together, so that there may be fewer."""
    if not len(probabilities):
        return []
    # By rank, that of the first for equal ones.
    bins = np.searchsorted(np.sort(probabilities), probabilities) * num_bins // len(probabilities)
    return [
        ReliabilityBin(
            float(probabilities[own].mean()), float(labels[own].mean()), int(own.sum()), float(probabilities[own].min())
        )
        for own in (bins == number for number in np.unique(bins))
    ]


def expected_calibration_error(probabilities: Floats, labels: Floats, *, num_bins: int = 10) -> float:
    """Mean distance of what was said and what was seen, over bins of equal count (N,).

    Source: Naeini, Cooper and Hauskrecht, AAAI 2015.
    """
    bins = reliability(probabilities, labels, num_bins=num_bins)
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.said - one.seen) for one in bins) / total if total else float("nan")
