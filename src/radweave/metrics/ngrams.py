"""N-gram counts of many texts at once, as integer arrays.

Words become integers, an n-gram of order n the number of (its n-gram of order n-1, its last word); counts are runs of
equal (text, n-gram) keys. All texts of one evaluation share the numbering, so joining hypotheses with references is a
sorted search.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Hashable, Iterable, Sequence
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
    """Starts of the n-grams of the next order, and a key for each: (number of the shorter one) * vocabulary + word."""
    reach = places + order - 1
    inside = reach < len(tokens)
    inside[inside] = owner[reach[inside]] == owner[places[inside]]
    starts = places[inside]
    return starts, numbers[inside] * vocabulary + tokens[starts + order - 1]


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
    """Counts of these hypotheses and references, and their common n-grams, of texts that were counted together."""
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


# Document frequencies of a bank of reports, for texts that are counted a few at a time.
#
# CIDEr weighs an n-gram by how rare it is among *all* reports. The pairwise scores of a few reports of a large bank
# need the frequencies of the whole bank, and nothing else of it.

_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class ReportStatistics:
    """J tokenised reports as word numbers, and the document frequencies of their n-grams.

    Attributes:
        words: word -> number, in order of appearance.
        tokens: (T,) words of all reports in a row, int32.
        starts: (J + 1,) where each report begins.
        keys: per order from 2 on the distinct n-grams, sorted: (number of the n-gram but its last word) * words + word.
        frequencies: per order the number of reports that hold each n-gram, int32.
    """

    words: dict[str, int]
    tokens: NDArray[np.int32]
    starts: Ints
    keys: tuple[Ints, ...]
    frequencies: tuple[NDArray[np.int32], ...]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], max_order: int, owners: Ints | None = None) -> ReportStatistics:
        """From the token lists of reports; they are not kept as strings.

        Args:
            texts: J token lists.
            max_order: of the n-grams.
            owners: (J,), ascending from 0: the study of each report, whose reports count as one document; None: each
                report is one.
        """
        words: dict[str, int] = {}
        numbered, lengths = array("i"), array("q", [0])
        for text in texts:
            numbered.extend([words.setdefault(word, len(words)) for word in text])
            lengths.append(len(text))
        tokens, starts = np.array(numbered, dtype=np.int32), np.cumsum(np.array(lengths, dtype=np.int64))
        blocks = _blocks(starts, np.arange(len(lengths) - 1) if owners is None else owners)
        numbers, keys, frequencies = tokens, [], []
        for order in range(1, max_order + 1):
            known, frequency, numbers = _next_order(tokens, numbers, blocks, order, len(words))
            frequencies.append(frequency)
            if order > 1:
                keys.append(known)
        return cls(words, tokens, starts, tuple(keys), tuple(frequencies))

    def words_of(self, row: int) -> list[int]:
        """The word numbers of a report."""
        return [int(word) for word in self.tokens[self.starts[row] : self.starts[row + 1]]]

    def encode(self, text: Sequence[str]) -> list[int]:
        """Word numbers of another text; a word that no report has gets one of its own."""
        return [self.words.setdefault(word, len(self.words)) for word in text]

    def count(self, texts: Sequence[Sequence[int]]) -> tuple[list[NgramCounts], list[Ints]]:
        """N-grams of texts, as ``count_ngrams`` has them, and per order the document frequency of each n-gram."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        tokens = np.fromiter((word for text in texts for word in text), dtype=np.int64, count=int(lengths.sum()))
        base = len(self.frequencies[0])
        tables, document_frequencies = count_numbers(tokens, lengths, len(self.frequencies)), []
        for order, (table, frequencies) in enumerate(zip(tables, self.frequencies, strict=True), start=1):
            if order == 1:
                banked = np.where(table.last < base, table.last, -1)
            else:
                banked = _look_up(self.keys[order - 2], banked[table.before], table.last, base)
            known = banked >= 0
            document_frequencies.append(
                np.where(known, frequencies[np.where(known, banked, 0)] if len(frequencies) else 0, 0)
            )
        return tables, document_frequencies


@dataclass(frozen=True, slots=True)
class _Block:
    """Reports that are counted at a time: where their words stand, and of which report and study of it each word is."""

    tokens: slice
    owner: Ints
    report: Ints


def _blocks(starts: Ints, owners: Ints) -> list[_Block]:
    """Cut reports into blocks between studies: few enough that sorting one stays within the processor's cache."""
    studies = int(owners[-1]) + 1 if len(owners) else 0
    cuts = [*np.searchsorted(owners, np.arange(0, studies, _BLOCK)).tolist(), len(owners)]
    blocks = []
    for first, end in itertools.pairwise(cuts):
        lengths = np.diff(starts[first : end + 1])
        report = np.repeat(np.arange(end - first), lengths)
        study = (owners[first:end] - owners[first])[report]
        blocks.append(_Block(slice(int(starts[first]), int(starts[end])), study, report))
    return blocks


def _next_order(
    tokens: NDArray[np.int32], numbers: NDArray[np.int32], blocks: Sequence[_Block], order: int, num_words: int
) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32]]:
    """The distinct n-grams (G,) of an order, sorted, their document frequencies (G,), and the number (T,) at each word.

    ``numbers`` (T,) are those of the order before; -1 where a report ends too soon.
    """
    counted, local = [], np.full_like(numbers, -1)
    for block in blocks:
        part, before = tokens[block.tokens], numbers[block.tokens].astype(np.int64)
        places = np.flatnonzero(before >= 0)
        keys = before[places]
        if order > 1:
            places, keys = longer(keys, places, block.report, part, order, num_words)
        known, number = np.unique(keys, return_inverse=True)
        local[block.tokens.start + places] = number
        held = np.unique(block.owner[places] * max(len(known), 1) + number) % max(len(known), 1)
        counted.append((known, np.bincount(held, minlength=len(known))))
    distinct = np.unique(np.concatenate([known for known, _ in counted])) if counted else np.zeros(0, dtype=np.int64)
    frequency = np.zeros(len(distinct), dtype=np.int32)
    for block, (known, held) in zip(blocks, counted, strict=True):
        place = np.searchsorted(distinct, known).astype(np.int32)
        frequency[place] += held.astype(np.int32)
        # Number -1 finds the -1 at the end.
        local[block.tokens] = np.append(place, np.int32(-1))[local[block.tokens]]
    return distinct, frequency, local


def _look_up(keys: Ints, before: Ints, word: Ints, base: int) -> Ints:
    """Numbers of n-grams among the bank's; -1 for those that it does not have."""
    if not len(keys):
        return np.full(len(before), -1, dtype=np.int64)
    wanted = np.where((before >= 0) & (word < base), before * base + word, -1)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, place, -1)
