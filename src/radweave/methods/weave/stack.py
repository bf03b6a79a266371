"""The stack: what each source is worth for each class, fitted to what it says of studies that it was not trained on.

Sources give scores: log-odds of heads, smoothed labels of memories. Each becomes log-odds z_sc by one logistic curve
for each source and class. The stack is one logistic regression for each class over the sources,

    logit p_c = a_c sum_s w_sc z_sc + b_c,   w_sc >= 0,

with a normal prior around equal weights, and one more curve (a, b). Every curve of a class is drawn to that of all
classes: a free one through a handful of positives flatters itself, and flattens what ranks well. All of it is fitted to
out-of-fold scores of the training split.

Sources: Wolpert, "Stacked generalization", 1992; Breiman, "Stacked regressions", 1996, for weights that are not
negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.core.study import Split
from radweave.drafting.calibration import FEWEST_POSITIVES, PlattCalibration, f1_threshold, logistic_regression
from radweave.metrics.heads import ranking

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Kind = Literal["log_odds", "smoothed"]
"""Scores of heads, and shares of training labels, about 0 to 1."""
ADDS = ("together", "together_without", "by_class", "by_class_without")
"""Figures in ``Stack.added`` of each source."""
NOT_KNOWN = -1.0
"""In place of an average precision: weights of a run are finite."""
LEAST, MOST = 2e-3, 0.99
"""Bounds of a smoothed label that log-odds are taken of."""


@dataclass(frozen=True, slots=True)
class OutOfFold:
    """Scores (J, S, C) that sources gave studies they were not trained on, with labels (J, C) of 0 and 1.

    ``folds`` and ``patients`` (J,) say of what fold and whose each study is. ``withheld`` (J,) is the fold that the
    member lacked which gave the scores.

    Raises:
        InputError: if a member was asked of a study that it was trained on, a patient is of two folds, or the studies
            are not those of the training split.
    """

    scores: Floats
    labels: Floats
    folds: Ints
    withheld: Ints
    patients: Sequence[str]
    split: Split = "train"

    def __post_init__(self) -> None:
        if self.split != "train":
            raise InputError("leak: the stack is fitted on the training split alone", field="split", got=self.split)
        if not np.array_equal(self.folds, self.withheld):
            number = int((self.folds != self.withheld).sum())
            raise InputError("leak: a member was asked of studies that it was trained on", field="folds", got=number)
        of_patient: dict[str, int] = {}
        for patient, fold in zip(self.patients, self.folds.tolist(), strict=True):
            if of_patient.setdefault(patient, fold) != fold:
                raise InputError("leak: a patient is in two folds", field="folds")

    def of(self, sources: Sequence[int]) -> OutOfFold:
        """Some of the sources alone."""
        return replace(self, scores=self.scores[:, list(sources)])


class EqualWeightsConfig(Config):
    """Equal weights of all sources."""

    kind: Literal["equal"] = "equal"

    def weights(self, log_odds: Floats, labels: Floats) -> Floats:
        """Weights (S, C), of log-odds (N, S, C) and labels (N, C)."""
        _, sources, classes = log_odds.shape
        return np.full((sources, classes), 1.0 / max(sources, 1))


class StackConfig(Config):
    """Logistic stacking. ``deviation`` is that of a normal prior: how far a class's weights and offset lie from equal
    weights and none. A class with fewer than five positives has equal weights.
    """

    kind: Literal["logistic"] = "logistic"
    deviation: float = Field(default=0.15, gt=0)

    def weights(self, log_odds: Floats, labels: Floats) -> Floats:
        """Weights (S, C), of log-odds (N, S, C) and labels (N, C)."""
        studies, sources, classes = log_odds.shape
        positives = (labels > 0).sum(axis=0)
        enough = np.minimum(positives, studies - positives) >= FEWEST_POSITIVES
        values = np.concatenate([log_odds, np.ones((studies, 1, classes))], axis=1)
        equal = np.append(np.full(sources, 1.0 / max(sources, 1)), 0.0)
        near = np.full(sources + 1, self.deviation)
        # No source counts against its own scores; the last coefficient is the offset.
        least = np.append(np.zeros(sources), -np.inf)
        coefficients = [
            logistic_regression(values[:, :, c], labels[:, c], equal, near, least) if enough[c] else equal
            for c in range(classes)
        ]
        return np.stack(coefficients, axis=1)[:-1]


Weighing = EqualWeightsConfig | StackConfig
StackSetting = Annotated[Weighing, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class FittedStack:
    """Curves of the sources (S, C) each, weights (S, C) and offsets (C,)."""

    slopes: Floats
    offsets: Floats
    weights: Floats
    bias: Floats
    kinds: tuple[Kind, ...]

    @classmethod
    def fit(cls, scores: Floats, labels: Floats, kinds: Sequence[Kind], weighing: Weighing) -> FittedStack:
        """From scores (N, S, C) and labels (N, C) of 0 and 1."""
        plain = in_log_odds(scores, kinds)
        curves = [PlattCalibration.of_log_odds(plain[:, s], labels) for s in range(len(kinds))]
        slopes = np.array([curve.slope for curve in curves]).reshape(plain.shape[1:])
        offsets = np.array([curve.offset for curve in curves]).reshape(plain.shape[1:])
        return cls._weighed(slopes, offsets, plain * slopes + offsets, labels, tuple(kinds), weighing)

    @classmethod
    def _weighed(
        cls, slopes: Floats, offsets: Floats, log_odds: Floats, labels: Floats, kinds: tuple[Kind, ...], how: Weighing
    ) -> FittedStack:
        weights = how.weights(log_odds, labels)
        whole = PlattCalibration.of_log_odds((log_odds * weights).sum(axis=1), labels)
        return cls(slopes, offsets, weights * whole.slope, whole.offset, kinds)

    def without(self, source: int, scores: Floats, labels: Floats, weighing: Weighing) -> FittedStack:
        """The stack of the other sources: their curves as they are, weighed anew."""
        kinds = self.kinds[:source] + self.kinds[source + 1 :]
        slopes, offsets, log_odds = (
            np.delete(values, source, axis=-2) for values in (self.slopes, self.offsets, self.log_odds(scores))
        )
        return self._weighed(slopes, offsets, log_odds, labels, kinds, weighing)

    def log_odds(self, scores: Floats) -> Floats:
        """Calibrated log-odds of each source's scores (..., S, C)."""
        return np.asarray(in_log_odds(scores, self.kinds) * self.slopes + self.offsets)

    def __call__(self, scores: Floats) -> Floats:
        """Log-odds (..., C) of all sources together."""
        # Not by ``einsum``, which may add in another order where there are more studies.
        return np.asarray((self.log_odds(scores) * self.weights).sum(axis=-2) + self.bias)


