"""ROUGE-L as coco's scorer has it, ROUGE-1, ROUGE-2 and ROUGE-L as the rouge-score package has them.

Source: Lin, "ROUGE: a package for automatic evaluation of summaries", 2004. coco's ROUGE-L weighs recall with beta
1.2, splits at every single blank (so that doubled blanks are tokens) and takes the best precision and the best recall
over the references, which may come from different ones. rouge-score takes plain F1, the best over the references.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from radweave.evaluation.metrics.ngrams import PairedCounts, PairedTexts
from radweave.evaluation.statistics import Statistic, mean_statistic

Floats = NDArray[np.float64]

_BETA_SQUARED = 1.2**2


def lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence, with one bit per token of ``b``.

    Source: Hyyro, "Bit-parallel LCS-length computation revisited", 2004.
    """
    positions: dict[Hashable, int] = {}
    for index, token in enumerate(b):
        positions[token] = positions.get(token, 0) | (1 << index)
    every = (1 << len(b)) - 1
    row = every
    for token in a:
        hit = positions.get(token)
        if hit is None:
            continue
        common = row & hit
        row = ((row + common) | (row - common)) & every
    return len(b) - row.bit_count()


def _lcs_of_refs(texts: PairedTexts) -> Floats:
    """LCS length of each reference (R,) with its study's hypothesis; equal pairs of texts are computed once."""
    known: dict[tuple[tuple[Hashable, ...], tuple[Hashable, ...]], int] = {}
    lengths = []
    for owner, ref in zip(texts.ref_owner.tolist(), texts.refs, strict=True):
        key = (tuple(texts.hyps[owner]), tuple(ref))
        length = known.get(key)
        if length is None:
            length = known[key] = lcs_length(*key)
        lengths.append(length)
    return np.array(lengths, dtype=np.float64)


def _best(values: Floats, texts: PairedTexts) -> Floats:
    """Largest value over the references of each study (N,)."""
    first = np.searchsorted(texts.ref_owner, np.arange(len(texts.hyps)))
    return np.asarray(np.maximum.reduceat(values, first))


def coco_rouge_l(texts: PairedTexts) -> Statistic:
    """ROUGE_L of coco; give tokens split at every single blank."""
    common = _lcs_of_refs(texts)
    hyp = np.array([len(tokens) for tokens in texts.hyps], dtype=np.float64)
    ref = np.array([len(tokens) for tokens in texts.refs], dtype=np.float64)
    precision = _best(common / hyp[texts.ref_owner], texts)
    recall = _best(common / ref, texts)
    with np.errstate(invalid="ignore"):
        score = (1.0 + _BETA_SQUARED) * precision * recall / (recall + _BETA_SQUARED * precision)
    return mean_statistic(np.where((precision > 0) & (recall > 0), score, 0.0))


def _f1(overlap: Floats, hyp: Floats, ref: Floats) -> Floats:
    precision = overlap / np.maximum(hyp, 1.0)
    recall = overlap / np.maximum(ref, 1.0)
    total = precision + recall
    return np.asarray(np.where(total > 0, 2.0 * precision * recall / np.where(total > 0, total, 1.0), 0.0))


def rouge_score_n(texts: PairedTexts, counts: PairedCounts, order: int) -> Statistic:
    """ROUGE_n F1 of rouge-score; give its tokens and the counts of that order."""
    overlap = np.bincount(
        counts.ref.text,
        weights=np.minimum(counts.hyp_count_at_ref, counts.ref.count),
        minlength=len(texts.refs),
    ).astype(np.float64)
    hyp = np.array([max(len(texts.hyps[i]) - order + 1, 0) for i in texts.ref_owner.tolist()], dtype=np.float64)
    ref = np.array([max(len(tokens) - order + 1, 0) for tokens in texts.refs], dtype=np.float64)
    return mean_statistic(_best(_f1(overlap, hyp, ref), texts))


def rouge_score_l(texts: PairedTexts) -> Statistic:
    """ROUGE-L F1 of rouge-score (the whole text as one sentence); give its tokens."""
    hyp = np.array([len(texts.hyps[i]) for i in texts.ref_owner.tolist()], dtype=np.float64)
    ref = np.array([len(tokens) for tokens in texts.refs], dtype=np.float64)
    return mean_statistic(_best(_f1(_lcs_of_refs(texts), hyp, ref), texts))
