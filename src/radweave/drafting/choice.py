"""The choice of the candidate with the highest expected utility under the evidence.

    i* = argmax_i  sum_j W_j u(i, j)  +  beta sum_{c asserted by i} (p_c - t_c)

W_j is the weight of training report j, p_c the probability of class c. Asserting c pays off where p_c is above t_c;
with t = F*/2, F* the best F1 that p reaches, that is the rule that maximises F1. Without the second term a draft says
what most reports say: a normal study.

Sources: Kumar and Byrne, "Minimum Bayes-risk decoding for statistical machine translation", NAACL 2004; Lipton, Elkan
and Narayanaswamy, "Optimal thresholding of classifiers to maximize F1 measure", ECML 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.candidates import Candidate
from radweave.metrics.ngrams import ReportStatistics
from radweave.metrics.pairwise import MAX_ORDER, BleuPoint, PairwiseWording, WordingWeights
from radweave.metrics.prepare import prepare_hypotheses
from radweave.metrics.protocols import get_protocol

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft with the terms of its choice. ``wording`` and ``findings`` are the two terms of its expected utility.

    ``compared`` are the changes since the prior that it states, which are worth ``changes``; ``places`` is what the
    places of its findings are worth.
    """

    candidate: Candidate
    asserted: tuple[str, ...]
    wording: float
    findings: float
    compared: tuple[tuple[str, str], ...] = ()
    changes: float = 0.0
    places: float = 0.0


