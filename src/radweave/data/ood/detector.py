"""Out-of-distribution detector: distance from the training images, and likeness to them rather than to outliers.

    z = (V^T (x - m)) / sqrt(w)                  the descriptor x on its first principal axes
    distance(z) = min_c |L^T (z - c)|^2 / 2      to the middles of groups of training images (Mahalanobis)
    margin(z)   = b + a . [z, z^2 / 4, r, max(r, 0)^2 / 4]     logistic regression, r what the axes leave over

The training images are scored by a fit without images of their patients: with ``MANY_IMAGES`` or
more a quarter is held out, with fewer each tenth in turn (all of one patient together). Each of the two is moved and
scaled so that these images have median 0 and 5 % quantile -1; the score is the smaller one. Below their 1 % quantile an
image is doubted, below 1.3 times that it is refused.

The error of that threshold is stated: where r of n unseen images of the run's own kind score below it, the share that
it refuses wrongly lies between quantiles of Beta(r, n - r + 1) and Beta(r + 1, n - r) (Clopper and Pearson, Biometrika
26:404, 1934), and is at most (r + 1) / (n + 1) in the mean over training sets (split conformal prediction; Vovk et
al., "Algorithmic Learning in a Random World", 2005). With fewer than ``MIN_IMAGES`` nothing is judged.
Deviations: scores of the tenths come from ten fits, of which none is the final one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.core.storage import write_folder
from radweave.data.loader import Example
from radweave.data.ood import ct_outliers, xray_outliers
from radweave.data.ood.descriptor import VERSION, describe, on_canvas

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Arrays = dict[str, Any]

MIN_IMAGES: Final = 10
"""With fewer, more than 30 % of in-distribution images might be refused."""
MANY_IMAGES: Final = 400
"""From this number on one held-out quarter suffices; with 150 its thresholds vary much between draws."""
FOLDS: Final = 10
LEAST_ROWS: Final = 120
"""Least number of varied copies, and of outliers."""
INTERVAL: Final = 0.95
MAX_IMAGES: Final = 1000
MAX_SCANS: Final = 300
HELD_OUT: Final = 0.25
DOUBT_QUANTILE: Final = 0.01
REFUSE_FACTOR: Final = 1.3
AXES: Final = 64
LEAST_GROUP: Final = 20
"""Smaller groups have no centre of their own, which would be a few patients' images."""
TOO_FEW: Final = "too few training images for this test"


class Verdict(StrEnum):
    """Consequence of a score."""

    IN_DISTRIBUTION = "familiar"
    DOUBTED = "doubted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Judgement:
    """``score`` is 0 for the typical training image and falls with distance."""

    score: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class OutOfDistribution:
    """A fitted detector: ``arrays`` are its parameters, ``facts`` its training data and thresholds.

    With a ``reason`` it was not fitted and judges nothing.
    """

    arrays: dict[str, Floats]
    facts: dict[str, Any]
    reason: str | None = None

    @property
    def thresholds(self) -> tuple[float, float]:
        """Below the first an image is doubted, below the second refused."""
        return self.facts["doubt_below"], self.facts["refuse_below"]

    def judge(self, pixels: Bytes) -> Judgement:
        """Judge a radiograph (S, S) or a scan (D, H, W), as the model reads it."""
        assert self.reason is None, "a test that was not fitted judges nothing"
        score = float(self.scores(np.concatenate(describe(pixels))[None])[0])
        doubt, refuse = self.thresholds
        verdict = Verdict.REFUSED if score < refuse else Verdict.DOUBTED if score < doubt else Verdict.IN_DISTRIBUTION
        return Judgement(round(score, 3), verdict)

    def scores(self, described: Floats) -> NDArray[np.float64]:
        """Scores (N,) of descriptors (N, D)."""
        arrays = self.arrays
        scaled = (_raw_scores(arrays, described) - arrays["middles"]) / arrays["units"]
        return np.asarray(scaled.min(axis=1))


