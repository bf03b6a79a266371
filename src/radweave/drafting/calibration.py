"""Scores to probabilities, one logistic curve per class, and how well they hold.

Source: Platt, "Probabilistic outputs for support vector machines", 1999, with his smoothed targets. Few studies say
little of a rare class: where scores are log-odds, its curve is drawn to the one of all classes by a normal prior.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]

FEWEST_POSITIVES = 5
"""A class with fewer, or with fewer negatives, is not calibrated: its frequency is all that is known of it."""
OWN_WAY = 0.25
"""Deviation of a class's slope and offset from those of all classes together, as expected of heads: docs/eyes.md."""


@dataclass(frozen=True, slots=True)
class PlattCalibration:
    """p = sigmoid(slope * score + offset), both (K,). A slope is never negative: no score speaks against itself."""

    slope: Floats
    offset: Floats

    @classmethod
    def fit(cls, scores: Floats, labels: Floats) -> PlattCalibration:
        """From scores (N, K) of studies that did not train the model that gave them, and labels (N, K) of 0 and 1."""
        return cls._of(_curve(scores[:, k], labels[:, k]) for k in range(scores.shape[1]))

    @classmethod
    def of_log_odds(cls, scores: Floats, labels: Floats) -> PlattCalibration:
        """The same for log-odds (N, K) of heads: each class's curve is drawn to that of all calibrated ones."""
        positives = (labels > 0).sum(axis=0)
        enough = np.minimum(positives, len(labels) - positives) >= FEWEST_POSITIVES
        together = _curve(scores[:, enough].ravel(), labels[:, enough].ravel()) if enough.any() else None
        return cls._of(_curve(scores[:, k], labels[:, k], together) for k in range(scores.shape[1]))

    @classmethod
    def _of(cls, curves: Iterable[tuple[float, float]]) -> PlattCalibration:
        slope, offset = zip(*curves, strict=True)
        return cls(np.array(slope), np.array(offset))

    def __call__(self, scores: Floats) -> Floats:
        """Probabilities (N, K)."""
        return np.asarray(1.0 / (1.0 + np.exp(-(scores * self.slope + self.offset))))


def _curve(scores: Floats, labels: Floats, near: tuple[float, float] | None = None) -> tuple[float, float]:
    """Slope and offset; with ``near`` those with the greatest posterior under a normal prior around it."""
    positives, negatives = float(labels.sum()), float((1 - labels).sum())
    share = (positives + 0.5) / (positives + negatives + 1.0)
    prior = float(np.log(share / (1 - share)))
    spread = float(scores.std())
    if min(positives, negatives) < FEWEST_POSITIVES or spread < 1e-9:
        return 0.0, prior
    targets = np.where(labels > 0, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    unit = (scores - scores.mean()) / spread

    def loss(curve: Floats) -> float:
        logits = curve[0] * unit + curve[1]
        misfit = float(np.mean(np.logaddexp(0, logits) - targets * logits))
        if near is None:
            return misfit
        slope, offset = plain(curve)
        return misfit + ((slope - near[0]) ** 2 + (offset - near[1]) ** 2) / (2 * OWN_WAY**2 * len(scores))

    def plain(curve: Floats) -> tuple[float, float]:
        return float(curve[0] / spread), float(curve[1] - curve[0] * scores.mean() / spread)

    return plain(minimize(loss, np.array([0.5, prior]), bounds=[(0, None), (None, None)]).x)


def pays_off_from(probabilities: Floats, labels: Floats) -> float:
    """From which probability on asserting pays off: half of the best F1, 1 where nothing is positive.

    Source: Lipton, Elkan and Narayanaswamy, ECML 2014.
    """
    best = best_threshold(probabilities, labels)[1]
    return best / 2 if best > 0 else 1.0


def best_threshold(probabilities: Floats, labels: Floats) -> tuple[float, float]:
    """The threshold with the highest F1 over all entries given, and that F1; (1, 0) where nothing is positive."""
    said, true = probabilities.ravel(), labels.ravel() > 0
    if not true.any():
        return 1.0, 0.0
    order = np.argsort(-said, kind="stable")
    hits = np.cumsum(true[order])
    scores = 2 * hits / (np.arange(1, len(order) + 1) + true.sum())
    # Entries of equal probability are asserted together.
    last = np.append(said[order][1:] != said[order][:-1], True)
    best = int(np.argmax(np.where(last, scores, -1)))
    return float(said[order][best]), float(scores[best])
