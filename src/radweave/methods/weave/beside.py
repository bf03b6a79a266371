"""A study beside its prior: what the sources that learned say of both, for ``radweave.sources.since_prior``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.smoothers import Changes, Floats, Mask
from radweave.labels import NO_FINDING
from radweave.labels.changes import STATES, possible, said_changes
from radweave.labels.registry import labeler_of
from radweave.methods.weave.stack import FittedStack
from radweave.nn.supervision import POSITIVE
from radweave.sources.since_prior import Change, Pairs, there_now

if TYPE_CHECKING:
    from radweave.contract.view import TrainingView
    from radweave.methods.weave.model import WeaveModel

KEY = "changes"
"""In the evidence: class -> ``before``, what the report of the prior says of it, and the probability of each state."""


@dataclass(frozen=True, slots=True)
class Before:
    """Priors of P studies, which are ``rows`` of a batch or of the training split: scores (P, S, C) of the sources that
    learned, vectors (P, K, V), and what their reports affirm (P, C; 1 yes, 0 no, -1 not known).
    """

    rows: NDArray[np.int64]
    scores: Floats
    vectors: Floats
    reported: NDArray[np.int64]

    @classmethod
    def of(cls, found: Sequence[Before]) -> Before | None:
        """Several together; None of none."""
        if not found:
            return None
        each = ([getattr(one, name) for one in found] for name in ("rows", "scores", "vectors", "reported"))
        return cls(*(np.concatenate(values) for values in each))

    def beside(self, now: Floats, vectors: Floats, before: Floats) -> Pairs:
        """With log-odds ``now`` (N, C) and vectors (N, K, V) of all studies, and log-odds (P, C) of the priors."""
        return Pairs(now[self.rows], before, self.reported, vectors[self.rows], self.vectors)


def learn_changes(
    model: WeaveModel, training: TrainingView, before: Before, now: Floats, vectors: Floats, stacks: FoldStacks
) -> Floats:
    """Let the part learn from training studies with a prior; return the log-odds (J, C) of all, those moved.

    Args:
        model: its part ``change`` is fitted.
        training: the J studies.
        before: the priors of some.
        now: (J, C), cross-fitted log-odds.
        vectors: (J, K, V).
        stacks: for the sources that learned, one that was fitted without each fold.
    """
    change = model.change
    assert isinstance(change, Change)
    folds = model.folds.of(training.examples[row].patient_id for row in before.rows).numpy()
    pairs = before.beside(now, vectors, stacks(before.scores, folds))
    allowed, said = states_of_reports(training, before)
    counted = np.array([name != NO_FINDING for name in model.classes])
    states = change.fit(pairs, folds, allowed, said, counted)
    if states is None:
        return now
    moved = now.copy()
    moved[before.rows] = there_now(states)
    return moved


@dataclass(frozen=True, slots=True)
class FoldStacks:
    """A stack for each fold that was fitted without it; ``whole`` for any other. None where no source learned."""

    of_fold: Mapping[int, FittedStack] = field(default_factory=dict)
    whole: FittedStack | None = None

    def __call__(self, scores: Floats, folds: NDArray[np.int64]) -> Floats:
        """Log-odds (P, C) of scores (P, S, C) of studies of these folds (P,)."""
        said = np.zeros((len(scores), scores.shape[2]))
        for row, fold in enumerate(folds.tolist()):
            stack = self.of_fold.get(fold, self.whole)
            if stack is not None:
                said[row] = stack(scores[row])
        return said


def states_of_reports(training: TrainingView, before: Before) -> tuple[Mask, Mask]:
    """The states that reports of studies and priors leave open, and those that the studies' reports say (P, C, 6)."""
    classes, labeler = training.classes, labeler_of(training.classes)
    now = training.class_states.numpy() == POSITIVE
    texts = [training.examples[row].report or "" for row in before.rows]
    allowed = np.zeros((len(texts), len(classes), len(STATES)), dtype=bool)
    said = np.zeros_like(allowed)
    for number, (row, words) in enumerate(zip(before.rows, said_changes(texts, labeler), strict=True)):
        for place, name in enumerate(classes):
            there = before.reported[number, place]
            stated = words.get(name, frozenset())
            left = possible(None if there < 0 else bool(there), bool(now[row, place]), stated)
            allowed[number, place] = [state in left for state in STATES]
            said[number, place] = [state in stated for state in STATES]
    return allowed, said


@dataclass(frozen=True, slots=True)
class Moved:
    """Log-odds (C,) of a study that its prior has a part in, its changes, and what is shown of them."""

    log_odds: Floats
    changes: Changes
    shown: dict[str, Any]


def compare(model: WeaveModel, before: Before | None, log_odds: Floats, vectors: Floats, asked: Mask) -> Moved | None:
    """One study with these log-odds (C,) and vectors (K, V) beside its prior; None without one, or where nothing was
    learned of change.
    """
    change = model.change
    if before is None or not isinstance(change, Change) or not bool(change.fitted):
        return None
    learned = model.bare.as_fitted if bool(model.bare.fitted) else None
    then = FoldStacks(whole=learned)(before.scores, np.zeros(1, dtype=np.int64))
    pairs = replace(before, rows=np.zeros(1, dtype=np.int64)).beside(log_odds[None], vectors[None], then)
    states = change.states(pairs, asked[None])[0]
    said = {1: "affirmed", 0: "not affirmed", -1: "not known"}
    shown = {
        name: {"before": said[int(before.reported[0, c])], **dict(zip(STATES, states[c].tolist(), strict=True))}
        for c, name in enumerate(model.classes)
        if name != NO_FINDING
    }
    return Moved(there_now(states), change.changes(states), {KEY: shown})