def in_log_odds(scores: Floats, kinds: Sequence[Kind]) -> Floats:
    """Scores (..., S, C) of sources of these kinds as log-odds; S may be 0."""
    plain = [as_log_odds(scores[..., s, :], kind) for s, kind in enumerate(kinds)]
    return np.stack(plain, axis=-2) if plain else np.asarray(scores)


def as_log_odds(scores: Floats, kind: Kind) -> Floats:
    """Scores as log-odds; smoothed labels, which may lie outside of 0 to 1, within bounds."""
    if kind == "log_odds":
        return scores
    share = np.clip(scores, LEAST, MOST)
    return np.asarray(np.log(share / (1 - share)))


def _rows_without(oof: OutOfFold) -> dict[int, NDArray[np.bool_]]:
    """For each fold the studies (J,) of the others. With a single fold there is no other way than to take all."""
    present = np.unique(oof.folds)
    return {int(fold): oof.folds != fold if len(present) > 1 else oof.folds == fold for fold in present}


def stacks_without(oof: OutOfFold, kinds: Sequence[Kind], weighing: Weighing) -> dict[int, FittedStack]:
    """For each fold the stack of the others."""
    return {
        fold: FittedStack.fit(oof.scores[rows], oof.labels[rows], kinds, weighing)
        for fold, rows in _rows_without(oof).items()
    }


def cross_fitted_log_odds(oof: OutOfFold, stacks: Mapping[int, FittedStack]) -> Floats:
    """Log-odds (J, C) for each study of the stack without its fold: it has not seen them either."""
    log_odds = np.zeros(oof.labels.shape)
    for fold, stack in stacks.items():
        own = oof.folds == fold
        log_odds[own] = stack(oof.scores[own])
    return log_odds


def precisions_without(
    oof: OutOfFold, stacks: Mapping[int, FittedStack], weighing: Weighing, counted: NDArray[np.bool_]
) -> Floats:
    """Average precision (1 + S, 2) of all sources, and of all but each, out of fold: that of all ``counted`` classes
    (C,) together, and the mean over those of them with five positives. What a source adds is the difference.
    """
    rows, sources = _rows_without(oof), oof.scores.shape[1]
    precisions = [_precisions(cross_fitted_log_odds(oof, stacks), oof.labels, counted)]
    for source in range(sources):
        others = {
            fold: stack.without(source, oof.scores[rows[fold]], oof.labels[rows[fold]], weighing)
            for fold, stack in stacks.items()
        }
        rest = replace(oof, scores=np.delete(oof.scores, source, axis=1))
        precisions.append(_precisions(cross_fitted_log_odds(rest, others), oof.labels, counted))
    return np.asarray(np.nan_to_num(np.array(precisions), nan=NOT_KNOWN))


