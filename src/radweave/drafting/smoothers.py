"""Kernel ridge smoothers: weights of training reports for a study by distance, in closed form.

    f(x) = mean + k(x) (K + ridge I)^-1 (y - mean)

is a weighted sum of the training targets, so that leaving out rows is a matter of the weights: those rows get none, and
the others are scaled to sum to 1 again. For one row that is the exact leave-one-out prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radweave.core.evidence import DraftEvidence, FindingPlace

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Kernel:
    """exp(-gamma d) or exp(-gamma sqrt d) of squared distances d, and the ridge that goes with it."""

    kind: Literal["rbf", "exponential"]
    gamma: float
    ridge: float

    def __call__(self, distance: Floats) -> Floats:
        return np.asarray(np.exp(-self.gamma * (np.sqrt(distance) if self.kind == "exponential" else distance)))

    def inverse(self, distance: Floats) -> Floats:
        """(K + ridge I)^-1 (J, J), from squared distances (J, J) among the training studies."""
        return np.asarray(np.linalg.inv(self(distance) + self.ridge * np.eye(len(distance))), dtype=np.float64)


FINDINGS = (Kernel("rbf", 0.5, 1.5), Kernel("exponential", 0.5, 1.0), Kernel("rbf", 0.15, 1.0))
"""The smoothers whose mean is the score of a finding."""
WORDING = Kernel("rbf", 0.15, 3.0)
"""The smoother whose weights decide the wording."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Change of each class from the prior study: probabilities (K, 6) of ``radweave.labels.comparisons.STATES``.

    Stating a change pays off from ``threshold`` on.
    """

    probabilities: Floats
    threshold: float


@dataclass(frozen=True, slots=True)
class PriorEvidence:
    """Priors of studies: ``scores`` (..., K) of the classes, and what their reports affirm: ``reported`` (..., K) is 1
    for yes, 0 for no, -1 where that is not known. ``report`` is that of one prior.
    """

    scores: Floats
    reported: NDArray[np.int64]
    report: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for one study.

    ``scores`` (K,) of the classes are higher for likelier ones; ``weights`` (J,) over the training reports sum to 1.
    ``shown`` joins the evidence of the draft. ``prior`` is the prior study (K,), where the draft is told of one.
    ``places`` has the place of each class, if it is there; it is empty where the run has no part for it.
    """

    scores: Floats
    weights: Floats
    shown: DraftEvidence = field(default_factory=DraftEvidence)
    prior: PriorEvidence | None = None
    places: Mapping[str, FindingPlace] = field(default_factory=dict)


def weights_of(kernel: Kernel, inverse: Floats, distance: Floats) -> Floats:
    """Weights (J,) of the training targets for a study at squared ``distance`` (J,); they sum to 1."""
    raw = kernel(distance) @ inverse
    return np.asarray(raw + (1 - raw.sum()) / len(raw))


def exclude_rows(weights: Floats, barred: Mask) -> Floats:
    """Weights (J,) with none on the ``barred`` rows; 0 throughout where nothing is left."""
    if not barred.any():
        return weights
    rest = 1 - weights[barred].sum()
    allowed = np.where(barred, 0.0, 1.0)
    if abs(rest) < 1e-6:  # all weight was on barred rows
        return np.asarray(allowed / max(float(allowed.sum()), 1.0))
    return np.asarray(weights * allowed / rest if allowed.any() else allowed)


@dataclass(frozen=True, slots=True)
class Smoothers:
    """``FINDINGS`` and ``WORDING`` fitted to J training studies; ``labels`` (J, K) are 0 and 1.

    ``inverses`` has those of ``FINDINGS`` and, last, that of ``WORDING``.
    """

    labels: Floats
    inverses: tuple[Floats, ...]

    @classmethod
    def fit(cls, distance: Floats, wording: Floats, labels: Floats) -> Smoothers:
        """From squared distances (J, J) among the training studies, for findings and for the wording."""
        return cls(labels, (*(kernel.inverse(distance) for kernel in FINDINGS), WORDING.inverse(wording)))

    def evidence_for(self, distance: Floats, wording: Floats, barred: Mask) -> Evidence:
        """Evidence for a study at these squared distances (J,), without the ``barred`` rows."""
        shares = [
            exclude_rows(weights_of(kernel, inverse, distance), barred)
            for kernel, inverse in zip(FINDINGS, self.inverses, strict=False)
        ]
        scores = np.mean(shares, axis=0) @ self.labels
        return Evidence(scores, exclude_rows(weights_of(WORDING, self.inverses[-1], wording), barred))


def squared_distances(left: Floats, right: Floats) -> Floats:
    """Squared distances (N, J) of rows (N, D) and (J, D)."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None] - 2 * left @ right.T
    return np.asarray(np.maximum(squares, 0))


def typical(distance: Floats) -> float:
    """The median of the distances (J, J) between different studies; 1 where there is no other study, or no distance."""
    others = distance[~np.eye(len(distance), dtype=bool)]
    middle = float(np.median(others)) if others.size else 1.0
    return middle if middle > 0 else 1.0


# Embeddings of the training studies: the evidence of methods without an evidence source of their own.


@dataclass(frozen=True, slots=True)
class EmbeddedStudies:
    """Embeddings (J, D) of the training studies, each dimension with mean 0 and deviation 1, and their smoothers."""

    vectors: Floats
    centre: Floats
    spread: Floats
    scale: float
    smoothers: Smoothers

    @classmethod
    def fit(cls, embeddings: Floats, labels: Floats) -> EmbeddedStudies:
        """From embeddings (J, D) and labels (J, K) of 0 and 1."""
        centre, spread = embeddings.mean(axis=0), embeddings.std(axis=0) + 1e-6
        vectors = (embeddings - centre) / spread
        distance = squared_distances(vectors, vectors)
        scale = typical(distance)
        smoothers = Smoothers.fit(distance / scale, distance / scale, labels)
        return cls(vectors, centre, spread, scale, smoothers)

    def evidence_for(self, embedding: Floats, barred: Mask) -> Evidence:
        """Evidence for a study with this embedding (D,)."""
        vector = (embedding - self.centre) / self.spread
        # Each study for itself: a product of many rows may round otherwise than that of one.
        distance = ((self.vectors - vector) ** 2).sum(axis=1) / self.scale
        return self.smoothers.evidence_for(distance, distance, barred)