class ExpectedUtility:
    """Chooses among M candidates given evidence over J training reports and K classes.

    Args:
        candidates: the possible drafts.
        asserts: (M, K) above 0 where a candidate states a class: what that counts, 1 for each where all count alike.
        wording: (M, J) utility of each candidate's words for each training report.
        classes: names of the K classes.
        thresholds: (K,) probability above which asserting a class pays off.
        beta: weight of the findings beside the wording.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        asserts: NDArray[np.float64],
        wording: Floats,
        *,
        classes: Sequence[str],
        thresholds: NDArray[np.float64],
        beta: float = 6.0,
    ) -> None:
        assert len(wording) == len(candidates)
        assert asserts.shape == (len(candidates), len(classes))
        self.candidates, self.asserts, self.wording = candidates, asserts, wording
        self.classes, self.thresholds, self.beta = tuple(classes), thresholds, beta
        made_of = [[sentence.row for sentence in candidate.sentences] for candidate in candidates]
        self._rows = np.array([row for rows in made_of for row in rows], dtype=np.int64)
        self._starts = np.cumsum([0, *(len(rows) for rows in made_of)])[:-1]

    def best(
        self,
        most: int,
        probabilities: NDArray[np.float64],
        weights: NDArray[np.float64],
        barred: NDArray[np.bool_],
        refused: NDArray[np.bool_] | None = None,
    ) -> list[Choice]:
        """At most so many of the best candidates, the best first; none where every one is made of barred reports.

        Args:
            most: how many.
            probabilities: (K,) of the classes.
            weights: (J,) of the training reports.
            barred: (J,) reports of the study's own patient: they have no weight and lend no sentence.
            refused: (M,) candidates that the evidence does not bear; one of them only where there is no other.
        """
        wording = self.wording @ np.where(barred, 0, weights).astype(np.float32)
        findings = self.beta * (self.asserts @ (probabilities - self.thresholds))
        total = wording + findings
        if barred.any():
            total[np.logical_or.reduceat(barred[self._rows], self._starts)] = -np.inf
        if refused is not None and np.isfinite(total[~refused]).any():
            total[refused] = -np.inf
        ranked = [number for number in _ranked(total, most) if total[number] > -np.inf]
        return [
            Choice(
                self.candidates[number],
                asserted_classes(self.classes, self.asserts[number]),
                float(wording[number]),
                float(findings[number]),
            )
            for number in ranked
        ]


def _ranked(total: NDArray[Any], most: int) -> list[int]:
    """Places of the greatest values, in order; of equals the first."""
    if most == 1:
        return [int(total.argmax())]
    return [int(place) for place in np.argsort(-total, kind="stable")[:most]]


def asserted_classes(classes: Sequence[str], asserts: NDArray[np.float64]) -> tuple[str, ...]:
    """The classes that a candidate states."""
    return tuple(name for name, count in zip(classes, asserts, strict=True) if count)


# The choice in a bank that is too large for all pairs: among the nearest reports, with utilities on the fly.
#
# Of J training reports the K with the greatest weights count, found among all of them. Candidates are the reports of
# these K, and the composites whose findings have the greatest expected utility. With K and the number of composites at
# their most the choice is that of ``choice.ExpectedUtility``.


Doubles = NDArray[np.float64]
NEAREST, COMPOSITES = 256, 256
_AT_ONCE = 4096
"""Reports that are prepared in one go."""


class NearbyUtility:
    """Chooses among the candidates that the K nearest of J training reports suggest.

    Memory: the reports as word numbers and the document frequencies of their n-grams; nothing is J x J or M x J.

    Args:
        candidates: M candidates, as ``build_candidates`` makes them of the reports.
        asserts: (M, K) 1 where a candidate states a class.
        reports: the J training reports.
        classes, thresholds, beta: as in ``choice.ExpectedUtility``.
        weights, point: what words are worth, see ``PairwiseWording``.
        nearest, composites: how many reports, and how many composites, are looked at.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        asserts: Doubles,
        reports: Sequence[str],
        *,
        classes: Sequence[str],
        thresholds: Doubles,
        weights: WordingWeights,
        point: BleuPoint | None,
        beta: float = 6.0,
        nearest: int = NEAREST,
        composites: int = COMPOSITES,
    ) -> None:
        assert asserts.shape == (len(candidates), len(classes))
        self.candidates, self.asserts = candidates, asserts
        self.classes, self.thresholds, self.beta = tuple(classes), thresholds, beta
        self.weights, self.point = weights, point
        self.nearest, self.composites = nearest, composites
        self.bank = ReportStatistics.of(prepared(reports), MAX_ORDER)
        composed = np.array([candidate.is_composed for candidate in candidates], dtype=bool)
        self._composed = np.flatnonzero(composed)
        self._whole = _candidates_of_rows(candidates, composed, reports)

    def best(
        self,
        most: int,
        probabilities: Doubles,
        weights: Doubles,
        barred: NDArray[np.bool_],
        refused: NDArray[np.bool_] | None = None,
    ) -> list[Choice]:
        """As ``ExpectedUtility.best``; weights (J,) of the reports that are looked at keep their sum."""
        rows = nearest_rows(weights, barred, self.nearest)
        gains = self.beta * (self.asserts @ (probabilities - self.thresholds))
        pool = self._suggested(rows, gains, barred)
        if refused is not None and not refused[pool].all():
            pool = pool[~refused[pool]]
        if not len(pool):
            return []
        wording = self._wording(pool, rows) @ shares(weights, barred, rows).astype(np.float32)
        total = wording + gains[pool]
        ranked = _ranked(total, most)
        return [
            Choice(
                self.candidates[number],
                asserted_classes(self.classes, self.asserts[number]),
                float(wording[place]),
                float(gains[number]),
            )
            for place, number in zip(ranked, pool[ranked].tolist(), strict=True)
        ]

    def _suggested(self, rows: NDArray[np.int64], gains: Doubles, barred: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Numbers of candidates, in order; none with a sentence of a barred report."""
        whole = self._whole[rows]
        best = self._composed[np.argsort(-gains[self._composed], kind="stable")[: self.composites]]
        pool = np.unique(np.concatenate([whole[whole >= 0], best]))
        allowed = [not any(barred[sentence.row] for sentence in self.candidates[number].sentences) for number in pool]
        return np.asarray(pool[np.array(allowed, dtype=bool)])

    def _wording(self, pool: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        texts = prepared([self.candidates[number].text for number in pool])
        affirmed = [self.bank.encode(words) for words in texts]
        pairs = PairwiseWording.within(affirmed, [self.bank.words_of(row) for row in rows.tolist()], self.bank)
        bleu = self.weights.bleu if self.point is not None else 0.0
        weights = WordingWeights(self.weights.cider, self.weights.rouge_l, bleu)
        return np.concatenate([block for _, block in pairs.blocks(weights, self.point)])


def nearest_rows(weights: Doubles, barred: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """The rows with the greatest weights, exactly so many where there are, in ascending order; of equals the first."""
    allowed = np.flatnonzero(~barred)
    if len(allowed) <= most:
        return allowed
    values = weights[allowed]
    least = np.partition(values, len(values) - most)[len(values) - most]
    above = allowed[values > least]
    equal = allowed[values == least][: most - len(above)]
    return np.sort(np.concatenate([above, equal]))


def shares(weights: Doubles, barred: NDArray[np.bool_], rows: NDArray[np.int64]) -> Doubles:
    """Weights of the rows, scaled to the sum that all allowed rows have; equal ones where they sum to nothing."""
    chosen, whole = weights[rows].sum(), np.where(barred, 0, weights).sum()
    if len(rows) == int((~barred).sum()):
        return np.asarray(weights[rows])
    return np.asarray(weights[rows] * (whole / chosen)) if chosen > 0 else np.full(len(rows), whole / max(len(rows), 1))


def _candidates_of_rows(
    candidates: Sequence[Candidate], composed: NDArray[np.bool_], reports: Sequence[str]
) -> NDArray[np.int64]:
    """The candidate (J,) with each report's text; -1 where it has none."""
    first: dict[str, int] = {}
    for row, text in enumerate(reports):
        first.setdefault(text, row)
    of_row = np.full(len(reports), -1, dtype=np.int64)
    for number in np.flatnonzero(~composed).tolist():
        of_row[candidates[number].sentences[0].row] = number
    return np.asarray(of_row[[first[text] for text in reports]] if len(reports) else of_row)


def prepared(texts: Sequence[str]) -> list[list[str]]:
    """Words of texts, as protocol ``full`` has them."""
    protocol = get_protocol("full")
    return [
        text.split()
        for start in range(0, len(texts), _AT_ONCE)
        for text in prepare_hypotheses(list(texts[start : start + _AT_ONCE]), protocol)
    ]