def fit_ood(pictures: Sequence[Bytes], *, seed: int, patients: Sequence[Hashable] | None = None) -> OutOfDistribution:
    """Fit a detector to a run's training images: radiographs (S, S), or scans (D, H, W), as the model reads them.

    At most ``MAX_IMAGES`` radiographs or ``MAX_SCANS`` scans are used, drawn by ``seed``. ``patients`` are those of the
    images, by default all different. Images of fewer than ``MIN_IMAGES`` patients give a detector with a ``reason``.
    """
    whose = list(range(len(pictures))) if patients is None else list(patients)
    if len(set(whose)) < MIN_IMAGES:
        reason = f"{TOO_FEW} (of {len(set(whose))} patients, at least {MIN_IMAGES})"
        return OutOfDistribution({}, {"training_images": len(pictures)}, reason)
    random = np.random.default_rng([seed, 20])
    is_scan = pictures[0].ndim == 3
    chosen = random.permutation(len(pictures))[: MAX_SCANS if is_scan else MAX_IMAGES]
    folds = _folds([whose[row] for row in chosen], is_many=len(chosen) >= MANY_IMAGES)
    table = _make_table([on_canvas(pictures[row]) for row in chosen], ct_outliers if is_scan else xray_outliers, random)
    blocks = [len(block) for block in describe(pictures[0])]
    fits = [_axes_of(table, folds != fold, blocks) for fold in range(folds.max() + 1)]
    held = [table.own(folds == fold) for fold in range(len(fits))]
    left_over = np.concatenate([_residual_log_norm(*pair) for pair in zip(fits, held, strict=True)])
    rest = {"rest": np.array([left_over.mean(), max(float(left_over.std()), 1e-6)])}
    fits = [_fit(arrays | rest, table, folds != fold) for fold, arrays in enumerate(fits)]
    unseen = np.vstack([_raw_scores(arrays, table.plain[folds == fold]) for fold, arrays in enumerate(fits)])
    # With a quarter held out, the fit without it is the test; otherwise the test is fitted to all images.
    everything = np.ones(len(chosen), dtype=bool)
    arrays = fits[0] if len(fits) == 1 else _fit(_axes_of(table, everything, blocks) | rest, table, everything)
    low, middle = np.quantile(unseen, (0.05, 0.5), axis=0)
    arrays |= {"middles": middle, "units": np.maximum(middle - low, 1e-6)}
    # In the precision and order in which they are stored, so that a run judges the same once it is restored.
    arrays = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in arrays.items()}
    scores = ((unseen - arrays["middles"]) / arrays["units"]).min(axis=1)
    return OutOfDistribution(arrays, _facts(OutOfDistribution(arrays, {}), table, scores, len(pictures)))


@dataclass(frozen=True, slots=True)
class _Table:
    """Descriptors (N, D) of pictures, of varied copies and of outliers, with the pictures that these are made from.

    ``copied`` (C,) is the picture of each copy, ``made_from`` (S, 2) are the two of each outlier of ``kinds``.
    """

    plain: Floats
    varied: Floats
    copied: NDArray[np.intp]
    outliers: Floats
    made_from: NDArray[np.intp]
    kinds: tuple[str, ...]

    def own(self, is_used: NDArray[np.bool_]) -> Floats:
        """Some of the pictures with their copies."""
        return np.vstack([self.plain[is_used], self.varied[is_used[self.copied]]])

    def foreign(self, is_used: NDArray[np.bool_]) -> Floats:
        """The outliers made from these pictures alone."""
        return self.outliers[is_used[self.made_from].all(axis=1)]


def _folds(patients: Sequence[Hashable], *, is_many: bool) -> NDArray[np.intp]:
    """The fold of each picture, one for each patient; -1 for pictures that are never held out."""
    order = {patient: number for number, patient in enumerate(dict.fromkeys(patients))}
    place = np.array([order[patient] for patient in patients])
    if not is_many:
        return place % min(FOLDS, len(order))
    return np.where(place >= round(len(order) * (1 - HELD_OUT)), 0, -1)


