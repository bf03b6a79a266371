"""The patient's prior study as evidence: what its report affirms, and what the same scores say of its image.

A class of a study that has a prior is a cell of one of three groups: the prior's report affirms the class, does not
affirm it, or was not read. With l_c and l'_c the calibrated log-odds of the class in study and prior,

    logit p_c = w_g l_c + v_g l'_c + a_g + d_gc,   w_g >= 1

is one logistic regression for each group g over the cells of all classes, since few studies have a prior. A normal
prior draws it to the study's own evidence (w = 1, all else 0), and the deviation d_gc of a class to 0.

Stating a class pays off from another probability on than where no prior is read, moved by ``shift`` log-odds:

* In cells that the report affirms, from half of the best F1 that studies with a prior reach.
* In all others from there too, or lower: from where as many new findings are stated as by the studies' own evidence.
  Most classes that a report does not affirm stay absent, so that one threshold for all cells would hold back new
  findings, which a reader looks for first.

A class that is there now is new, or goes on and is worse, unchanged or improved; one that is not is resolved or absent.
With q_c the probability that it was there before (that of the report, or sigmoid of l'_c where it was not read)

    p(new) = p (1 - q)    p(resolved) = (1 - p) q    p(worse), p(unchanged), p(improved) = p q softmax(V [1, l_c, l'_c])

V is a multinomial regression. Reports often leave open which one it is; the loss is then that of any of them
(``radweave.labels.comparisons.possible``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from radweave.core.config import checked
from radweave.core.errors import InputError
from radweave.core.evidence import ClassChange
from radweave.core.json_files import read_json_object, write_json
from radweave.core.study import Record
from radweave.drafting.calibration import Number, f1_threshold, logistic_regression
from radweave.drafting.candidates import affirmed_classes
from radweave.drafting.smoothers import Changes, Floats, Mask, PriorEvidence
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import GOES_ON, STATES, possible, stated_changes

FILE: Final = "prior.json"
FEWEST: Final = 10
"""Studies with a prior, two for each of ``FOLDS``; from fewer a run learns nothing."""
FURTHEST: Final = 10.0
"""Bound of log-odds."""
PriorInput = Literal["report", "image", "both"]
PRIOR_INPUTS: Final[tuple[PriorInput, ...]] = ("report", "image", "both")
Group = Literal["affirmed", "not_affirmed", "unread"]
_REPORTED: Final[Mapping[Group, int]] = {"affirmed": 1, "not_affirmed": 0, "unread": -1}
_GROUPS: Final[Mapping[PriorInput, tuple[Group, ...]]] = {
    "report": ("affirmed", "not_affirmed"),
    "image": ("unread",),
    "both": ("affirmed", "not_affirmed", "unread"),
}
OF_SLOPES, OF_OFFSET, OF_CLASS = 0.5, 2.0, 0.25
"""Deviations of the normal prior: of w and v, of a, and of d."""
FOLDS: Final = 5
OF_GROWTH: Final = 1.0
"""Deviation of V."""
WORDS: Final = {1: "affirmed", 0: "not affirmed", -1: "not known"}


class PriorCurve(Record):
    """Cells of one group: ``own`` w, ``prior`` v, and ``offset`` a + d of each class (K,).

    ``shift`` is by how many log-odds the threshold of stating a class moves.
    """

    own: float = Field(ge=1, allow_inf_nan=False)
    prior: float = Number
    offset: tuple[float, ...]
    shift: float = Field(default=0.0, allow_inf_nan=False)

    @classmethod
    def fit(cls, own: Floats, before: Floats, truth: Floats, cells: Mask, *, image: bool) -> PriorCurve:
        """From log-odds (P, K) of studies and priors, what is there (P, K), and the cells (P, K) of the group."""
        rows, classes = np.nonzero(cells)
        names = np.eye(cells.shape[1])[classes]
        values = np.column_stack([own[cells], before[cells] * image, np.ones(len(rows)), names])
        near = np.array([1.0, 0.0, 0.0, *np.zeros(cells.shape[1])])
        deviation = np.array([OF_SLOPES, OF_SLOPES, OF_OFFSET, *np.full(cells.shape[1], OF_CLASS)])
        least = np.array([1.0, *np.full(len(near) - 1, -np.inf)])
        slope, prior, offset, *of_class = logistic_regression(values, truth[cells], near, deviation, least).tolist()
        return cls(own=max(slope, 1.0), prior=prior, offset=tuple(offset + one for one in of_class))

    def __call__(self, own: Floats, before: Floats) -> Floats:
        """Log-odds (..., K)."""
        return np.asarray(self.own * own + self.prior * before + np.array(self.offset))


class PriorCalibration(Record):
    """Weights of a prior study as evidence, from ``pairs`` of a study and its prior on ``split``.

    ``curves`` are those of each option and group of cells, ``growth`` V (3, 3). Stating a change pays off from
    ``threshold`` on.
    """

    version: Literal[1] = 1
    split: Literal["train", "val"]
    pairs: int = Field(ge=1)
    classes: tuple[str, ...]
    curves: dict[PriorInput, dict[Group, PriorCurve]]
    growth: tuple[tuple[float, ...], ...]
    threshold: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _complete(self) -> PriorCalibration:
        for read, groups in _GROUPS.items():
            if set(self.curves.get(read, ())) != set(groups):
                raise ValueError(f"curves.{read}: expected {', '.join(groups)}")
            if any(len(curve.offset) != len(self.classes) for curve in self.curves[read].values()):
                raise ValueError(f"curves.{read}: one offset for each class")
        if np.shape(self.growth) != (len(_ON), len(_ON)):
            raise ValueError(f"growth: {len(_ON)} rows of as many numbers")
        return self

    @classmethod
    def fit(
        cls,
        split: Literal["train", "val"],
        classes: Sequence[str],
        own: Floats,
        prior: PriorEvidence,
        known: Known,
        threshold: float,
    ) -> PriorCalibration:
        """From P studies and their priors.

        Args:
            split: of the studies.
            classes: K names.
            threshold: the probability from which stating a class pays off where no prior is read.
            own: calibrated log-odds (P, K) of the studies.
            prior: the evidence (P, K) of their priors; ``scores`` are calibrated log-odds.
            known: what the studies' own reports say.
        """
        own, before = _bounded(own), _bounded(prior.scores)
        counted = np.array([name != NO_FINDING for name in classes])
        least = _log_odds(threshold)

        def fit(group: Group, *, image: bool) -> tuple[PriorCurve, Mask, Floats]:
            cells = np.full(before.shape, True) if group == "unread" else prior.reported == _REPORTED[group]
            log_odds = np.zeros(own.shape)
            for fold in range(FOLDS):
                # Thresholds are of log-odds that a curve without the study gives, as it will be of new ones.
                rest = np.arange(len(own)) % FOLDS != fold
                curve = PriorCurve.fit(own, before, known.present, cells & rest[:, None], image=image)
                log_odds[~rest] = curve(own[~rest], before[~rest])
            return PriorCurve.fit(own, before, known.present, cells, image=image), cells & counted, log_odds

        new = (known.present > 0) & (prior.reported != 1) & counted

        def as_often(log_odds: Floats) -> float:
            """Log-odds from which as many new findings are stated as by the studies' own."""
            stated = int((own[new] >= least).sum())
            return float(np.sort(log_odds[new])[-stated]) if stated else np.inf

        curves: dict[PriorInput, dict[Group, PriorCurve]] = {}
        for read, groups in _GROUPS.items():
            fitted = {group: fit(group, image=read != "report") for group in groups}
            used = {group: one for group, one in fitted.items() if group != "unread" or read == "image"}
            predicted = np.concatenate([log_odds[cells] for _, cells, log_odds in used.values()])
            true = np.concatenate([known.present[cells] for _, cells, _ in used.values()])
            pays = _log_odds(f1_threshold(_probable(predicted), true))
            curves[read] = {
                group: curve.model_copy(
                    update={"shift": (pays if group == "affirmed" else min(pays, as_often(log_odds))) - least}
                )
                for group, (curve, _, log_odds) in fitted.items()
            }
        left_open = known.possible[..., _ON]
        cells = left_open.any(axis=-1)
        growth = multinomial(_growth_features(own, before)[cells], left_open[cells], OF_GROWTH)
        fresh = cls(
            split=split,
            pairs=len(own),
            classes=tuple(classes),
            curves=curves,
            growth=tuple(map(tuple, growth.tolist())),
            threshold=1.0,
        )
        states = fresh.states(fresh.log_odds("both", own, prior), own, prior)
        stated = f1_threshold(states[:, counted, 1:], known.stated[:, counted, 1:].astype(np.float64))
        return fresh.model_copy(update={"threshold": stated})

    def log_odds(self, read: PriorInput, own: Floats, prior: PriorEvidence) -> Floats:
        """Log-odds (..., K) that each class is there, from calibrated ones of the study and its prior."""
        own, before = _bounded(own), _bounded(prior.scores)
        result, reported = own, _reported(read, prior)
        for group, curve in self.curves[read].items():
            result = np.where(reported == _REPORTED[group], curve(own, before), result)
        return np.asarray(result)

    def shifts(self, read: PriorInput, prior: PriorEvidence) -> Floats:
        """Log-odds (..., K) by which the threshold of stating each class moves."""
        result, reported = np.zeros(prior.reported.shape), _reported(read, prior)
        for group, curve in self.curves[read].items():
            result = np.where(reported == _REPORTED[group], curve.shift, result)
        return result

    def states(self, log_odds: Floats, own: Floats, prior: PriorEvidence) -> Floats:
        """Probabilities (..., K, 6) of ``STATES`` with these log-odds that each class is there."""
        own, before = _bounded(own), _bounded(prior.scores)
        present, was = _probable(log_odds), _probable(before)
        was = np.where(prior.reported < 0, was, prior.reported == 1)
        on = _shares(_growth_features(own, before), np.array(self.growth)) * (present * was)[..., None]
        states = np.zeros((*present.shape, len(STATES)))
        states[..., _ON] = on
        states[..., STATES.index("new")] = present * (1 - was)
        states[..., STATES.index("resolved")] = (1 - present) * was
        states[..., STATES.index("absent")] = (1 - present) * (1 - was)
        return states


