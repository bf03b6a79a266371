"""Change words: does a report call findings new, larger, smaller, resolved or unchanged where the reference does?

A change cannot be read off one image, so a system without the prior study can only guess these words. A word counts
once per report. A clause that denies it ("no new opacity") says nothing, but "no change" is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from radweave.evaluation.pairs import Pair
from radweave.evaluation.statistics import Floats, Statistic, bootstrap, cluster_index
from radweave.labels.comparisons import CHANGES

_CLAUSE_END = re.compile(r"[.;,:\n]|\b(?:and|but|with|while)\b")
_DENIED = re.compile(r"\b(?:no|not|without)\b(?! (?:longer|(?:\w+ ){0,2}change)\b)")


def change_words(text: str) -> frozenset[str]:
    """The changes that a report speaks of, of the keys of ``CHANGES``."""
    found: set[str] = set()
    for clause in _CLAUSE_END.split(text.lower()):
        if not _DENIED.search(clause):
            found |= {name for name, pattern in CHANGES.items() if pattern.search(clause)}
    return frozenset(found)


def change_statistics(pairs: Sequence[Pair]) -> dict[str, Statistic]:
    """F1 of every change, ``micro`` over all of them and ``macro`` over those that occur; NaN where nothing does.

    Several references of a study are taken together.
    """
    rows = np.zeros((len(pairs), len(CHANGES), 3))
    for study, pair in enumerate(pairs):
        hyp = change_words(pair.hyp)
        ref = frozenset().union(*(change_words(text) for text in pair.refs))
        for column, name in enumerate(CHANGES):
            rows[study, column] = (
                name in hyp and name in ref,
                name in hyp and name not in ref,
                name in ref and name not in hyp,
            )
    flat = rows.reshape(len(pairs), -1)
    values: dict[str, Callable[[Floats], Floats]] = {"micro": _micro, "macro": _macro}
    values |= {name: _of_column(column) for column, name in enumerate(CHANGES)}
    return {name: Statistic(flat, value, value(flat)) for name, value in values.items()}


def change_table(pairs: Sequence[Pair], *, resamples: int = 1000, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Change -> F1, its 95 % bootstrap interval over patients, and in how many references and reports it stands."""
    statistics = change_statistics(pairs)
    intervals = bootstrap(
        statistics, cluster_index([pair.patient_id for pair in pairs]), resamples=resamples, seed=seed
    )
    table: dict[str, dict[str, Any]] = {}
    for name, statistic in statistics.items():
        f1 = statistic.corpus()
        interval = intervals[name]
        table[name] = {"f1": None if np.isnan(f1) else f1, "interval": [interval.low, interval.high]}
        if name in CHANGES:
            table[name]["references"] = sum(any(name in change_words(text) for text in pair.refs) for pair in pairs)
            table[name]["reports"] = sum(name in change_words(pair.hyp) for pair in pairs)
    return table


def _f1(counts: Floats) -> Floats:
    """(..., 3) true positives, false positives, false negatives -> (...)"""
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * counts[..., 0] / (2 * counts[..., 0] + counts[..., 1] + counts[..., 2]))


def _by_change(sums: Floats) -> Floats:
    return sums.reshape(*sums.shape[:-1], len(CHANGES), 3)


def _micro(sums: Floats) -> Floats:
    return _f1(_by_change(sums).sum(-2))


def _macro(sums: Floats) -> Floats:
    each = _f1(_by_change(sums))
    defined = ~np.isnan(each)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(defined, each, 0.0).sum(-1) / defined.sum(-1))


def _of_column(column: int) -> Callable[[Floats], Floats]:
    return lambda sums: _f1(_by_change(sums)[..., column, :])