def _make_table(pictures: Sequence[Bytes], made: ModuleType, random: np.random.Generator) -> _Table:
    def rows(make: Callable[[int], Bytes], count: int) -> Floats:
        return np.stack([np.concatenate(describe(make(row))) for row in range(count)])

    count = len(pictures)
    copies = count if count >= LEAST_ROWS else -(-LEAST_ROWS // count) * count
    foreign = max(count, LEAST_ROWS)
    copied, first = np.arange(copies) % count, np.arange(foreign) % count
    second = np.concatenate([random.permutation(count) for _ in range(-(-foreign // count))])[:foreign]
    kinds = tuple(made.KINDS[row % len(made.KINDS)] for row in range(foreign))
    return _Table(
        plain=rows(lambda row: pictures[row], count),
        varied=rows(lambda row: made.varied(pictures[copied[row]], random), copies),
        copied=copied,
        outliers=rows(
            lambda row: made.make_outlier(kinds[row], pictures[first[row]], pictures[second[row]], random), foreign
        ),
        made_from=np.stack([first, second], axis=1),
        kinds=kinds,
    )


def _axes_of(table: _Table, is_used: NDArray[np.bool_], blocks: Sequence[int]) -> Arrays:
    own = table.own(is_used)
    arrays = _scaling(own, blocks)
    return arrays | _axes(arrays, own, most=min(AXES, len(own) // 16))


def _fit(arrays: Arrays, table: _Table, is_used: NDArray[np.bool_]) -> Arrays:
    """Groups and margin on given axes."""
    own = table.own(is_used)
    arrays = arrays | _groups(arrays, own, most=min(6, int(is_used.sum()) // 60))
    return arrays | _margin(arrays, own, table.foreign(is_used))


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
    scaled = _scaled(arrays, own)
    if len(scaled) < scaled.shape[1]:  # of few rows the same axes in less time
        _, lengths, axes = np.linalg.svd(scaled - scaled.mean(axis=0), full_matrices=False)
        return {"axes": axes[:most].T, "spread": np.sqrt(lengths[:most] ** 2 / (len(scaled) - 1) + 1e-6)}
    spread, axes = np.linalg.eigh(np.cov(scaled.T))
    return {"axes": axes[:, ::-1][:, :most], "spread": np.sqrt(np.maximum(spread[::-1][:most], 0) + 1e-6)}


def _groups(arrays: Arrays, own: Floats, *, most: int) -> Arrays:
    """Centres of groups of training images (such as frontal and lateral views), and one whitening for all."""
    from sklearn.cluster import KMeans

    projected = _projected(arrays, own)
    # The first axes separate the groups; on all of them distances are nearly equal.
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


def _facts(test: OutOfDistribution, table: _Table, unseen: NDArray[np.float64], available: int) -> dict[str, Any]:
    """The thresholds with their error, and the share of training outliers accepted by kind."""
    doubt = min(float(np.quantile(unseen, DOUBT_QUANTILE)), -1.0)
    refuse = REFUSE_FACTOR * doubt
    scores, kinds = test.scores(table.outliers), np.array(table.kinds)
    return {
        "descriptor": VERSION,
        "training_images": available,
        "images_used": len(table.plain),
        "held_out": len(unseen),
        "doubt_below": doubt,
        "refuse_below": refuse,
        "wrongly_refused": wrongly_refused(int((unseen < refuse).sum()), len(unseen)),
        "held_out_familiar": float(np.mean(unseen >= doubt)),
        "strangers_familiar": {
            kind: round(float(np.mean(scores[kinds == kind] >= doubt)), 3) for kind in dict.fromkeys(table.kinds)
        },
    }


def wrongly_refused(refused: int, images: int) -> dict[str, float]:
    """Share of in-distribution images refused, from ``images`` held-out ones: bound of the mean, interval."""
    from scipy.stats import beta

    tail = (1 - INTERVAL) / 2
    low = beta.ppf(tail, refused, images - refused + 1) if refused else 0.0
    high = beta.ppf(1 - tail, refused + 1, images - refused) if refused < images else 1.0
    return {"mean_at_most": (refused + 1) / (images + 1), "low": float(low), "high": float(high)}


def _scaled(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    return np.asarray((described.astype(np.float64) - arrays["shift"]) / arrays["scale"])


def _projected(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    return np.asarray(_scaled(arrays, described) @ arrays["axes"] / arrays["spread"])


def _residual_log_norm(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    """Logarithm of the squared norm of the residual outside the axes (N,)."""
    scaled = _scaled(arrays, described)
    outside = scaled - scaled @ arrays["axes"] @ arrays["axes"].T
    return np.asarray(np.log((outside**2).sum(axis=1) + 1e-9))


def _standard_residual(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    return np.asarray((_residual_log_norm(arrays, described) - arrays["rest"][0]) / arrays["rest"][1])


def _terms(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    projected = np.clip(_projected(arrays, described), -8, 8)
    rest = _standard_residual(arrays, described)[:, None]
    return np.hstack([projected, projected**2 / 4, rest, np.maximum(rest, 0) ** 2 / 4])


def _raw_scores(arrays: Mapping[str, Any], described: Floats) -> NDArray[np.float64]:
    """Closeness to the training images and margin against outliers (N, 2), each in its own unit."""
    projected = _projected(arrays, described)
    white = projected @ arrays["whitening"]
    middles = arrays["groups"] @ arrays["whitening"]
    closeness = -((white[:, None] - middles) ** 2).sum(axis=2).min(axis=1) / 2 / projected.shape[1]
    closeness -= np.maximum(0, _standard_residual(arrays, described))
    return np.stack([closeness, _terms(arrays, described) @ arrays["weights"] + arrays["bias"]], axis=1)


# The fitted detector in a run folder: ``familiarity.json`` and, if it was fitted, ``familiarity.safetensors``.

FACTS, ARRAYS = "familiarity.json", "familiarity.safetensors"
_SHAPES = {
    "shift": "D", "scale": "D", "axes": "DK", "spread": "K", "rest": "2", "groups": "GK", "whitening": "KK",
    "weights": "W", "bias": "1", "middles": "2", "units": "2",
}  # fmt: skip


def save_ood(test: OutOfDistribution, folder: Path) -> None:
    """Replace the folder atomically."""
    with write_folder(folder, overwrite=True) as partial:
        write_json(partial / FACTS, {**test.facts, "reason": test.reason})
        if test.reason is None:
            save_file(dict(sorted(test.arrays.items())), partial / ARRAYS)


def load_ood(folder: Path) -> OutOfDistribution | None:
    """Read a detector; None for a run older than this test.

    Raises:
        InputError: if a file is damaged, or was made by another version.
    """
    if not (folder / FACTS).is_file():
        return None
    facts = read_json(folder / FACTS)
    reason = facts.pop("reason", None) if isinstance(facts, dict) else None
    if isinstance(facts, dict) and isinstance(reason, str):
        return OutOfDistribution({}, facts, reason)
    try:
        arrays = load_file(folder / ARRAYS)
        _check(arrays)
        float(facts["doubt_below"]), float(facts["refuse_below"])
    except Exception as error:
        raise InputError("cannot be read", file=folder / ARRAYS, got=type(error).__name__) from None
    if facts.get("descriptor") != VERSION:
        raise InputError("was fitted by another version", file=folder / FACTS, field="descriptor", expected=VERSION)
    return OutOfDistribution(arrays, facts)


def _check(arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that are missing, inconsistent or not finite."""
    sizes = {"1": 1, "2": 2, "W": 2 * arrays["axes"].shape[1] + 2}
    for name, letters in _SHAPES.items():
        shape = arrays[name].shape
        if len(shape) != len(letters) or not np.isfinite(arrays[name]).all():
            raise ValueError(name)
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(name)


# The training images of a run, read on demand.


class TrainingPictures(Sequence[NDArray[np.uint8]]):
    """Every view (S, S) or scan (D, H, W) of some examples, as the model reads it, with its patient in ``patients``."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.patients = [example.patient_id for example in examples for _ in example.rows]
        self._places = [(example.source, row) for example in examples for row in example.rows]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, place: slice) -> list[NDArray[np.uint8]]: ...
    def __getitem__(self, place: int | slice) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        source, row = self._places[place]
        return np.asarray(source[row])
