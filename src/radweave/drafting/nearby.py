"""The choice in a bank that is too large for all pairs: the nearest reports, what they suggest, utilities on the fly.

Of J training reports the K with the greatest weights count, found among all of them. Candidates are the reports of
these K, and the composites whose findings have the greatest expected utility. With K and the number of composites at
their most the choice is that of ``choice.ExpectedUtility``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.candidates import Candidate
from radweave.drafting.choice import Choice
from radweave.evaluation.metrics.frequencies import ReportStatistics
from radweave.evaluation.metrics.pairwise import MAX_ORDER, BleuPoint, PairwiseWording, WordingWeights
from radweave.evaluation.prepare import prepare_hypotheses
from radweave.evaluation.protocols import get_protocol

Floats = NDArray[np.float64]
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
        asserts: Floats,
        reports: Sequence[str],
        *,
        classes: Sequence[str],
        thresholds: Floats,
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

    def choose(
        self,
        probabilities: Floats,
        weights: Floats,
        barred: NDArray[np.bool_],
        refused: NDArray[np.bool_] | None = None,
    ) -> Choice | None:
        """As ``choice.ExpectedUtility.choose``; weights (J,) of the reports that are looked at keep their sum."""
        rows = nearest_rows(weights, barred, self.nearest)
        gains = self.beta * (self.asserts @ (probabilities - self.thresholds))
        pool = self._suggested(rows, gains, barred)
        if refused is not None and not refused[pool].all():
            pool = pool[~refused[pool]]
        if not len(pool):
            return None
        wording = self._wording(pool, rows) @ shares(weights, barred, rows).astype(np.float32)
        total = wording + gains[pool]
        best = int(total.argmax())
        chosen = int(pool[best])
        asserted = tuple(name for name, said in zip(self.classes, self.asserts[chosen], strict=True) if said)
        return Choice(self.candidates[chosen], asserted, float(wording[best]), float(gains[chosen]))

    def _suggested(self, rows: NDArray[np.int64], gains: Floats, barred: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Numbers of candidates, in order; none with a sentence of a barred report."""
        whole = self._whole[rows]
        best = self._composed[np.argsort(-gains[self._composed], kind="stable")[: self.composites]]
        pool = np.unique(np.concatenate([whole[whole >= 0], best]))
        allowed = [not any(barred[sentence.row] for sentence in self.candidates[number].sentences) for number in pool]
        return np.asarray(pool[np.array(allowed, dtype=bool)])

    def _wording(self, pool: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        texts = prepared([self.candidates[number].text for number in pool])
        said = [self.bank.encode(words) for words in texts]
        pairs = PairwiseWording.within(said, [self.bank.words_of(row) for row in rows.tolist()], self.bank)
        bleu = self.weights.bleu if self.point is not None else 0.0
        weights = WordingWeights(self.weights.cider, self.weights.rouge_l, bleu)
        return np.concatenate([block for _, block in pairs.blocks(weights, self.point)])


def nearest_rows(weights: Floats, barred: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """The rows with the greatest weights, exactly so many where there are, in ascending order; of equals the first."""
    allowed = np.flatnonzero(~barred)
    if len(allowed) <= most:
        return allowed
    values = weights[allowed]
    least = np.partition(values, len(values) - most)[len(values) - most]
    above = allowed[values > least]
    equal = allowed[values == least][: most - len(above)]
    return np.sort(np.concatenate([above, equal]))


def shares(weights: Floats, barred: NDArray[np.bool_], rows: NDArray[np.int64]) -> Floats:
    """Weights of the rows, scaled to the sum that all allowed rows have; equal ones where they sum to nothing."""
    kept, whole = weights[rows].sum(), np.where(barred, 0, weights).sum()
    if len(rows) == int((~barred).sum()):
        return np.asarray(weights[rows])
    return np.asarray(weights[rows] * (whole / kept)) if kept > 0 else np.full(len(rows), whole / max(len(rows), 1))


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