@dataclass(frozen=True, slots=True)
class UpdatedStudy:
    """A study by its own evidence and its prior: what its prior's report affirms (K,; 1 yes, 0 no, -1 not read),
    probabilities (K,), log-odds by which thresholds move (K,), and changes.
    """

    reported: NDArray[np.int64]
    probabilities: Floats
    shifts: Floats
    changes: Changes

    @classmethod
    def of(cls, learned: PriorCalibration, read: PriorInput, own: Floats, prior: PriorEvidence) -> UpdatedStudy:
        """From calibrated log-odds (K,) of the study and of its prior."""
        log_odds = learned.log_odds(read, own, prior)
        changes = Changes(learned.states(log_odds, own, prior), learned.threshold)
        return cls(_reported(read, prior), _probable(log_odds), learned.shifts(read, prior), changes)

    def thresholds(self, thresholds: Floats) -> Floats:
        """The probabilities (K,) from which stating a class pays off, of those where no prior is read."""
        odds = thresholds / np.maximum(1 - thresholds, 1e-9) * np.exp(self.shifts)
        return np.asarray(odds / (1 + odds))

    def shown(self, classes: Iterable[str]) -> dict[str, ClassChange]:
        """The changes as evidence of a draft."""
        return {
            name: {"before": WORDS[int(affirmed)], **dict(zip(STATES, states.tolist(), strict=True))}
            for name, affirmed, states in zip(classes, self.reported, self.changes.probabilities, strict=True)
            if name != NO_FINDING
        }


