"""Pairwise wording scores of candidate reports against training reports: CIDEr-D, ROUGE-L and corpus BLEU.

    u(i, j) = cider * CIDEr-D(i, j) + rouge_l * ROUGE-L(i, j) + bleu * b(i, j)

CIDEr-D and ROUGE-L are those of ``radweave.metrics`` for candidate i with report j as its only reference, document
frequencies from the training reports. Corpus BLEU is no mean over studies; b is its logarithm to first order:

    b(i, j) = 1/4 sum_n (m_n / M_n - c_n / C_n) + [C <= R] (R / C) (c / C - r / R)

with m_n the clipped matches and c_n the n-grams of the pair, c and r its lengths in words, and capitals the means over
a training set drafted once by its own neighbours (``BleuPoint``).

All pairs at once: min(h, r) = sum_k [h >= k] [r >= k], so that clipped counts are products of sparse matrices; common
subsequences are counted with one bit per reference word, for all references in one step (Hyyro, 2004).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from radweave.metrics.ngrams import NgramCounts, ReportStatistics, count_ngrams

Floats = NDArray[np.float64]
Words = Sequence[Sequence[Hashable]]

MAX_ORDER = 4
_SIGMA = 6.0
_BETA_SQUARED = 1.2**2
_WORD = 64


@dataclass(frozen=True, slots=True)
class WordingWeights:
    """Weights of the wording scores. CIDEr-D runs from 0 to 10, ROUGE-L from 0 to 1."""

    cider: float = 1.0
    rouge_l: float = 5.0
    bleu: float = 0.3


@dataclass(frozen=True, slots=True)
class BleuPoint:
    """Point of linearization of corpus BLEU: mean matches and candidates of order 1 to 4, mean reference length."""

    matches: tuple[float, ...]
    candidates: tuple[float, ...]
    reference: float


class PairwiseWording:
    """Utilities of candidates (M) for references (J), in blocks of candidates.

    Args:
        candidates: M token lists.
        references: J token lists; document frequencies are theirs.
    """

    def __init__(self, candidates: Words, references: Words) -> None:
        tables = count_ngrams([*candidates, *references], MAX_ORDER)
        self._set(candidates, references, tables, None, len(references))

    @classmethod
    def within(
        cls, candidates: Sequence[Sequence[int]], references: Sequence[Sequence[int]], bank: ReportStatistics
    ) -> PairwiseWording:
        """Texts as word numbers of a bank; document frequencies are those of all its reports."""
        self = cls.__new__(cls)
        tables, frequencies = bank.count([*candidates, *references])
        self._set(candidates, references, tables, frequencies, len(bank))
        return self

    def _set(
        self,
        candidates: Words,
        references: Words,
        tables: Sequence[NgramCounts],
        frequencies: Sequence[NDArray[np.int64]] | None,
        num_documents: int,
    ) -> None:
        self.num_candidates, self.num_references = len(candidates), len(references)
        known_frequencies = [None] * len(tables) if frequencies is None else list(frequencies)
        self.orders = [
            _Order.of(table, self.num_candidates, self.num_references, known, num_documents)
            for table, known in zip(tables, known_frequencies, strict=True)
        ]
        self.candidate_lengths = np.array([len(words) for words in candidates], dtype=np.float64)
        self.reference_lengths = np.array([len(words) for words in references], dtype=np.float64)
        self.common = CommonSubsequence(candidates, references)

    def bleu_point(self, pairs: NDArray[np.int64]) -> BleuPoint:
        """The point of the corpus that drafts reference ``pairs[k, 1]`` by candidate ``pairs[k, 0]``, (P, 2)."""
        chosen, wanted = pairs[:, 0], pairs[:, 1]
        matches = tuple(float(order.matches_of(chosen, wanted).mean()) for order in self.orders)
        lengths = self.candidate_lengths[chosen]
        candidates = tuple(float(np.maximum(lengths - n, 0).mean()) for n in range(MAX_ORDER))
        return BleuPoint(matches, candidates, float(self.reference_lengths[wanted].mean()))

    def blocks(
        self, weights: WordingWeights, point: BleuPoint | None = None, *, size: int = 256
    ) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Utilities u (m, J) of ``size`` candidates after another.

        Raises:
            ValueError: if BLEU has a weight and no point.
        """
        if weights.bleu and point is None:
            raise ValueError("BLEU counts for something, so that it needs a point to be linear at")
        for start in range(0, self.num_candidates, size):
            rows = slice(start, min(start + size, self.num_candidates))
            matches = [order.matches(rows) for order in self.orders] if weights.bleu else []
            utility = weights.cider * self.cider(rows) + weights.rouge_l * self.rouge_l(rows)
            if point is not None and weights.bleu:
                utility += weights.bleu * self._bleu(rows, matches, point)
            yield rows, utility.astype(np.float32)

    def cider(self, rows: slice) -> Floats:
        """CIDEr-D (m, J) of candidates ``rows``; 0 to 10."""
        total = np.zeros((rows.stop - rows.start, self.num_references), dtype=np.float64)
        for order in self.orders:
            total += order.cosine(rows)
        bigrams = self.orders[1]
        difference = bigrams.candidate_total[rows, None] - bigrams.reference_total[None, :]
        total *= np.exp(-(difference**2) / (2.0 * _SIGMA**2)) * (10.0 / MAX_ORDER)
        return total

    def rouge_l(self, rows: slice) -> Floats:
        """ROUGE-L (m, J) with coco's beta of 1.2."""
        common = self.common.lengths(rows).astype(np.float64)
        precision = common / np.maximum(self.candidate_lengths[rows, None], 1)
        recall = common / np.maximum(self.reference_lengths[None, :], 1)
        bottom = recall + _BETA_SQUARED * precision
        return (1.0 + _BETA_SQUARED) * precision * recall / np.where(bottom > 0, bottom, 1)

    def _bleu(self, rows: slice, matches: Sequence[Floats], point: BleuPoint) -> Floats:
        lengths = self.candidate_lengths[rows]
        value = np.zeros_like(matches[0])
        for n, matched in enumerate(matches):
            value += 0.25 * matched / max(point.matches[n], 1e-6)
            value -= (0.25 * np.maximum(lengths - n, 0) / max(point.candidates[n], 1e-6))[:, None]
        mean, reference = point.candidates[0], point.reference
        if mean <= reference:
            value += (reference / mean) * ((lengths / mean)[:, None] - (self.reference_lengths / reference)[None, :])
        return value


