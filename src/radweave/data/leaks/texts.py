"""Duplicate and near-duplicate reports, found without comparing all pairs.

MinHash signatures over runs of five words (Broder, "On the resemblance and containment of documents", 1997), banded
so that only texts that share a band are compared.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NEAR = 0.8
"""Share of word runs in common (estimated Jaccard index) from which two texts count as nearly the same."""

_WORDS = re.compile(r"[a-z0-9]+")
_RUN = 5
_BANDS, _ROWS = 20, 4
_HASHES = _BANDS * _ROWS
_MODULUS = (1 << 31) - 1


def normalised(text: str) -> str:
    """The lower-case words of a text, without punctuation and line breaks."""
    return " ".join(_WORDS.findall(text.lower()))


def _multipliers() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    random = np.random.default_rng(20240229)
    return (
        random.integers(1, _MODULUS, size=(_HASHES, 1), dtype=np.uint64),
        random.integers(0, _MODULUS, size=(_HASHES, 1), dtype=np.uint64),
    )


@dataclass(slots=True)
class TextIndex:
    """Distinct normalised texts with their items. The texts themselves are not stored.

    ``items[n]`` are the items of text n; its signature is row n of ``signatures``.
    """

    items: list[list[int]] = field(default_factory=list)
    _number_of: dict[bytes, int] = field(default_factory=dict)
    _signatures: list[NDArray[np.uint32]] = field(default_factory=list)
    _hashes: tuple[NDArray[np.uint64], NDArray[np.uint64]] = field(default_factory=_multipliers)

    def add(self, item: int, text: str) -> int:
        """Add an item's text; return the number of the text."""
        words = normalised(text)
        key = zlib.crc32(words.encode()).to_bytes(4, "big") + zlib.adler32(words.encode()).to_bytes(4, "big")
        key += len(words).to_bytes(4, "big")
        number = self._number_of.setdefault(key, len(self.items))
        if number == len(self.items):
            self.items.append([])
            self._signatures.append(self._signature(words))
        self.items[number].append(item)
        return number

    def _signature(self, words: str) -> NDArray[np.uint32]:
        parts = words.split()
        runs = {" ".join(parts[n : n + _RUN]) for n in range(max(1, len(parts) - _RUN + 1))}
        codes = np.fromiter((zlib.crc32(run.encode()) % _MODULUS for run in runs), np.uint64, len(runs))
        scale, shift = self._hashes
        # Both factors are below 2**31, so the product fits 64 bits.
        values: NDArray[np.uint64] = (scale * codes + shift) % np.uint64(_MODULUS)
        return np.asarray(values.min(axis=1), np.uint32)

    def near_pairs(self) -> Iterator[tuple[int, int]]:
        """Pairs of different texts (first < second) that are nearly the same, each once."""
        if not self._signatures:
            return
        signatures = np.stack(self._signatures)
        found_pairs: set[tuple[int, int]] = set()
        for band in range(_BANDS):
            rows = signatures[:, band * _ROWS : (band + 1) * _ROWS]
            buckets: dict[bytes, list[int]] = defaultdict(list)
            for number, row in enumerate(rows):
                buckets[row.tobytes()].append(number)
            for bucket in buckets.values():
                for pair in _near(np.array(bucket), signatures) if len(bucket) > 1 else ():
                    if pair not in found_pairs:
                        found_pairs.add(pair)
                        yield pair


def _near(bucket: NDArray[np.int64], signatures: NDArray[np.uint32], most: int = 200) -> Iterator[tuple[int, int]]:
    """Near pairs of a bucket (texts,); a huge one, of a stock phrase, is compared against its first members only.

    ``signatures`` are (all texts, hashes).
    """
    own = signatures[bucket]
    for position in range(min(len(bucket) - 1, most)):
        similarity = (own[position + 1 :] == own[position]).mean(axis=1)
        for other in np.flatnonzero(similarity >= NEAR):
            yield int(bucket[position]), int(bucket[position + 1 + other])
