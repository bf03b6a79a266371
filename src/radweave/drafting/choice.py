"""The choice: the candidate with the highest expected utility under what a model saw.

    i* = argmax_i  sum_j W_j u(i, j)  +  beta sum_{c asserted by i} (p_c - t_c)

W_j says how much training report j speaks for what the study's report would say, p_c how likely class c is. Asserting c
pays off where p_c is above t_c; with t = F*/2, F* the best F1 that p reaches, that is the rule that maximises F1.
Without the second term a draft says what most reports say, which is that all is well.

Sources: Kumar and Byrne, "Minimum Bayes-risk decoding for statistical machine translation", NAACL 2004; Lipton, Elkan
and Narayanaswamy, "Optimal thresholding of classifiers to maximize F1 measure", ECML 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.candidates import Candidate

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft with what speaks for it. ``wording`` and ``findings`` are the two terms of its expected utility.

    ``compared`` are the changes since the prior that it states, which are worth ``changes``.
    """

    candidate: Candidate
    asserted: tuple[str, ...]
    wording: float
    findings: float
    compared: tuple[tuple[str, str], ...] = ()
    changes: float = 0.0


class ExpectedUtility:
    """Chooses among M candidates given evidence over J training reports and K classes.

    Args:
        candidates: what may be said.
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

    def choose(
        self,
        probabilities: NDArray[np.float64],
        weights: NDArray[np.float64],
        barred: NDArray[np.bool_],
        refused: NDArray[np.bool_] | None = None,
    ) -> Choice | None:
        """The best candidate; the first of equals. None where every one is made of barred reports.

        Args:
            probabilities: (K,) of the classes.
            weights: (J,) of the training reports.
            barred: (J,) reports of the study's own patient: they neither speak for a wording, nor lend a sentence.
            refused: (M,) candidates that the evidence does not bear; one of them only where there is no other.
        """
        wording = self.wording @ np.where(barred, 0, weights).astype(np.float32)
        findings = self.beta * (self.asserts @ (probabilities - self.thresholds))
        total = wording + findings
        if barred.any():
            total[np.logical_or.reduceat(barred[self._rows], self._starts)] = -np.inf
        if refused is not None and np.isfinite(total[~refused]).any():
            total[refused] = -np.inf
        best = int(total.argmax())
        if total[best] == -np.inf:
            return None
        asserted = tuple(name for name, said in zip(self.classes, self.asserts[best], strict=True) if said)
        return Choice(self.candidates[best], asserted, float(wording[best]), float(findings[best]))