@dataclass(frozen=True, slots=True)
class _Order:
    """The n-grams of one order: counts at least k as 0 and 1, candidates (M, G) and references (G, J)."""

    candidates: tuple[sparse.csr_matrix, ...]
    references: tuple[sparse.csc_matrix, ...]
    weighted: tuple[sparse.csc_matrix, ...]
    candidate_norm: Floats
    reference_norm: Floats
    candidate_total: Floats
    reference_total: Floats

    @classmethod
    def of(
        cls,
        table: NgramCounts,
        num_candidates: int,
        num_references: int,
        frequency: NDArray[np.int64] | None,
        num_documents: int,
    ) -> _Order:
        """``frequency`` (G,) says in how many of the documents each n-gram stands; None: those are the references."""
        cut = int(np.searchsorted(table.text, num_candidates))
        shape = (num_candidates, num_references)
        sides = [
            sparse.csr_matrix(
                (table.count[part].astype(np.float64), (table.text[part] - offset, table.gram[part])),
                shape=(num, max(table.num_grams, 1)),
            )
            for part, offset, num in (
                (slice(0, cut), 0, shape[0]),
                (slice(cut, None), num_candidates, shape[1]),
            )
        ]
        if frequency is None:
            frequency = np.asarray((sides[1] > 0).sum(axis=0)).ravel()
        idf = (np.log(max(num_documents, 1)) - np.log(np.maximum(frequency, 1))).astype(np.float64)
        norms = [np.sqrt(np.asarray(side.multiply(idf[None, :]).power(2).sum(axis=1)).ravel()) for side in sides]
        most = int(min(sides[0].max() if sides[0].nnz else 0, sides[1].max() if sides[1].nnz else 0))
        levels = [[_at_least(side, k) for k in range(1, most + 1)] for side in sides]
        # A reference n-gram weighs count x idf^2 in the numerator of CIDEr-D, wherever the candidate has it.
        strength = sides[1].multiply((idf**2)[None, :]).tocsr()
        weighted = [strength.multiply(level).T.tocsc() for level in levels[1]]
        return cls(
            tuple(levels[0]),
            tuple(level.T.tocsc() for level in levels[1]),
            tuple(weighted),
            norms[0].astype(np.float64),
            norms[1].astype(np.float64),
            np.asarray(sides[0].sum(axis=1)).ravel().astype(np.float64),
            np.asarray(sides[1].sum(axis=1)).ravel().astype(np.float64),
        )

    def matches(self, rows: slice) -> Floats:
        """Clipped matches (m, J)."""
        return self._product(rows, self.references)

    def matches_of(self, chosen: NDArray[np.int64], wanted: NDArray[np.int64]) -> Floats:
        """Clipped matches (P,) of single pairs."""
        total = np.zeros(len(chosen), dtype=np.float64)
        for side, other in zip(self.candidates, self.references, strict=True):
            total += np.asarray(side[chosen].multiply(other.T.tocsr()[wanted]).sum(axis=1)).ravel()
        return total

    def cosine(self, rows: slice) -> Floats:
        """The clipped cosine (m, J) of CIDEr-D."""
        norm = self.candidate_norm[rows, None] * self.reference_norm[None, :]
        return self._product(rows, self.weighted) / np.where(norm > 0, norm, 1)

    def _product(self, rows: slice, others: Sequence[sparse.csc_matrix]) -> Floats:
        total = np.zeros((rows.stop - rows.start, len(self.reference_norm)), dtype=np.float64)
        for side, other in zip(self.candidates, others, strict=True):
            total += (side[rows] @ other).toarray()
        return total