@dataclass(frozen=True, slots=True)
class Known:
    """Labels by the reports of P studies with a prior: classes that are ``present`` (P, K), and the states of each that
    they leave ``possible`` and that they have ``stated`` (P, K, 6).
    """

    present: Floats
    possible: Mask
    stated: Mask

    @classmethod
    def of(cls, reports: Sequence[str], present: Floats, reported: NDArray[np.int64], labeler: Labeler) -> Known:
        """From the reports, the classes that they affirm (P, K), and those of their priors (P, K)."""
        left_open = np.zeros((*present.shape, len(STATES)), dtype=bool)
        stated = np.zeros_like(left_open)
        for row, words in enumerate(stated_changes(reports, labeler)):
            for place, name in enumerate(labeler.classes):
                before, own = reported[row, place], words.get(name, frozenset())
                left = possible(None if before < 0 else bool(before), bool(present[row, place]), own)
                left_open[row, place] = [state in left for state in STATES]
                stated[row, place] = [state in own for state in STATES]
        return cls(present, left_open, stated)


_ON: Final = [STATES.index(state) for state in STATES if state in GOES_ON]


def _bounded(log_odds: Floats) -> Floats:
    return np.asarray(np.clip(log_odds, -FURTHEST, FURTHEST))


def _reported(read: PriorInput, prior: PriorEvidence) -> NDArray[np.int64]:
    """The part of the priors' reports that is read (..., K), as ``PriorEvidence.reported``."""
    return np.full_like(prior.reported, -1) if read == "image" else prior.reported


