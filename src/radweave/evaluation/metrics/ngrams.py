"""N-gram counts of many texts at once, as integer arrays.

Words become integers, an n-gram of order n the number of (its n-gram of order n-1, its last word); counts are runs of
equal (text, n-gram) keys. All texts of one evaluation share the numbering, so joining hypotheses with references is a
sorted search.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

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
        before: (num_grams,) the number of the n-gram but its last word, among those of the order before; 0 for words.
        last: (num_grams,) its last word.
    """

    text: Ints
    gram: Ints
    count: Ints
    before: Ints
    last: Ints

    @property
    def num_grams(self) -> int:
        return len(self.last)

    def of(self, texts: slice) -> NgramCounts:
        """The counts of these texts, numbered from 0 on."""
        first, end = np.searchsorted(self.text, [texts.start, texts.stop])
        return replace(
            self, text=self.text[first:end] - texts.start, gram=self.gram[first:end], count=self.count[first:end]
        )


def encode(texts: Sequence[Sequence[Hashable]]) -> tuple[Ints, Ints]:
    """Number the words: all tokens in a row (T,) and the length of each text (N,)."""
    numbers: dict[Hashable, int] = {}
    flat = [numbers.setdefault(token, len(numbers)) for text in texts for token in text]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return np.array(flat, dtype=np.int64), lengths


def count_ngrams(texts: Sequence[Sequence[Hashable]], max_order: int) -> list[NgramCounts]:
    """Count the n-grams of order 1 to ``max_order`` of every text."""
    return count_numbers(*encode(texts), max_order)


def count_numbers(tokens: Ints, lengths: Ints, max_order: int) -> list[NgramCounts]:
    """Count the n-grams of texts whose words are numbers: all in a row (T,), and the length of each text (N,)."""
    owner = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    vocabulary = int(tokens.max(initial=0)) + 1
    numbers, places = tokens, np.arange(tokens.size)
    tables = []
    for order in range(1, max_order + 1):
        if order > 1:
            places, numbers = longer(numbers, places, owner, tokens, order, vocabulary)
        grams, numbers = np.unique(numbers, return_inverse=True)
        tables.append(_runs(owner[places], numbers, *np.divmod(grams, vocabulary)))
    return tables


def longer(
    numbers: Ints, places: Ints, owner: Ints, tokens: NDArray[np.integer], order: int, vocabulary: int
) -> tuple[Ints, Ints]:
    """Where n-grams of the next order start, and a key for each: (number of the shorter one) * vocabulary + word."""
    reach = places + order - 1
    inside = reach < len(tokens)
    inside[inside] = owner[reach[inside]] == owner[places[inside]]
    kept = places[inside]
    return kept, numbers[inside] * vocabulary + tokens[kept + order - 1]


def _runs(text: Ints, gram: Ints, before: Ints, last: Ints) -> NgramCounts:
    num_grams = max(len(last), 1)
    keys, count = np.unique(text * num_grams + gram, return_counts=True)
    owner, number = np.divmod(keys, num_grams)
    return NgramCounts(owner, number, count.astype(np.int64), before, last)


@dataclass(frozen=True, slots=True)
class PairedTexts:
    """Token lists of hypotheses and references, N studies with R references in all.

    Attributes:
        hyps: N token lists.
        refs: R token lists, those of one study together.
        ref_owner: (R,) the study of each reference, ascending.
    """

    hyps: Sequence[Sequence[Hashable]]
    refs: Sequence[Sequence[Hashable]]
    ref_owner: Ints

    @classmethod
    def of(cls, hyps: Sequence[Sequence[Hashable]], refs: Sequence[Sequence[Sequence[Hashable]]]) -> PairedTexts:
        """Pair N hypotheses with N lists of references."""
        return cls(hyps, [ref for group in refs for ref in group], owners_of(refs))


def owners_of(refs: Sequence[Sequence[object]]) -> Ints:
    """The study (R,) of each reference, where each study has a list of them."""
    return np.repeat(np.arange(len(refs), dtype=np.int64), [len(group) for group in refs])


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
    num_hyps, num_refs = len(texts.hyps), len(texts.refs)
    return [
        pair_counts(table, slice(0, num_hyps), slice(num_hyps, num_hyps + num_refs), texts.ref_owner)
        for table in count_ngrams([*texts.hyps, *texts.refs], max_order)
    ]


def pair_counts(table: NgramCounts, hyps: slice, refs: slice, ref_owner: Ints) -> PairedCounts:
    """What these hypotheses share with these references, of texts that were counted together."""
    hyp, ref = table.of(hyps), table.of(refs)
    hyp_keys = hyp.text * max(table.num_grams, 1) + hyp.gram
    ref_keys = ref_owner[ref.text] * max(table.num_grams, 1) + ref.gram
    return PairedCounts(hyp, ref, _lookup(hyp_keys, hyp.count, ref_keys))


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
