"""Scores to probabilities, one logistic curve per class, with their reliability.

Source: Platt, "Probabilistic outputs for support vector machines", 1999, with his smoothed targets. Few studies say
little of a rare class: where scores are log-odds, its curve is drawn to the one of all classes by a normal prior.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from radweave.core.config import checked
from radweave.core.errors import InputError
from radweave.core.evidence import DraftEvidence
from radweave.core.json_files import read_json_object, write_json
from radweave.core.study import Record
from radweave.labels import NO_FINDING
from radweave.metrics.statistics import ReliabilityBin, reliability

Floats = NDArray[np.float64]

FEWEST_POSITIVES = 5
"""A class with fewer, or with fewer negatives, is not calibrated: its frequency is all that is known of it."""
CLASS_DEVIATION = 0.25
"""Expected deviation of a class's slope and offset from those of all classes: docs/phantom_encoder.md."""


@dataclass(frozen=True, slots=True)
class PlattCalibration:
    """p = sigmoid(slope * score + own * stated + offset), each (K,); see ``stated_log_odds``. Neither slope is
    negative: nothing speaks against itself, and what says nothing of a class gets about 0.
    """

    slope: Floats
    offset: Floats
    own: Floats | None = None

    @classmethod
    def fit(cls, scores: Floats, labels: Floats) -> PlattCalibration:
        """From scores (N, K) of studies that did not train the model that gave them, and labels (N, K) of 0 and 1."""
        return cls._of(_curve(scores[:, [k]], labels[:, k]) for k in range(scores.shape[1]))

    @classmethod
    def of_log_odds(cls, scores: Floats, labels: Floats, stated: Floats | None = None) -> PlattCalibration:
        """The same for log-odds (N, K) of heads, and of the method's own reports (N, K): each class's curve is drawn to
        that of all calibrated ones.
        """
        features = scores[:, :, None] if stated is None else np.stack([scores, stated], axis=2)
        positives = (labels > 0).sum(axis=0)
        enough = np.minimum(positives, len(labels) - positives) >= FEWEST_POSITIVES
        pooled = features[:, enough].reshape(-1, features.shape[2])
        together = _curve(pooled, labels[:, enough].ravel()) if enough.any() else None
        return cls._of(_curve(features[:, k], labels[:, k], together) for k in range(scores.shape[1]))

    @classmethod
    def _of(cls, curves: Iterable[Floats]) -> PlattCalibration:
        slope, *own, offset = np.stack(list(curves)).T
        return cls(slope, offset, own[0] if own else None)

    def __call__(self, scores: Floats, stated: Floats | None = None) -> Floats:
        """Probabilities (N, K)."""
        return np.asarray(1.0 / (1.0 + np.exp(-self.log_odds(scores, stated))))

    def log_odds(self, scores: Floats, stated: Floats | None = None) -> Floats:
        """The same as log-odds."""
        logits = scores * self.slope + self.offset
        if self.own is not None and stated is not None:
            logits = logits + stated * self.own
        return np.asarray(logits)


