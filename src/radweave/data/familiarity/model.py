"""How familiar an image is: distance from the training images, and likeness to them rather than to strangers.

    z = (V^T (x - m)) / sqrt(w)                  the descriptor x on its first principal axes
    distance(z) = min_c |L^T (z - c)|^2 / 2      to the middles of groups of training images (Mahalanobis)
    margin(z)   = b + a . [z, z^2 / 4, r, max(r, 0)^2 / 4]     logistic regression, r what the axes leave over

A quarter of the training images is held out of the fit. Each of the two is moved and scaled so that the held-out
images have median 0 and 5 % quantile -1; the score is the smaller one. Below the held-out images' 1 % quantile an image
is doubted, below 1.3 times that it is refused. Of a run's own kind of images 99 in 100 are so accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from radweave.data.familiarity import scans, strangers
from radweave.data.familiarity.descriptor import VERSION, describe, on_canvas

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Arrays = dict[str, Any]

MIN_IMAGES: Final = 150
"""With fewer the 1 % quantile of those held out says nothing."""
MAX_IMAGES: Final = 1000
MAX_SCANS: Final = 300
HELD_OUT: Final = 0.25
DOUBT_QUANTILE: Final = 0.01
REFUSE_FACTOR: Final = 1.3
AXES: Final = 64
LEAST_GROUP: Final = 20
"""Smaller groups have no middle of their own: it would be a few patients' images."""
TOO_FEW: Final = "too few training images for this test"


class Verdict(StrEnum):
    """What follows from a score."""

    FAMILIAR = "familiar"
    DOUBTED = "doubted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Judgement:
    """``score`` is 0 for the typical training image and falls with distance."""

    score: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Familiarity:
    """A fitted test. ``arrays`` holds its numbers, ``facts`` what it was fitted to and its thresholds.

    One with ``reason`` judges nothing.
    """

    arrays: dict[str, Floats]
    facts: dict[str, Any]
    reason: str | None = None

    @property
    def thresholds(self) -> tuple[float, float]:
        """Below the first an image is doubted, below the second refused."""
        return self.facts["doubt_below"], self.facts["refuse_below"]

    def judge(self, pixels: Bytes) -> Judgement:
        """Judge a radiograph (S, S) or a scan (D, H, W), as the model sees it."""
        assert self.reason is None, "a test that was not fitted judges nothing"
        score = float(self.scores(np.concatenate(describe(pixels))[None])[0])
        doubt, refuse = self.thresholds
        verdict = Verdict.REFUSED if score < refuse else Verdict.DOUBTED if score < doubt else Verdict.FAMILIAR
        return Judgement(round(score, 3), verdict)

    def scores(self, described: Floats) -> NDArray[np.float64]:
        """Scores (N,) of descriptors (N, D)."""
        arrays = self.arrays
        scaled = (_raw_scores(arrays, described) - arrays["middles"]) / arrays["units"]
        return np.asarray(scaled.min(axis=1))


