"""In how many reports of a bank each n-gram stands, for texts that are counted a few at a time.

CIDEr weighs an n-gram by how rare it is among *all* reports. The pairwise scores of a few reports of a large bank need
the frequencies of the whole bank, and nothing else of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.evaluation.metrics.ngrams import Ints, NgramCounts


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
    def of(cls, texts: Iterable[Sequence[str]], max_order: int) -> ReportStatistics:
        """From the token lists of reports; they are not kept as strings."""
        words: dict[str, int] = {}
        rows = [np.array([words.setdefault(word, len(words)) for word in text], dtype=np.int32) for text in texts]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        tokens = np.concatenate([*rows, np.zeros(0, dtype=np.int32)])
        owner = np.repeat(np.arange(len(rows), dtype=np.int64), lengths)
        keys: list[Ints] = []
        frequencies = []
        numbers, places = tokens.astype(np.int64), np.arange(len(tokens))
        for order in range(1, max_order + 1):
            if order > 1:
                places, longer = _longer(numbers, places, owner, tokens, order, len(words))
                known, numbers = np.unique(longer, return_inverse=True)
                keys.append(known)
            num = len(words) if order == 1 else len(keys[-1])
            held = np.unique(owner[places] * max(num, 1) + numbers) % max(num, 1)
            frequencies.append(np.bincount(held, minlength=num).astype(np.int32))
        starts = np.concatenate([[0], np.cumsum(lengths)])
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
        tokens = np.array([word for text in texts for word in text], dtype=np.int64)
        owner = np.repeat(np.arange(len(texts), dtype=np.int64), lengths)
        base, vocabulary = len(self.frequencies[0]), int(tokens.max(initial=0)) + 1
        banked = np.where(tokens < base, tokens, -1)
        numbers, places = tokens, np.arange(len(tokens))
        tables, found = [], []
        for order, frequencies in enumerate(self.frequencies, start=1):
            if order > 1:
                last = places
                places, longer = _longer(numbers, places, owner, tokens, order, vocabulary)
                before = banked[np.searchsorted(last, places)]
                banked = _look_up(self.keys[order - 2], before, tokens[places + order - 1], base)
                numbers = longer
            grams, first, numbers = np.unique(numbers, return_index=True, return_inverse=True)
            known = banked[first]
            found.append(np.where(known >= 0, frequencies[np.maximum(known, 0)] if len(frequencies) else 0, 0))
            pairs, counts = np.unique(owner[places] * max(len(grams), 1) + numbers, return_counts=True)
            tables.append(NgramCounts(pairs // max(len(grams), 1), pairs % max(len(grams), 1), counts, len(grams)))
        return tables, found


def _longer(
    numbers: Ints, places: Ints, owner: Ints, tokens: NDArray[np.integer], order: int, vocabulary: int
) -> tuple[Ints, Ints]:
    """Where n-grams of the next order start, and a key for each: (number of the shorter one) * vocabulary + word."""
    reach = places + order - 1
    inside = reach < len(tokens)
    inside[inside] = owner[reach[inside]] == owner[places[inside]]
    kept = places[inside]
    return kept, numbers[inside] * vocabulary + tokens[kept + order - 1]


def _look_up(keys: Ints, before: Ints, word: Ints, base: int) -> Ints:
    """Numbers of n-grams among the bank's; -1 for those that it does not have."""
    if not len(keys):
        return np.full(len(before), -1, dtype=np.int64)
    wanted = np.where((before >= 0) & (word < base), before * base + word, -1)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, place, -1)
