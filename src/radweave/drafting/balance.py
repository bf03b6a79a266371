"""Which findings pay off for micro F1 and macro F1 together: a threshold for each class, and what stating it counts.

Micro F1 goes up by asserting a class c where its probability p_c is above half of the best pooled F1, F; macro F1 where
it is above half of the class's own best, f_c. To first order a study's assertions are worth

    sum_c a (p_c - F/2) + b_c (p_c - f_c/2),   a = 1 / n,   b_c = MACRO / (K n_c),

n and n_c are how many assertions and true findings there are, of all classes and of c: a rare class moves its own F1
far, and so the mean over the K classes. That is sum_c a w_c (p_c - t_c) with t_c = (a F/2 + b_c f_c/2) / (a + b_c) and
w_c = (a + b_c) / a. No class is stated of more than ``MOST`` times as many studies as have it.

f_c is the best F1 that the probabilities expect of themselves, not the best that the labels show: of a handful of
positives the best of all thresholds is a matter of luck, and lies too high. The calibration, which draws each class to
all of them, knows more than that.

Source: Lipton, Elkan and Narayanaswamy, "Optimal thresholding of classifiers to maximize F1 measure", ECML 2014, for
half of the best F1, and for that of probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.calibration import Floats, best_threshold

MACRO = 5.0
"""What macro F1 counts beside micro F1; chosen on out-of-fold training studies, see docs/methods/weave.md."""
MOST = 2.0


@dataclass(frozen=True, slots=True)
class Balance:
    """From which probability on stating a class pays off (K,), and what it counts (K,), 1 or more."""

    thresholds: Floats
    weights: Floats

    @classmethod
    def fit(cls, probabilities: Floats, labels: Floats, calibrated: NDArray[np.bool_]) -> Balance:
        """From probabilities (N, K) and labels (N, K) of 0 and 1. A class that is not calibrated has the pooled
        threshold and counts 1.
        """
        best = best_threshold(probabilities, labels)[1]
        pooled = best / 2 if best > 0 else 1.0
        of_all = 1.0 / max(int((probabilities >= pooled).sum() + labels.sum()), 1)
        thresholds = np.full(labels.shape[1], pooled)
        weights = np.ones(labels.shape[1])
        for k in np.flatnonzero(calibrated):
            said, true = probabilities[:, k], labels[:, k]
            own = expected_best(said) / 2
            of_own = MACRO / (int(calibrated.sum()) * max(int((said >= own).sum() + true.sum()), 1))
            fair = (of_all * pooled + of_own * own) / (of_all + of_own)
            thresholds[k] = max(fair, float(np.quantile(said, max(0.0, 1 - MOST * true.mean()))))
            weights[k] = (of_all + of_own) / of_all
        return cls(thresholds, weights)


def expected_best(probabilities: Floats) -> float:
    """The best F1 over all thresholds, 2 E[hits] / (E[positives] + stated), if these probabilities (N,) are right."""
    ordered = -np.sort(-probabilities)
    stated = np.arange(1, len(ordered) + 1)
    return float((2 * np.cumsum(ordered) / (ordered.sum() + stated)).max())


def moved(thresholds: Floats, weights: Floats, pooled: float, macro: float) -> tuple[Floats, Floats]:
    """The same where macro F1 counts ``macro`` times as much; 0 is micro F1 alone.

    With w = 1 + b / a, w t = F/2 + b/a f_c/2, of which the second part is multiplied.
    """
    heavier = 1 + macro * (weights - 1)
    return (pooled + macro * (weights * thresholds - pooled)) / heavier, heavier
