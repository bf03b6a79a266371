"""N-gram counts of many texts at once, as integer arrays.

Words become integers, an n-gram of order n the number of (its n-gram of order n-1, its last word); counts are runs of
equal (text, n-gram) keys. All texts of one evaluation share the numbering, so joining hypotheses with references is a
sorted search.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NgramCounts:
    """Counts of one order. Entries are sorted by text, then n-gram.

    Attributes:
        text: (M,) index of the text.
        gram: (M,) number of the n-gram, below ``num_grams``.
        count: (M,) how often the text holds it, at least 1.
    """

    text: Ints
    gram: Ints
    count: Ints
    num_grams: int


def encode(texts: Sequence[Sequence[Hashable]]) -> tuple[Ints, Ints]:
    """Number the words: all tokens in a row (T,) and the length of each text (N,)."""
    numbers: dict[Hashable, int] = {}
    flat = [numbers.setdefault(token, len(numbers)) for text in texts for token in text]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return np.array(flat, dtype=np.int64), lengths


def count_ngrams(texts: Sequence[Sequence[Hashable]], max_order: int) -> list[NgramCounts]:
    """Count the n-grams of order 1 to ``max_order`` of every text."""
    tokens, lengths = encode(texts)
    owner = np.repeat(np.arange(len(texts), dtype=np.int64), lengths)
    vocabulary = int(tokens.max()) + 1 if tokens.size else 1
    keys = tokens
    tables = []
    for order in range(1, max_order + 1):
        if order > 1:
            # A start position lives on if the text still has a word ``order - 1`` further.
            inside = np.zeros(keys.size, dtype=bool)
            reach = tokens.size - (order - 1)
            if reach > 0:
                inside[:reach] = owner[:reach] == owner[order - 1 :]
            longer = np.full(keys.size, -1, dtype=np.int64)
            starts = np.flatnonzero(inside)
            longer[starts] = keys[starts] * vocabulary + tokens[starts + order - 1]
            keys = longer
        starts = np.flatnonzero(keys >= 0)
        grams, number = np.unique(keys[starts], return_inverse=True)
        tables.append(_runs(owner[starts], number.astype(np.int64), len(grams)))
        numbered = np.full(keys.size, -1, dtype=np.int64)
        numbered[starts] = number
        keys = numbered
    return tables


def _runs(text: Ints, gram: Ints, num_grams: int) -> NgramCounts:
    keys, count = np.unique(text * max(num_grams, 1) + gram, return_counts=True)
    owner, number = np.divmod(keys, max(num_grams, 1))
    return NgramCounts(owner, number, count.astype(np.int64), num_grams)


@dataclass(frozen=True, slots=True)
class PairedTexts:
    """Token lists of hypotheses and references, N studies with R references in all.

    Attributes:
        hyps: N token lists.
        refs: R token lists, those of one study together.
        ref_owner: (R,) the study of each reference, ascending.
    """

    hyps: Sequence[Sequence[str]]
    refs: Sequence[Sequence[str]]
    ref_owner: Ints

    @classmethod
    def of(cls, hyps: Sequence[Sequence[str]], refs: Sequence[Sequence[Sequence[str]]]) -> PairedTexts:
        """Pair N hypotheses with N lists of references."""
        owner = np.repeat(np.arange(len(refs), dtype=np.int64), [len(group) for group in refs])
        return cls(hyps, [ref for group in refs for ref in group], owner)


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Counts of one order: of each hypothesis, of each reference, and what they share.

    Attributes:
        hyp: entries with ``text`` = study.
        ref: entries with ``text`` = reference, 0 to R - 1.
        hyp_count_at_ref: (entries of ``ref``) how often the study's hypothesis holds that n-gram.
    """

    hyp: NgramCounts
    ref: NgramCounts
    hyp_count_at_ref: Ints


def count_pairs(texts: PairedTexts, max_order: int) -> list[PairedCounts]:
    """Count both sides with one numbering and look every reference n-gram up in its hypothesis."""
    num_hyps = len(texts.hyps)
    paired = []
    for table in count_ngrams([*texts.hyps, *texts.refs], max_order):
        cut = int(np.searchsorted(table.text, num_hyps))
        hyp = NgramCounts(table.text[:cut], table.gram[:cut], table.count[:cut], table.num_grams)
        ref = NgramCounts(table.text[cut:] - num_hyps, table.gram[cut:], table.count[cut:], table.num_grams)
        hyp_keys = hyp.text * max(table.num_grams, 1) + hyp.gram
        ref_keys = texts.ref_owner[ref.text] * max(table.num_grams, 1) + ref.gram
        paired.append(PairedCounts(hyp, ref, _lookup(hyp_keys, hyp.count, ref_keys)))
    return paired


def _lookup(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Values at ``wanted`` keys, 0 where a key is absent; ``keys`` are sorted and unique."""
    if not keys.size:
        return np.zeros(wanted.size, dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def clipped_matches(counts: PairedCounts, ref_owner: Ints, num_studies: int) -> Ints:
    """Matches per study (N,): each hypothesis n-gram counts at most as often as the reference that has most of it."""
    owner = ref_owner[counts.ref.text]
    matched = np.minimum(counts.hyp_count_at_ref, counts.ref.count)
    if ref_owner.size == num_studies:
        return np.bincount(owner, weights=matched, minlength=num_studies).astype(np.int64)
    shared = matched > 0
    keys = owner[shared] * max(counts.ref.num_grams, 1) + counts.ref.gram[shared]
    order = np.argsort(keys, kind="stable")
    keys, best = keys[order], matched[shared][order]
    if not keys.size:
        return np.zeros(num_studies, dtype=np.int64)
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    most = np.maximum.reduceat(best, first)
    study = keys[first] // max(counts.ref.num_grams, 1)
    return np.bincount(study, weights=most, minlength=num_studies).astype(np.int64)