def _curve(features: Floats, labels: Floats, near: Floats | None = None) -> Floats:
    """Slopes of features (N, F) and the offset (F + 1,); with ``near`` those with the greatest posterior under a normal
    prior around it.
    """
    positives, negatives = float(labels.sum()), float((1 - labels).sum())
    share = (positives + 0.5) / (positives + negatives + 1.0)
    prior = float(np.log(share / (1 - share)))
    count = features.shape[1]
    varies = features.std(axis=0) >= 1e-9
    if min(positives, negatives) < FEWEST_POSITIVES or not varies.any():
        return np.array([0.0] * count + [prior])
    spread, mean = np.where(varies, features.std(axis=0), 1.0), features.mean(axis=0)
    targets = np.where(labels > 0, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    unit = (features - mean) / spread

    def loss(curve: Floats) -> float:
        logits = unit @ curve[:-1] + curve[-1]
        misfit = float(np.mean(np.logaddexp(0, logits) - targets * logits))
        if near is None:
            return misfit
        return misfit + float(((plain(curve) - near) ** 2).sum()) / (2 * CLASS_DEVIATION**2 * len(labels))

    def plain(curve: Floats) -> Floats:
        slopes = curve[:-1] / spread
        return np.append(slopes, curve[-1] - slopes @ mean)

    from scipy.optimize import minimize

    start = np.append(np.where(varies, 0.5, 0.0), prior)
    return plain(minimize(loss, start, bounds=[*[(0, None)] * count, (None, None)]).x)


def logistic_regression(values: Floats, targets: Floats, mean: Floats, deviation: Floats, least: Floats) -> Floats:
    """Coefficients (F,) with the greatest posterior of a logistic regression of targets (N,) on values (N, F).

    The prior is normal around ``mean`` (F,) with ``deviation`` (F,). No coefficient is below ``least`` (F,), which may
    be minus infinity.
    """

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        logits = values @ coefficients
        apart = (coefficients - mean) / deviation
        misfit = np.logaddexp(0, logits) - targets * logits
        slope = values.T @ (1 / (1 + np.exp(-logits)) - targets) + apart / deviation
        return float(misfit.sum() + 0.5 * apart @ apart), slope

    from scipy.optimize import minimize

    bounds = [(None if bound == -np.inf else bound, None) for bound in least.tolist()]
    options = {"maxiter": 500, "ftol": 1e-12, "gtol": 1e-8}
    return np.asarray(minimize(loss, mean, jac=True, bounds=bounds, method="L-BFGS-B", options=options).x)


def stated_log_odds(stated: Floats, reports: int) -> Floats:
    """Log-odds of a class by how many of a study's own ``reports`` state it (K,), with half a report on either side."""
    return np.asarray(np.log((stated + 0.5) / (reports - stated + 0.5)))


def f1_threshold(probabilities: Floats, labels: Floats) -> float:
    """Probability from which asserting pays off: half of the best F1, 1 where nothing is positive.

    Source: Lipton, Elkan and Narayanaswamy, ECML 2014.
    """
    best = best_threshold(probabilities, labels)[1]
    return best / 2 if best > 0 else 1.0


def best_threshold(probabilities: Floats, labels: Floats) -> tuple[float, float]:
    """The threshold with the highest F1 over all entries given, and that F1; (1, 0) where nothing is positive."""
    predicted, true = probabilities.ravel(), labels.ravel() > 0
    if not true.any():
        return 1.0, 0.0
    order = np.argsort(-predicted, kind="stable")
    hits = np.cumsum(true[order])
    scores = 2 * hits / (np.arange(1, len(order) + 1) + true.sum())
    # Entries of equal probability are asserted together.
    last = np.append(predicted[order][1:] != predicted[order][:-1], True)
    best = int(np.argmax(np.where(last, scores, -1)))
    return float(predicted[order][best]), float(scores[best])


# Thresholds and weights of classes that serve micro F1 and macro F1 together.
#
# Micro F1 rises by asserting a class c where its probability p_c is above half of the best pooled F1, F; macro F1 where
# it is above half of the class's own best, f_c. To first order a study's assertions are worth
#
# sum_c a (p_c - F/2) + b_c (p_c - f_c/2),   a = 1 / n,   b_c = MACRO / (K n_c),
#
# n and n_c count assertions and true findings, of all classes and of c: a rare class moves its own F1 far, and so the
# mean over the K classes. That is sum_c a w_c (p_c - t_c) with t_c = (a F/2 + b_c f_c/2) / (a + b_c) and
# w_c = (a + b_c) / a. No class is stated of more than ``MOST`` times as many studies as have it.
#
# f_c is the best F1 that the probabilities expect of themselves, not the best on the labels: with few positives
# the best of all thresholds is a matter of luck, and lies too high.
#
# Source: Lipton, Elkan and Narayanaswamy, "Optimal thresholding of classifiers to maximize F1 measure", ECML 2014, for
# half of the best F1, and for that of probabilities.


MACRO = 5.0
"""Weight of macro F1 beside micro F1; chosen on out-of-fold training studies, see docs/methods/weave.md."""
MOST = 2.0


@dataclass(frozen=True, slots=True)
class Balance:
    """Probability from which stating a class pays off (K,), and its weight (K,), 1 or more."""

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
            predicted, true = probabilities[:, k], labels[:, k]
            own = expected_best(predicted) / 2
            of_own = MACRO / (int(calibrated.sum()) * max(int((predicted >= own).sum() + true.sum()), 1))
            fair = (of_all * pooled + of_own * own) / (of_all + of_own)
            thresholds[k] = max(fair, float(np.quantile(predicted, max(0.0, 1 - MOST * true.mean()))))
            weights[k] = (of_all + of_own) / of_all
        return cls(thresholds, weights)


def expected_best(probabilities: Floats) -> float:
    """The best F1 over all thresholds, 2 E[hits] / (E[positives] + stated), if these probabilities (N,) are right."""
    ordered = -np.sort(-probabilities)
    stated = np.arange(1, len(ordered) + 1)
    return float((2 * np.cumsum(ordered) / (ordered.sum() + stated)).max())


def rescaled(thresholds: Floats, weights: Floats, pooled: float, macro: float) -> tuple[Floats, Floats]:
    """The same where macro F1 counts ``macro`` times as much; 0 is micro F1 alone.

    With w = 1 + b / a, w t = F/2 + b/a f_c/2, of which the second part is multiplied.
    """
    heavier = 1 + macro * (weights - 1)
    return (pooled + macro * (weights * thresholds - pooled)) / heavier, heavier


# The calibration of a run, ``calibration.json``.
#
# It is made once, when training has ended: of a method's own heads on the validation split; of smoothers, whose studies
# are the training studies, on the training split, each study without its patient's. The test split has no part in it.
# Every draft of the run is written with it, whatever decodes.


FILE = "calibration.json"
Source = Literal["model", "stack", "heads", "smoothers"]
LOG_ODDS: frozenset[Source] = frozenset({"stack", "heads"})
"""Sources whose scores are log-odds; the others' are about 0 to 1."""
Rule = Literal["pooled", "per_class", "balanced"]
Number = Field(allow_inf_nan=False)
FEWEST_IN_BIN, MOST_BINS = 20, 10
"""Bins of studies by probability: at most so many, each of at least so many studies."""


class Reliability(Record):
    """Studies with similar probabilities: their mean, the least, and the share that had the finding."""

    probability: float = Field(ge=0, le=1, alias="said")
    frequency: float = Field(ge=0, le=1, alias="seen")
    count: int = Field(ge=1)
    low: float = Field(ge=0, le=1)

    @classmethod
    def of(cls, group: ReliabilityBin) -> Reliability:
        return cls.model_validate(dict(zip(("said", "seen", "count", "low"), astuple(group), strict=True)))


class ClassCalibration(Record):
    """One class: its curve, the probability from which asserting it pays off, and the outcome of the studies.

    ``balanced`` and ``weight`` are those of ``radweave.drafting.calibration``; ``own`` is the slope of what the
    method's own reports state.
    """

    slope: float = Number
    own: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    offset: float = Number
    threshold: float = Field(ge=0, le=1)
    positives: int = Field(ge=0)
    balanced: float | None = Field(default=None, ge=0, le=1)
    weight: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    reliability: tuple[Reliability, ...]


class RunCalibration(Record):
    """``source`` says what gives the scores: the model's own evidence (smoothed labels, or log-odds of a ``stack``),
    its heads, or smoothers on its embeddings.

    ``threshold`` is one for all findings, half of the best F1 over them. A class with fewer than five positives or
    negatives among the ``studies`` is not calibrated. ``holds`` is False in an export without a memory that the scores
    come from: none is calibrated there.
    """

    version: Literal[1] = 1
    source: Source
    split: Literal["train", "val"]
    studies: int = Field(ge=1)
    threshold: float = Field(ge=0, le=1)
    holds: bool = True
    classes: dict[str, ClassCalibration]

    @model_validator(mode="after")
    def _possible(self) -> RunCalibration:
        for name, one in self.classes.items():
            if one.positives > self.studies:
                raise ValueError(f"classes.{name}: more positives than studies")
            if self._is_enough(one) and not one.reliability:
                raise ValueError(f"classes.{name}: calibrated, and no study shows how well")
        return self

    @classmethod
    def fit(
        cls,
        source: Source,
        split: Literal["train", "val"],
        names: Sequence[str],
        scores: Floats,
        labels: Floats,
        stated: Floats | None = None,
    ) -> RunCalibration:
        """From scores (N, K) of studies that did not train what gave them, and their labels (N, K) of 0 and 1.

        With ``stated`` (N, K), log-odds by the method's own reports, scores are log-odds too.
        """
        log_odds = source in LOG_ODDS
        curves = (
            PlattCalibration.of_log_odds(scores, labels, stated) if log_odds else PlattCalibration.fit(scores, labels)
        )
        probabilities = curves(scores, stated)
        counted = [name != NO_FINDING for name in names]
        positives = labels.sum(axis=0)
        enough = np.minimum(positives, len(labels) - positives) >= FEWEST_POSITIVES
        finding_columns = np.flatnonzero(counted)
        balance = Balance.fit(probabilities[:, finding_columns], labels[:, finding_columns], enough[finding_columns])
        of_class = dict(
            zip(finding_columns.tolist(), zip(balance.thresholds, balance.weights, strict=True), strict=True)
        )
        num_bins = max(1, min(MOST_BINS, len(scores) // FEWEST_IN_BIN))
        return cls(
            source=source,
            split=split,
            studies=len(scores),
            threshold=f1_threshold(probabilities[:, counted], labels[:, counted]),
            classes={
                name: ClassCalibration(
                    slope=float(curves.slope[k]),
                    own=0.0 if curves.own is None else float(curves.own[k]),
                    offset=float(curves.offset[k]),
                    threshold=f1_threshold(probabilities[:, [k]], labels[:, [k]]),
                    positives=int(positives[k]),
                    balanced=float(of_class[k][0]) if k in of_class else None,
                    weight=float(of_class[k][1]) if k in of_class else 1.0,
                    reliability=tuple(
                        map(Reliability.of, reliability(probabilities[:, k], labels[:, k], num_bins=num_bins))
                    ),
                )
                for k, name in enumerate(names)
            },
        )

    def __call__(self, scores: Floats, stated: Floats | None = None) -> Floats:
        """Probabilities (N, K); of a class that is not calibrated, its frequency."""
        return np.asarray(1.0 / (1.0 + np.exp(-self.log_odds(scores, stated))))

    def log_odds(self, scores: Floats, stated: Floats | None = None) -> Floats:
        """The same as log-odds."""
        slope, offset, own = np.array([[one.slope, one.offset, one.own] for one in self.classes.values()]).T
        return PlattCalibration(slope, offset, own).log_odds(scores, stated)

    def thresholds(self, rule: Rule, macro: float = 1.0) -> Floats:
        """Probability from which asserting pays off, (K,): one for all findings, each its own, or between both.

        No Finding is far more frequent than any finding: it always has its own. ``macro`` multiplies the fitted weight
        of macro F1.
        """
        own = {name: rule == "per_class" or name == NO_FINDING for name in self.classes}
        fair = dict(zip(self.classes, self._between(macro)[0], strict=True))
        rest = fair if rule == "balanced" else dict.fromkeys(self.classes, self.threshold)
        return np.array([one.threshold if own[name] else rest[name] for name, one in self.classes.items()])

    def weights(self, rule: Rule, macro: float = 1.0) -> Floats:
        """Weight of stating each class (K,)."""
        return self._between(macro)[1] if rule == "balanced" else np.ones(len(self.classes))

    def _between(self, macro: float) -> tuple[Floats, Floats]:
        """Thresholds and weights between both means (K,)."""
        known = self.classes.values()
        fair = np.array([self.threshold if one.balanced is None else one.balanced for one in known])
        weights = np.array([one.weight for one in known])
        return (fair, weights) if macro == 1 else rescaled(fair, weights, self.threshold, macro)

    def is_calibrated(self, name: str) -> bool:
        """Tell if enough studies had the class, and enough lacked it."""
        return name in self.classes and self._is_enough(self.classes[name])

    def _is_enough(self, one: ClassCalibration) -> bool:
        return min(one.positives, self.studies - one.positives) >= FEWEST_POSITIVES

    def evidence(
        self,
        scores: Floats,
        rule: Rule,
        macro: float = 1.0,
        *,
        stated: Floats | None = None,
        updated: tuple[Floats, Floats] | None = None,
    ) -> DraftEvidence:
        """Evidence of a draft from one study's scores (K,), and log-odds by the method's own reports.

        With ``updated``, probabilities (K,) by the prior study too and the thresholds (K,) that go with them, these are
        shown, of all classes.

        ``class_probabilities`` are calibrated but for the classes in ``calibration.uncalibrated``, of which the scores
        stand as they are. ``alike`` has for every other class how many of the calibration's studies that were given
        about the same probability had it, and how many those were.
        """
        calibrated = self(scores[None], None if stated is None else stated[None])[0]
        plain = np.clip(scores, 0, 1) if self.source not in LOG_ODDS else 1 / (1 + np.exp(-scores))
        shown = {
            name: float(calibrated[k] if self.is_calibrated(name) else plain[k]) for k, name in enumerate(self.classes)
        }
        thresholds = self.thresholds(rule, macro)
        if updated is not None:
            thresholds, shown = updated[1], dict(zip(self.classes, updated[0].tolist(), strict=True))
        return {
            "class_probabilities": shown,
            "calibration": {
                "split": self.split,
                "studies": self.studies,
                "thresholds": {
                    name: cut
                    for name, cut in zip(self.classes, thresholds.tolist(), strict=True)
                    if self.is_calibrated(name)
                },
                "alike": {name: self._alike(name, p) for name, p in shown.items() if self.is_calibrated(name)},
                "uncalibrated": {
                    name: one.positives for name, one in self.classes.items() if not self.is_calibrated(name)
                },
            },
        }

    def _alike(self, name: str, probability: float) -> list[int]:
        """The number of studies with a similar probability that had the class, and of all of them."""
        bins = self.classes[name].reliability
        own = [one for one in bins if one.low <= probability] or [bins[0]]
        return [round(own[-1].frequency * own[-1].count), own[-1].count]


def save_calibration(calibration: RunCalibration, folder: Path) -> None:
    """Write ``calibration.json`` into a run folder."""
    write_json(folder / FILE, calibration.model_dump(mode="json", by_alias=True))


def load_calibration(folder: Path, classes: Sequence[str]) -> RunCalibration:
    """Read it.

    Raises:
        InputError: if it is missing or broken, or of other classes.
    """
    calibration = checked(RunCalibration, read_json_object(folder / FILE), file=folder / FILE)
    if tuple(calibration.classes) != tuple(classes):
        raise InputError("not the classes of the run", file=folder / FILE, field="classes")
    return calibration
