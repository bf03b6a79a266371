"""The order of the studies of an epoch. It depends on seed and epoch only: on every rank and after a resume the same.

``all`` draws among all studies. Each image then lies anywhere on the disk, which costs nothing while the cache fits
into memory or lies on flash. ``blocks`` draws among the studies of a few stretches of the data set at a time, so that
a disk that is slow at random reads each stretch once and in its order (``data/read_ahead.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from radweave.base.config import Config, Count

Places = NDArray[np.int64]


class ShuffleAll(Config):
    """Any study may come after any other."""

    kind: Literal["all"] = "all"

    def order(self, places: Places, random: np.random.Generator) -> Places:
        """The places in another order."""
        return random.permutation(places)

    def window(self) -> int | None:
        """How many studies come from one part of the data set; None for all."""
        return None


class ShuffleBlocks(Config):
    """Stretches of ``size`` studies come in random order, and the studies of ``together`` of them are mixed.

    The more are mixed, the less a batch tells of its neighbourhood in the data set; ``size`` times ``together`` studies
    lie in memory at a time. What decides the neighbourhood is the importer: mostly the patient and the date.
    """

    kind: Literal["blocks"] = "blocks"
    size: Count = 256
    together: Count = 16

    def order(self, places: Places, random: np.random.Generator) -> Places:
        """The places in another order, some ``together`` blocks of them after each other."""
        starts = random.permutation(np.arange(0, len(places), self.size))
        groups = (starts[first : first + self.together] for first in range(0, len(starts), self.together))
        mixed = [
            random.permutation(np.concatenate([places[start : start + self.size] for start in group]))
            for group in groups
        ]
        return np.concatenate([places[:0], *mixed])

    def window(self) -> int | None:
        """How many studies are mixed with each other."""
        return self.size * self.together


ShuffleConfig = Annotated[ShuffleAll | ShuffleBlocks, Field(discriminator="kind")]


def mixed_order(
    origins: Sequence[str | None],
    shares: Mapping[str, float],
    random: np.random.Generator,
    shuffle: ShuffleAll | ShuffleBlocks,
) -> Places:
    """As many places as there are studies, of each data set its share, in random order.

    A set that has fewer studies than its share comes again, each study once before any comes twice; one that has more
    is drawn from. What rounding leaves goes to the largest remainders.
    """
    wanted = np.array([shares[name] for name in shares]) * len(origins) / sum(shares.values())
    counts = np.floor(wanted).astype(int)
    counts[np.argsort(counts - wanted, kind="stable")[: len(origins) - counts.sum()]] += 1
    chosen = []
    for name, count in zip(shares, counts.tolist(), strict=True):
        own = np.array([place for place, origin in enumerate(origins) if origin == name])
        rounds = [shuffle.order(own, random) for _ in range(-(-count // len(own)))]
        chosen.append(np.concatenate([np.zeros(0, dtype=np.int64), *rounds])[:count])
    if isinstance(shuffle, ShuffleAll):
        return random.permutation(np.concatenate(chosen))
    return _interleaved(chosen, random)


def _interleaved(chosen: Sequence[Places], random: np.random.Generator) -> Places:
    """All of these, each set in its own order: whose turn it is is drawn."""
    turns = random.permutation(np.repeat(np.arange(len(chosen)), [len(own) for own in chosen]))
    order = np.zeros(len(turns), dtype=np.int64)
    for number, own in enumerate(chosen):
        order[turns == number] = own
    return order