def fit_familiarity(pictures: Sequence[Bytes], *, seed: int) -> Familiarity:
    """Learn what a run's training images look like: radiographs (S, S), or scans (D, H, W), as the model sees them.

    At most ``MAX_IMAGES`` radiographs or ``MAX_SCANS`` scans are looked at, drawn by ``seed``. With fewer than
    ``MIN_IMAGES`` the result judges nothing and says why.
    """
    if len(pictures) < MIN_IMAGES:
        reason = f"{TOO_FEW} ({len(pictures)}, at least {MIN_IMAGES})"
        return Familiarity({}, {"training_images": len(pictures)}, reason)
    random = np.random.default_rng([seed, 20])
    is_scan = pictures[0].ndim == 3
    chosen = random.permutation(len(pictures))[: MAX_SCANS if is_scan else MAX_IMAGES]
    table = _described([on_canvas(pictures[row]) for row in chosen], scans if is_scan else strangers, random)
    fitted = round(len(chosen) * (1 - HELD_OUT))
    own = np.vstack([table.plain[:fitted], table.varied[:fitted]])
    arrays = _scaling(own, [len(block) for block in describe(pictures[0])])
    arrays |= _axes(arrays, own, most=min(AXES, fitted // 8))
    arrays |= _rest(arrays, np.vstack([table.plain[fitted:], table.varied[fitted:]]))
    arrays |= _groups(arrays, own, most=min(6, fitted // 60))
    arrays |= _margin(arrays, own, table.strangers)
    low, middle = np.quantile(_raw_scores(arrays, table.plain[fitted:]), (0.05, 0.5), axis=0)
    arrays |= {"middles": middle, "units": np.maximum(middle - low, 1e-6)}
    # In the precision in which they are stored, so that a run judges the same once it is restored.
    arrays = {name: np.asarray(values, dtype=np.float32) for name, values in arrays.items()}
    return Familiarity(arrays, _facts(Familiarity(arrays, {}), table, fitted, len(pictures)))


@dataclass(frozen=True, slots=True)
class _Table:
    """Descriptors (N, D) of pictures, of each of them varied, and of as many strangers with their kinds."""

    plain: Floats
    varied: Floats
    strangers: Floats
    kinds: tuple[str, ...]


def _described(pictures: Sequence[Bytes], made: ModuleType, random: np.random.Generator) -> _Table:
    def rows(make: Callable[[int], Bytes]) -> Floats:
        return np.stack([np.concatenate(describe(make(row))) for row in range(len(pictures))])

    kinds = tuple(made.KINDS[row % len(made.KINDS)] for row in range(len(pictures)))
    others = random.permutation(len(pictures))
    return _Table(
        plain=rows(lambda row: pictures[row]),
        varied=rows(lambda row: made.varied(pictures[row], random)),
        strangers=rows(lambda row: made.stranger(kinds[row], pictures[row], pictures[others[row]], random)),
        kinds=kinds,
    )


def _scaling(own: Floats, blocks: Sequence[int]) -> Arrays:
    """Each number to mean 0 and about deviation 1, each block of numbers to the same weight."""
    deviation = own.std(axis=0)
    edges = np.cumsum(blocks)[:-1]
    scale = [
        (part + 0.05 * whole.std() + 1e-6) * np.sqrt(len(part))
        for part, whole in zip(np.split(deviation, edges), np.split(own, edges, axis=1), strict=True)
    ]
    return {"shift": own.mean(axis=0), "scale": np.concatenate(scale)}


def _axes(arrays: Arrays, own: Floats, *, most: int) -> Arrays:
    spread, axes = np.linalg.eigh(np.cov(_scaled(arrays, own).T))
    return {"axes": axes[:, ::-1][:, :most], "spread": np.sqrt(np.maximum(spread[::-1][:most], 0) + 1e-6)}


def _rest(arrays: Arrays, held_out: Floats) -> Arrays:
    left_over = _left_over(arrays, held_out)
    return {"rest": np.array([left_over.mean(), max(float(left_over.std()), 1e-6)])}


def _groups(arrays: Arrays, own: Floats, *, most: int) -> Arrays:
    """Middles of groups of training images (frontal and lateral views lie apart), and one whitening for all."""
    from sklearn.cluster import KMeans

    projected = _projected(arrays, own)
    # The first axes tell the groups; on all of them distances are nearly equal.
    near = KMeans(max(1, most), n_init=3, random_state=0).fit(projected[:, :16]).labels_
    sizes = np.bincount(near)
    large = [group for group in range(len(sizes)) if sizes[group] >= min(LEAST_GROUP, sizes.max())]
    middles = np.stack([projected[near == group].mean(axis=0) for group in large])
    distances = ((projected[:, None] - middles) ** 2).sum(axis=2)
    within = np.cov((projected - middles[distances.argmin(axis=1)]).T) + 0.1 * np.eye(projected.shape[1])
    return {"groups": middles, "whitening": np.linalg.cholesky(np.linalg.inv(within))}


def _margin(arrays: Arrays, own: Floats, foreign: Floats) -> Arrays:
    from sklearn.linear_model import LogisticRegression

    rows = _terms(arrays, np.vstack([own, foreign]))
    is_own = np.arange(len(rows)) < len(own)
    fit = LogisticRegression(C=0.1, max_iter=2000, class_weight="balanced").fit(rows, is_own)
    return {"weights": fit.coef_[0], "bias": fit.intercept_}


def _facts(test: Familiarity, table: _Table, fitted: int, available: int) -> dict[str, Any]:
    """The thresholds, and what the test does with held-out training images and with strangers it has learned from."""
    held_out = test.scores(table.plain[fitted:])
    doubt = min(float(np.quantile(held_out, DOUBT_QUANTILE)), -1.0)
    refuse = REFUSE_FACTOR * doubt
    scores, kinds = test.scores(table.strangers), np.array(table.kinds)
    return {
        "descriptor": VERSION,
        "training_images": available,
        "images_used": len(table.plain),
        "held_out": len(held_out),
        "doubt_below": doubt,
        "refuse_below": refuse,
        "held_out_familiar": float(np.mean(held_out >= doubt)),
        "strangers_familiar": {
            kind: round(float(np.mean(scores[kinds == kind] >= doubt)), 3) for kind in dict.fromkeys(table.kinds)
        },
    }


def _scaled(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    return np.asarray((described.astype(np.float64) - arrays["shift"]) / arrays["scale"])


def _projected(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    return np.asarray(_scaled(arrays, described) @ arrays["axes"] / arrays["spread"])


def _left_over(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    """Logarithm of the squared length of what the axes do not hold (N,)."""
    scaled = _scaled(arrays, described)
    outside = scaled - scaled @ arrays["axes"] @ arrays["axes"].T
    return np.asarray(np.log((outside**2).sum(axis=1) + 1e-9))


def _rest_of(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    return np.asarray((_left_over(arrays, described) - arrays["rest"][0]) / arrays["rest"][1])


def _terms(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    projected = np.clip(_projected(arrays, described), -8, 8)
    rest = _rest_of(arrays, described)[:, None]
    return np.hstack([projected, projected**2 / 4, rest, np.maximum(rest, 0) ** 2 / 4])


def _raw_scores(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    """Closeness to the training images and margin against strangers (N, 2), each in its own unit."""
    projected = _projected(arrays, described)
    white = projected @ arrays["whitening"]
    middles = arrays["groups"] @ arrays["whitening"]
    closeness = -((white[:, None] - middles) ** 2).sum(axis=2).min(axis=1) / 2 / projected.shape[1]
    closeness -= np.maximum(0, _rest_of(arrays, described))
    return np.stack([closeness, _terms(arrays, described) @ arrays["weights"] + arrays["bias"]], axis=1)
