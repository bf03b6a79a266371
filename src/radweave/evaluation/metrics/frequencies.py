"""In how many reports of a bank each n-gram stands, for texts that are counted a few at a time.

CIDEr weighs an n-gram by how rare it is among *all* reports. The pairwise scores of a few reports of a large bank need
the frequencies of the whole bank, and nothing else of it.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.evaluation.metrics.ngrams import Ints, NgramCounts, count_numbers, longer

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
        tables, found = count_numbers(tokens, lengths, len(self.frequencies)), []
        for order, (table, frequencies) in enumerate(zip(tables, self.frequencies, strict=True), start=1):
            if order == 1:
                banked = np.where(table.last < base, table.last, -1)
            else:
                banked = _look_up(self.keys[order - 2], banked[table.before], table.last, base)
            known = banked >= 0
            found.append(np.where(known, frequencies[np.where(known, banked, 0)] if len(frequencies) else 0, 0))
        return tables, found


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
    found, local = [], np.full_like(numbers, -1)
    for block in blocks:
        part, before = tokens[block.tokens], numbers[block.tokens].astype(np.int64)
        places = np.flatnonzero(before >= 0)
        keys = before[places]
        if order > 1:
            places, keys = longer(keys, places, block.report, part, order, num_words)
        known, number = np.unique(keys, return_inverse=True)
        local[block.tokens.start + places] = number
        held = np.unique(block.owner[places] * max(len(known), 1) + number) % max(len(known), 1)
        found.append((known, np.bincount(held, minlength=len(known))))
    distinct = np.unique(np.concatenate([known for known, _ in found])) if found else np.zeros(0, dtype=np.int64)
    frequency = np.zeros(len(distinct), dtype=np.int32)
    for block, (known, held) in zip(blocks, found, strict=True):
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