def _at_least(counts: sparse.csr_matrix, k: int) -> sparse.csr_matrix:
    level = counts.copy()
    level.data = (level.data >= k).astype(np.float64)
    level.eliminate_zeros()
    return level


class CommonSubsequence:
    """Lengths of longest common subsequences of candidates with all references, 64 reference words to a machine word.

    Source: Hyyro, "Bit-parallel LCS-length computation revisited", 2004.
    """

    def __init__(self, candidates: Words, references: Words) -> None:
        numbers: dict[Hashable, int] = {}
        for words in references:
            for word in words:
                numbers.setdefault(word, len(numbers))
        self.lengths_of = np.array([len(words) for words in references], dtype=np.int64)
        blocks = max(1, -(-int(self.lengths_of.max(initial=1)) // _WORD))
        # where[word, block, reference]: the bits of the places where the reference has the word. A word that no
        # reference has changes nothing and is left out.
        self.where = np.zeros((len(numbers), blocks, len(references)), dtype=np.uint64)
        numbered = np.array([numbers[word] for words in references for word in words], dtype=np.int64)
        column = np.repeat(np.arange(len(references)), self.lengths_of)
        place = np.arange(len(numbered)) - np.repeat(np.cumsum(self.lengths_of) - self.lengths_of, self.lengths_of)
        bits = np.uint64(1) << (place % _WORD).astype(np.uint64)
        np.bitwise_or.at(self.where, (numbered, place // _WORD, column), bits)
        self.candidates = [[numbers[word] for word in words if word in numbers] for words in candidates]

    def lengths(self, rows: slice) -> NDArray[np.int64]:
        """Lengths (m, J) for candidates ``rows``."""
        return np.stack([self._one(words) for words in self.candidates[rows]])

    def _one(self, words: Sequence[int]) -> NDArray[np.int64]:
        blocks, num = self.where.shape[1:]
        row = np.full((blocks, num), np.iinfo(np.uint64).max, dtype=np.uint64)
        for word in words:
            carry: NDArray[np.bool_] | None = None
            for block in range(blocks):
                common = row[block] & self.where[word, block]
                # row + common may leave the machine word: the carry goes on into the next one.
                total = row[block] + common
                over = total < common
                if carry is not None:
                    total += carry
                    over |= carry & (total == 0)
                row[block] = total | (row[block] - common)
                carry = over
        # Places past a reference's end stay 1: no word stands there.
        zeros = np.bitwise_count(~row).sum(axis=0, dtype=np.int64)
        return np.asarray(zeros)