def _precisions(log_odds: Floats, labels: Floats, counted: NDArray[np.bool_]) -> tuple[float, float]:
    """Over the classes together, and the mean over each; NaN where nothing is positive."""
    scores, true, once = log_odds[:, counted], labels[:, counted] > 0, np.ones((1, len(labels)))
    enough = np.flatnonzero(true.sum(axis=0) >= FEWEST_POSITIVES)
    each = [float(ranking(scores[:, [k]], true[:, [k]], once)[1][0]) for k in enough]
    return float(ranking(scores, true, once)[1][0]), float(np.mean(each)) if each else float("nan")


class Stack(nn.Module):
    """A stack over sources, among the weights of a run; ``fitted`` says whether there is one yet.

    ``kinds`` has all that a stack could weigh, ``chosen`` which of them it does; the others' weights are 0.
    ``threshold`` is from which probability on asserting a finding pays off. ``precision`` is what the sources add, see
    ``precisions_without``: first that of all, then a row for each source; ``NOT_KNOWN`` where it was not asked.
    """

    slopes: Tensor
    offsets: Tensor
    weights: Tensor
    bias: Tensor
    threshold: Tensor
    precision: Tensor
    fitted: Tensor

    def __init__(self, kinds: Mapping[str, Kind], chosen: Sequence[str], num_classes: int) -> None:
        super().__init__()
        self.rows = [number for number, name in enumerate(kinds) if name in chosen]
        self.kinds = tuple(kinds[name] for name in kinds if name in chosen)
        for name in ("slopes", "offsets", "weights"):
            self.register_buffer(name, torch.zeros(len(kinds), num_classes, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros(num_classes, dtype=torch.float64))
        self.register_buffer("threshold", torch.ones((), dtype=torch.float64))
        self.register_buffer("precision", torch.full((1 + len(kinds), 2), NOT_KNOWN, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    def fit(
        self, oof: OutOfFold, weighing: Weighing, counted: NDArray[np.bool_]
    ) -> tuple[Floats, dict[int, FittedStack]]:
        """Take the stack of all studies, and return the log-odds (J, C) of ones that were fitted without each study's
        fold, and those; the threshold is of these, over the classes that are ``counted``.
        """
        whole = FittedStack.fit(oof.scores, oof.labels, self.kinds, weighing)
        for name in ("slopes", "offsets", "weights"):
            rows = getattr(self, name)
            rows[self.rows] = torch.from_numpy(getattr(whole, name)).to(rows.device)
        self.bias.copy_(torch.from_numpy(whole.bias))
        stacks = stacks_without(oof, self.kinds, weighing)
        log_odds = cross_fitted_log_odds(oof, stacks)
        probabilities = 1 / (1 + np.exp(-log_odds[:, counted]))
        self.threshold.fill_(f1_threshold(probabilities, oof.labels[:, counted]))
        self.fitted.fill_(True)
        return log_odds, stacks

    def ask_what_each_adds(
        self,
        oof: OutOfFold,
        stacks: Mapping[int, FittedStack],
        weighing: Weighing,
        counted: NDArray[np.bool_],
    ) -> None:
        """Keep the average precision with and without each source."""
        precisions = torch.from_numpy(precisions_without(oof, stacks, weighing, counted))
        self.precision[[0, *(row + 1 for row in self.rows)]] = precisions.to(self.precision.device)

    def added(self, names: Sequence[str]) -> dict[str, dict[str, float | None]]:
        """Source -> average precision, all findings together and mean over classes, of all and without it."""
        rows = self.precision[[0, *(row + 1 for row in self.rows)]].tolist()
        all_of, *each = [[None if value == NOT_KNOWN else value for value in row] for row in rows]
        return {
            name: dict(zip(ADDS, (all_of[0], one[0], all_of[1], one[1]), strict=True))
            for name, one in zip(names, each, strict=True)
        }

    @property
    def as_fitted(self) -> FittedStack:
        """The fitted stack, as arrays."""
        slopes, offsets, weights = (rows[self.rows].cpu().numpy() for rows in (self.slopes, self.offsets, self.weights))
        return FittedStack(slopes, offsets, weights, self.bias.cpu().numpy(), self.kinds)
