"""Change of each finding from the prior study, as probabilities of six states.

    turn_c = A_c [v, v', v - v'],    logits = W_c [1, z_c, z'_c, turn_c, b_c, 1 - b_c],    p = softmax(logits)

v and v' are what an encoder sees in the study and in its prior (mean and largest token), z_c and z'_c the log-odds of
the class in both, b_c whether the report of the prior affirms it (both places are 0 where that is not known). A is a
ridge regression of -1 (improved, resolved), 0 and 1 (new, worse), one for each member of an ensemble, on the studies
that it was trained on. W is a multinomial regression on what members say of studies that they were not trained on:
first one for all classes, drawn to what z_c alone says; then one for each class, drawn to that. A report often leaves
open which state it is (``radweave.labels.comparisons.possible``); the loss is then that of any of them.

All of it is learned from studies of the training split that have a prior. Without a prior nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import minimize
from torch import Tensor, nn

from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.drafting.calibration import f1_threshold
from radweave.drafting.smoothers import Changes, Floats, Mask
from radweave.labels.comparisons import PRESENT, STATES

FEATURES = 6
"""Rows of W."""
FEWEST = 20
"""Training studies with a prior; from fewer nothing is learned."""
OF_ALL, FURTHEST = 1.0, 20.0
"""Deviation of the regression for all classes from what z_c says; bound of log-odds."""
_IS_THERE = np.array([state in PRESENT for state in STATES])
_TURN = np.array([0.0, 1.0, 1.0, 0.0, -1.0, -1.0])


def only_of_one_patient(patients: Sequence[str], of_priors: Sequence[str]) -> None:
    """Refuse a prior that is another patient's.

    Raises:
        InputError: without a name.
    """
    if list(patients) != list(of_priors):
        raise InputError("the prior is of another patient", field="prior", expected="a study of the same patient")


@dataclass(frozen=True, slots=True)
class Pairs:
    """P studies beside their priors: log-odds ``now`` and ``before`` (P, C), what the reports of the priors affirm
    ``reported`` (P, C; 1 yes, 0 no, -1 not known), and ``vectors`` and ``prior_vectors`` (P, K, V).
    """

    now: Floats
    before: Floats
    reported: NDArray[np.int64]
    vectors: Floats
    prior_vectors: Floats

    def __len__(self) -> int:
        return len(self.now)

    @property
    def compared(self) -> Floats:
        """[v, v', v - v'] of each member (P, K, 3 V)."""
        return np.concatenate([self.vectors, self.prior_vectors, self.vectors - self.prior_vectors], axis=-1)

    def features(self, turn: Floats) -> Floats:
        """Features of W (P, C, 6), given ``turn`` (P, C)."""
        affirmed, denied = ((self.reported == value).astype(np.float64) for value in (1, 0))
        one = np.ones_like(self.now)
        bounded = [np.clip(each, -FURTHEST, FURTHEST) for each in (self.now, self.before)]
        return np.stack([one, *bounded, turn, affirmed, denied], axis=-1)


class NoChange(nn.Module):
    """Nothing compares a study with its prior."""

    is_there = False


class NoChangeConfig(Config):
    """Do not compare with priors: they change nothing."""

    kind: Literal["none"] = "none"

    def build(self, *_: object) -> NoChange:
        return NoChange()


class ChangeConfig(Config):
    """Compare a study with its prior. ``ridge`` of A in units of the mean square of what it reads; ``deviation`` is how
    far a class's W may lie from that of all classes (that of a normal prior).
    """

    kind: Literal["compared"] = "compared"
    ridge: float = Field(default=1.0, gt=0)
    deviation: float = Field(default=0.25, gt=0)

    def build(self, members: int, width: int, num_classes: int) -> Change:
        return Change(members, width, num_classes, self)


ChangeSetting = Annotated[NoChangeConfig | ChangeConfig, Field(discriminator="kind")]


class Change(nn.Module):
    """A and W, in buffers, for vectors of ``width`` numbers; ``fitted`` says whether there was enough to learn from."""

    is_there = True
    centre: Tensor
    spread: Tensor
    effect: Tensor
    weights: Tensor
    threshold: Tensor
    fitted: Tensor

    def __init__(self, members: int, width: int, num_classes: int, config: ChangeConfig) -> None:
        super().__init__()
        self.ridge, self.deviation = config.ridge, config.deviation
        double = torch.float64
        self.register_buffer("centre", torch.zeros(members, 3 * width, dtype=double))
        self.register_buffer("spread", torch.ones(members, 3 * width, dtype=double))
        self.register_buffer("effect", torch.zeros(members, 3 * width, num_classes, dtype=double))
        self.register_buffer("weights", torch.zeros(num_classes, FEATURES, len(STATES), dtype=double))
        self.register_buffer("threshold", torch.ones((), dtype=double))
        self.register_buffer("fitted", torch.tensor(False))

    def fit(self, pairs: Pairs, folds: NDArray[np.int64], allowed: Mask, stated: Mask, counted: Mask) -> Floats | None:
        """Learn from P training studies beside their priors; return their states (P, C, 6) as a regression W gives them
        that was fitted without their fold, None where the studies are too few.

        Args:
            pairs: the studies; log-odds are of members and stacks that never saw their patients.
            folds: (P,), of which fold each patient is: member k was not trained on fold k.
            allowed: (P, C, 6), the states that the reports leave open.
            stated: (P, C, 6), the states that the report says; the threshold is made of these.
            counted: (C,), the classes that are findings.
        """
        if len(pairs) < FEWEST:
            return None
        compared = pairs.compared
        turned = _turned(allowed)
        for member in range(len(self.effect)):
            others = folds != member
            if others.sum() >= 2:
                fitted = ridge_regression(compared[others, member], turned[others], self.ridge)
                for name, value in zip(("centre", "spread", "effect"), fitted, strict=True):
                    getattr(self, name)[member] = torch.from_numpy(value)
        members = folds[:, None] == np.arange(len(self.effect))
        features = pairs.features(self.turn(compared, members))
        self.weights.copy_(torch.from_numpy(state_regressions(features, allowed, self.deviation)))
        states = np.zeros(allowed.shape)
        for fold in np.unique(folds):
            own = folds == fold
            without = state_regressions(features[~own], allowed[~own], self.deviation)
            states[own] = probabilities(features[own], without)
        self.threshold.fill_(f1_threshold(states[:, counted, 1:], stated[:, counted, 1:].astype(np.float64)))
        self.fitted.fill_(True)
        return states

    def turn(self, compared: Floats, members: Mask) -> Floats:
        """Mean over the members that are asked (P, K) of what they say of the direction (P, C)."""
        centre, spread, effect = (value.cpu().numpy() for value in (self.centre, self.spread, self.effect))
        # Each study by itself: alone and in any batch the same.
        return np.stack(
            [
                np.mean([(row[k] - centre[k]) / spread[k] @ effect[k] for k in np.flatnonzero(own)], axis=0)
                for row, own in zip(compared, members, strict=True)
            ]
        )

    def states(self, pairs: Pairs, members: Mask) -> Floats:
        """Probabilities of the states (P, C, 6) as the members that are asked (P, K) see the studies."""
        return probabilities(pairs.features(self.turn(pairs.compared, members)), self.weights.cpu().numpy())

    def changes(self, states: Floats) -> Changes:
        """The states (C, 6) of one study as evidence."""
        return Changes(states, float(self.threshold))


def there_now(states: Floats) -> Floats:
    """Log-odds (..., C) that a class is there now, of its states (..., C, 6)."""
    share = np.clip(states[..., _IS_THERE].sum(axis=-1), 1e-9, 1 - 1e-9)
    return np.asarray(np.log(share / (1 - share)))


def _turned(allowed: Mask) -> Floats:
    """The direction (P, C), -1 to 1, of the states that are left open (P, C, 6)."""
    return np.asarray((allowed * _TURN).sum(axis=-1) / allowed.sum(axis=-1))


def ridge_regression(values: Floats, targets: Floats, ridge: float) -> tuple[Floats, Floats, Floats]:
    """Centre and spread (V,) of the values (N, V), and the effect (V, C) of values that have both taken off."""
    centre, spread = values.mean(axis=0), values.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    placed = (values - centre) / spread
    products = placed @ placed.T
    penalty = ridge * max(float(np.trace(products)) / len(products), 1e-6)
    shares = np.linalg.solve(products + penalty * np.eye(len(products)), targets - targets.mean(axis=0))
    return centre, spread, np.asarray(placed.T @ shares)


def state_regressions(features: Floats, allowed: Mask, deviation: float) -> Floats:
    """W (C, 6, 6) from features (P, C, 6) and the states that are left open (P, C, 6)."""
    classes = features.shape[1]
    flat = features.reshape(-1, FEATURES), allowed.reshape(-1, len(STATES))
    of_all = multinomial(*flat, _by_the_class_alone(), OF_ALL)
    return np.stack([multinomial(features[:, c], allowed[:, c], of_all, deviation) for c in range(classes)])


def _by_the_class_alone() -> Floats:
    """W (6, 6) by which a class is there with its log-odds, and all states that go with that are alike."""
    start = np.zeros((FEATURES, len(STATES)))
    start[0] = -np.log(np.where(_IS_THERE, _IS_THERE.sum(), (~_IS_THERE).sum()))
    start[1] = _IS_THERE
    return start


def probabilities(features: Floats, weights: Floats) -> Floats:
    """Softmax (P, C, 6) of features (P, C, 6) and W (C, 6, 6)."""
    logits = (features[..., None] * weights).sum(axis=-2)
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def multinomial(values: Floats, allowed: Mask, mean: Floats, deviation: float) -> Floats:
    """W (F, S) with the greatest posterior, of values (N, F) and the states (N, S) one of which each is in.

    The prior is normal around ``mean`` (F, S).
    """
    open_states = allowed.astype(np.float64)

    def loss(flat: Floats) -> tuple[float, Floats]:
        logits = values @ flat.reshape(mean.shape)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True)) + 1e-30
        all_of, within = raised.sum(axis=1), (raised * open_states).sum(axis=1)
        apart = (flat - mean.ravel()) / deviation
        misfit = float((np.log(all_of) - np.log(within)).sum())
        share = raised / all_of[:, None] - raised * open_states / within[:, None]
        return misfit + 0.5 * float(apart @ apart), (values.T @ share).ravel() + apart / deviation

    solution = minimize(loss, mean.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 300, "ftol": 1e-10})
    return np.asarray(solution.x.reshape(mean.shape))