def _log_odds(probability: float) -> float:
    bounded = min(max(probability, 1e-9), 1 - 1e-9)
    return float(np.log(bounded / (1 - bounded)))


def _probable(log_odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-log_odds)))


def _growth_features(own: Floats, before: Floats) -> Floats:
    return np.stack([np.ones_like(own), own, before], axis=-1)


def _shares(features: Floats, weights: Floats) -> Floats:
    """Softmax (..., S) of features (..., F) and weights (F, S)."""
    # Not a matrix product, which may add in another order where there are more studies.
    logits = (features[..., None] * weights).sum(axis=-2)
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def multinomial(values: Floats, allowed: Mask, deviation: float) -> Floats:
    """W (F, S) with the greatest posterior, of values (N, F) and the states (N, S) one of which each is in.

    The prior is normal around 0.
    """
    open_states, shape = allowed.astype(np.float64), (values.shape[1], allowed.shape[1])

    def loss(flat: Floats) -> tuple[float, Floats]:
        logits = values @ flat.reshape(shape)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True)) + 1e-30
        all_of, within = raised.sum(axis=1), (raised * open_states).sum(axis=1)
        misfit = float((np.log(all_of) - np.log(within)).sum())
        share = raised / all_of[:, None] - raised * open_states / within[:, None]
        scaled = flat / deviation
        return misfit + 0.5 * float(scaled @ scaled), (values.T @ share).ravel() + scaled / deviation

    from scipy.optimize import minimize

    solution = minimize(loss, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(solution.x.reshape(shape))


def reported_classes(reports: Sequence[str], labeler: Labeler) -> NDArray[np.int64]:
    """Classes that reports affirm (N, K): 1 yes, 0 no, -1 of an empty one, which is not known."""
    empty = np.array([not text.strip() for text in reports], dtype=bool)
    return np.where(empty[:, None], -1, affirmed_classes(reports, labeler)).astype(np.int64)


def only_of_one_patient(patients: Sequence[str], of_priors: Sequence[str]) -> None:
    """Refuse a prior that is another patient's.

    Raises:
        InputError: without a name.
    """
    if list(patients) != list(of_priors):
        raise InputError("the prior is of another patient", field="prior", expected="a study of the same patient")


def save_prior(calibration: PriorCalibration, folder: Path) -> None:
    """Write ``prior.json`` into the drafting folder of a run."""
    write_json(folder / FILE, calibration.model_dump(mode="json"))


def load_prior(folder: Path, classes: Sequence[str]) -> PriorCalibration | None:
    """Read it; None where the run learned nothing of priors.

    Raises:
        InputError: if it is broken or of other classes.
    """
    if not (folder / FILE).is_file():
        return None
    calibration = checked(PriorCalibration, read_json_object(folder / FILE), file=folder / FILE)
    if calibration.classes != tuple(classes):
        raise InputError("not the classes of the run", file=folder / FILE, field="classes")
    return calibration
