"""A study beside its prior: states that are recovered, fits in closed terms, and nothing of a study's own fold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from radweave.core.errors import InputError
from radweave.labels.comparisons import PRESENT, STATES
from radweave.methods.prior_change import (
    FEWEST,
    Change,
    ChangeConfig,
    NoChangeConfig,
    Pairs,
    multinomial,
    only_of_one_patient,
    probabilities,
    ridge_regression,
    state_regressions,
    there_now,
)

MEMBERS, CLASSES, WIDTH = 2, 3, 6
COUNTED = np.array([True, True, False])


class Followed:
    """Studies with priors whose changes are known: log-odds say what is there, vectors which way it went."""

    def __init__(self, studies: int = 240, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        before, shape = rng.random((studies, CLASSES)) < 0.4, (studies, CLASSES)
        goes_on = rng.choice([2, 3, 4, 5], shape, p=[0.25, 0.25, 0.25, 0.25])
        self.state = np.where(before, goes_on, np.where(rng.random(shape) < 0.2, 1, 0))
        present = np.isin(self.state, [STATES.index(state) for state in PRESENT])
        turn = np.array([0, 1, 1, 0, -1, -1])[self.state]
        seen_before = rng.normal(size=(studies, MEMBERS, WIDTH))
        moved = (turn @ rng.normal(size=(CLASSES, WIDTH)))[:, None] + 0.5 * rng.normal(size=seen_before.shape)
        now, then = (3.0 * (2 * one - 1) + rng.normal(size=shape) for one in (present, before))
        self.pairs = Pairs(now, then, before.astype(np.int64), seen_before + moved, seen_before)
        self.folds = rng.integers(0, MEMBERS, studies)
        self.stated = self.state[..., None] == np.arange(len(STATES))
        # Of every third that goes on no report says which way.
        silent = np.isin(self.state, [2, 3, 4]) & (rng.random(shape) < 0.3)
        self.allowed = self.stated.copy()
        self.allowed[silent] = [False, False, True, True, True, False]
        self.stated[silent] = False

    def fit(self, change: Change) -> Any:
        return change.fit(self.pairs, self.folds, self.allowed, self.stated, COUNTED)


def change() -> Change:
    return ChangeConfig().build(MEMBERS, WIDTH, CLASSES)


def test_states_are_recovered_out_of_fold_and_sum_to_one() -> None:
    followed, part = Followed(), change()
    states = followed.fit(part)
    assert states.sum(axis=-1) == pytest.approx(1.0)
    right = (states.argmax(axis=-1) == followed.state).mean()
    often = max(np.bincount(followed.state.ravel())) / followed.state.size
    assert right > 0.75 > often
    assert bool(part.fitted)
    assert 0 < float(part.threshold) < 0.5
    new = Followed(40, seed=1)
    queried = np.ones((40, MEMBERS), dtype=bool)
    # Vectors of another seed turn in another direction, so that only presence can be known.
    present = there_now(part.states(new.pairs, queried)) > 0
    assert (present == np.isin(new.state, [1, 2, 3, 4])).mean() > 0.8


def test_both_regressions_are_fitted_without_the_fold_they_score() -> None:
    """A is of the member that lacked the fold; W of the others' studies, where no member knows their direction."""
    followed, other, parts = Followed(), Followed(), (change(), change())
    own = followed.folds == 0
    other.allowed[own] = np.roll(other.allowed[own], 1, axis=-1)
    for one, part in zip((followed, other), parts, strict=True):
        one.fit(part)
    first, second = (part.effect.numpy() for part in parts)
    assert np.array_equal(first[0], second[0])
    assert not np.array_equal(first[1], second[1])
    still = [
        replace(one.pairs, vectors=np.zeros_like(one.pairs.vectors), prior_vectors=np.zeros_like(one.pairs.vectors))
        for one in (followed, other)
    ]
    stated = [
        change().fit(pairs, one.folds, one.allowed, one.stated, COUNTED)
        for pairs, one in zip(still, (followed, other), strict=True)
    ]
    assert np.array_equal(stated[0][own], stated[1][own])
    assert not np.array_equal(stated[0][~own], stated[1][~own])


def test_in_training_a_study_is_seen_by_the_member_that_lacked_its_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    followed, part, asked, turn = Followed(), change(), list[Any](), Change.turn
    monkeypatch.setattr(Change, "turn", lambda self, seen, members: asked.append(members) or turn(self, seen, members))
    followed.fit(part)
    (members,) = asked
    assert np.array_equal(members, followed.folds[:, None] == np.arange(MEMBERS))


def test_change_from_prior_does_not_depend_on_the_batch() -> None:
    followed, part = Followed(60), change()
    followed.fit(part)
    queried = np.arange(60)[:, None] % 3 != np.arange(MEMBERS)
    together = part.states(followed.pairs, queried)
    for row in (0, 7):
        pairs = followed.pairs
        alone = Pairs(
            *(getattr(pairs, name)[[row]] for name in ("now", "before", "reported", "vectors", "prior_vectors"))
        )
        assert np.array_equal(part.states(alone, queried[[row]])[0], together[row])


def test_too_few_studies_teach_nothing() -> None:
    few, part = Followed(FEWEST - 1), change()
    assert few.fit(part) is None
    assert not bool(part.fitted)
    assert not NoChangeConfig().build(MEMBERS, WIDTH, CLASSES).is_there


def test_an_unfitted_class_is_present_with_its_log_odds() -> None:
    none = np.zeros((0, CLASSES, 6)), np.zeros((0, CLASSES, 6), dtype=bool)
    followed = Followed(5)
    features = followed.pairs.features(np.zeros((5, CLASSES)))
    states = probabilities(features, state_regressions(*none, deviation=0.25))
    assert there_now(states) == pytest.approx(followed.pairs.now, abs=1e-6)


def test_a_prior_of_another_patient_is_refused_without_a_name() -> None:
    only_of_one_patient(["p1"], ["p1"])
    with pytest.raises(InputError, match="another patient") as caught:
        only_of_one_patient(["p1"], ["p2"])
    assert "p2" not in str(caught.value)


def test_the_regressions_are_those_of_sklearn() -> None:
    rng = np.random.default_rng(4)
    values, targets = rng.normal(size=(80, 5)), rng.normal(size=(80, 2))
    centre, spread, effect = ridge_regression(values, targets, 0.5)
    placed = (values - centre) / spread
    penalty = 0.5 * float((placed**2).sum()) / 80
    reference = Ridge(alpha=penalty).fit(placed, targets).coef_
    assert np.allclose(effect.T, reference)
    states = rng.integers(0, 3, 80)
    mine = multinomial(values, states[:, None] == np.arange(3), np.zeros((5, 3)), 0.7)
    reference = LogisticRegression(C=0.49, fit_intercept=False, tol=1e-10, max_iter=2000).fit(values, states).coef_
    assert np.allclose(mine.T, reference, atol=1e-3)


def test_unstated_changes_share_the_remaining_probability() -> None:
    values, mean = np.ones((50, 1)), np.zeros((1, 3))
    left_open = np.tile([True, True, False], (50, 1))
    result = probabilities(values[:1, None], multinomial(values, left_open, mean, 1.0)[None])[0, 0]
    assert result[0] == pytest.approx(result[1])
    assert result[2] < 0.1
