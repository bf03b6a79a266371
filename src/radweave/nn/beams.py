"""Beam search of each study by itself: the rows of its beams, which sentence went on from which, and when it is over.

Source: as transformers has it, whose results these are: of ``2 K`` best continuations of K beams those that end join
the finished, by their sum of log-probabilities over the length to the power of ``length_penalty``; the search is over
when K are finished and the best open one, at its present length, is no better than the worst of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from radweave.nn.decoding import DecodingConfig
from radweave.nn.next_words import refuse_non_finite, steered

# What is added up for beams that are not there yet: all begin alike, and one of them goes on.
ABSENT = -1e9


@dataclass(frozen=True, slots=True)
class Beam:
    """A sentence, the log-probability of each of its words, and their sum as the search adds it up."""

    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0


@dataclass(slots=True)
class BeamSearch:
    """The search for one study: open beams, likeliest first, and finished ones with their score, best first."""

    rows: int
    open: list[Beam] = field(default_factory=list)
    finished: list[tuple[float, Beam]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    is_done: bool = False

    @classmethod
    def of(cls, beams: int) -> BeamSearch:
        return cls(beams, [Beam(), *[Beam(total=ABSENT)] * (beams - 1)])

    @property
    def tokens(self) -> list[int]:
        """What the next step is given, for each beam."""
        return [beam.ids[-1] for beam in self.open]

    @property
    def length(self) -> int:
        return len(self.open[0].ids)

    @property
    def report(self) -> tuple[list[int], list[float]]:
        """Token ids of the best, without the end token, and their log-probabilities."""
        _, best = self.finished[0]
        return list(best.ids), list(best.log_probs)

    def go_on(self, candidates: Sequence[tuple[int, int, float, float]], decoding: DecodingConfig, eos_id: int) -> None:
        """Take the best continuations: (beam, word, log-probability of the word, sum), best first."""
        length = self.length + 1
        scale = length**decoding.length_penalty
        going: list[tuple[int, Beam]] = []
        for rank, (source, word, log_prob, total) in enumerate(candidates):
            before = self.open[source]
            if word == eos_id:
                ended = Beam(before.ids, before.log_probs, total)
            else:
                ended = Beam((*before.ids, word), (*before.log_probs, log_prob), total)
            if word != eos_id and length < decoding.max_new_tokens:
                going.append((source, ended))
            elif rank < self.rows:
                self.finished.append((total / scale, ended))
        self.finished = sorted(self.finished, key=lambda pair: -pair[0])[: self.rows]
        if not going:
            self.is_done = True
            return
        self.sources, self.open = [list(part) for part in zip(*going[: self.rows], strict=True)]
        full = len(self.finished) == self.rows
        self.is_done = full and self.open[0].total / scale <= self.finished[-1][0]


def next_beams(
    searches: Sequence[BeamSearch], scores: Float[Tensor, "rows vocabulary"], decoding: DecodingConfig, eos_id: int
) -> None:
    """One word more for each search; ``scores`` has the rows of one after those of the other.

    Raises:
        UnusableModelError: if a score is no finite number.
    """
    beams = decoding.num_beams
    histories = [beam.ids for search in searches for beam in search.open]
    log_probs = steered(scores.log_softmax(dim=-1), histories, decoding, eos_id)
    totals = torch.tensor([[beam.total for beam in search.open] for search in searches], device=scores.device)
    log_probs, words = log_probs.view(len(searches), -1), scores.shape[1]
    summed = (log_probs.view(len(searches), beams, -1) + totals[:, :, None].to(log_probs.dtype)).flatten(1)
    best, places = summed.topk(2 * beams, dim=-1)
    own = log_probs.gather(1, places)
    # One crossing from the device for all three; a double holds each of them exactly.
    for search, (sums, where, each) in zip(
        searches, torch.stack([best.double(), places.double(), own.double()], dim=1).tolist(), strict=True
    ):
        refuse_non_finite(sums[0])
        numbers = [int(place) for place in where]
        found = [
            (place // words, place % words, one, total) for place, one, total in zip(numbers, each, sums, strict=True)
        ]
        search.go_on(found, decoding, eos_id)
