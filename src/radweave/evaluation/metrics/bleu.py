"""BLEU-1 to BLEU-4, as coco's scorer defines it and as HF evaluate does with smoothing.

Source: Papineni et al., "BLEU", ACL 2002. The implementations differ in the reference length they take (coco: the
closest, of two equally close the shorter; HF: the shortest) and in smoothing (coco adds 1e-15 and 1e-9; HF adds one
to matches and candidates of every order).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from radweave.evaluation.metrics.ngrams import PairedCounts, PairedTexts, clipped_matches
from radweave.evaluation.statistics import Statistic, mean_statistic

Floats = NDArray[np.float64]

MAX_ORDER = 4
_TINY = 1e-15
_SMALL = 1e-9


def _rows(texts: PairedTexts, counts: list[PairedCounts], ref_length: Floats) -> Floats:
    """Sums per study (N, 10): matches of order 1-4, candidates of order 1-4, hypothesis length, reference length."""
    num = len(texts.hyps)
    lengths = np.array([len(tokens) for tokens in texts.hyps], dtype=np.float64)
    matches = [clipped_matches(table, texts.ref_owner, num).astype(np.float64) for table in counts[:MAX_ORDER]]
    candidates = [np.maximum(lengths - order, 0.0) for order in range(MAX_ORDER)]
    return np.stack([*matches, *candidates, lengths, ref_length], axis=1)


def _ref_lengths(texts: PairedTexts, closest: bool) -> Floats:
    """Reference length per study (N,): the closest to the hypothesis (ties: the shorter), or the shortest."""
    ref = np.array([len(tokens) for tokens in texts.refs], dtype=np.int64)
    hyp = np.array([len(tokens) for tokens in texts.hyps], dtype=np.int64)
    distance = np.abs(ref - hyp[texts.ref_owner]) if closest else np.zeros_like(ref)
    order = np.lexsort((ref, distance, texts.ref_owner))
    first = np.searchsorted(texts.ref_owner, np.arange(len(texts.hyps)))
    return ref[order][first].astype(np.float64)


def _coco_value(order: int) -> Callable[[Floats], Floats]:
    def value(sums: Floats) -> Floats:
        precision = (sums[..., :order] + _TINY) / (sums[..., MAX_ORDER : MAX_ORDER + order] + _SMALL)
        ratio = (sums[..., 8] + _TINY) / (sums[..., 9] + _SMALL)
        # The penalty of a far too short text underflows to 0, as it should.
        with np.errstate(over="ignore", under="ignore"):
            penalty = np.where(ratio < 1.0, np.exp(np.minimum(1.0 - 1.0 / ratio, 0.0)), 1.0)
        return np.asarray(np.prod(precision, axis=-1) ** (1.0 / order) * penalty)

    return value


def _hf_value(order: int) -> Callable[[Floats], Floats]:
    def value(sums: Floats) -> Floats:
        precision = (sums[..., :order] + 1.0) / (sums[..., MAX_ORDER : MAX_ORDER + order] + 1.0)
        with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
            ratio = sums[..., 8] / sums[..., 9]
            penalty = np.where(ratio > 1.0, 1.0, np.exp(1.0 - 1.0 / ratio))
        score = np.exp(np.mean(np.log(precision), axis=-1)) * penalty
        return np.asarray(np.where(sums[..., 8] > 0, score, 0.0))

    return value


def coco_bleu(texts: PairedTexts, counts: list[PairedCounts]) -> dict[str, Statistic]:
    """BLEU_1 .. BLEU_4 of coco's scorer, corpus and per study."""
    rows = _rows(texts, counts, _ref_lengths(texts, closest=True))
    return {
        f"BLEU_{order}": Statistic(rows, _coco_value(order), _coco_value(order)(rows))
        for order in range(1, MAX_ORDER + 1)
    }


def hf_bleu(texts: PairedTexts, counts: list[PairedCounts]) -> dict[str, Statistic]:
    """Smoothed BLEU as HF evaluate computes it, on tokens of mteval-13a.

    ``BLEU_n`` is the mean over studies of the sentence score, ``BLEU_n_corpus`` the score of the whole corpus; an empty
    hypothesis scores 0 where HF divides by zero.
    """
    rows = _rows(texts, counts, _ref_lengths(texts, closest=False))
    scores: dict[str, Statistic] = {}
    for order in range(1, MAX_ORDER + 1):
        sentence = _hf_value(order)(rows)
        scores[f"BLEU_{order}"] = mean_statistic(sentence)
        scores[f"BLEU_{order}_corpus"] = Statistic(rows, _hf_value(order), sentence)
    return scores
