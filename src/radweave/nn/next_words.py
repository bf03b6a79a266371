"""The next word of each report that is written by itself, greedily or drawn: a choice among a language model's scores.

Options mean what they mean in transformers; penalties and forbidden words first, then temperature and top-p. Every row
is chosen for by itself, and a drawn one has random numbers of its own, so that neighbours change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from radweave.base.errors import UnusableModelError
from radweave.nn.decoding import DecodingConfig


@dataclass(slots=True)
class Line:
    """A report that is being written, and the uniform numbers that its words are drawn by; none of a greedy one."""

    numbers: Sequence[float] = ()
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_done: bool = False
    rows: ClassVar[int] = 1

    @classmethod
    def drawn(cls, decoding: DecodingConfig, draw: int) -> Line:
        """The line of one draw: its numbers hang on the seed and the number of the draw alone."""
        return cls(np.random.default_rng([decoding.seed, draw]).random(decoding.max_new_tokens).tolist())

    @property
    def tokens(self) -> list[int]:
        """What the next step is given."""
        return self.ids[-1:]

    @property
    def sources(self) -> list[int]:
        """From which of its own rows each row goes on."""
        return [0]

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def report(self) -> tuple[list[int], list[float]]:
        """Token ids without the end token, and their log-probabilities."""
        return self.ids, self.log_probs


def next_words(
    lines: Sequence[Line], scores: Float[Tensor, "rows vocabulary"], decoding: DecodingConfig, eos_id: int
) -> None:
    """Append a word to each line, or end it.

    Raises:
        UnusableModelError: if a score is no finite number.
    """
    scores = steered(scores, [line.ids for line in lines], decoding, eos_id)
    drawn = [row for row, line in enumerate(lines) if line.numbers]
    if drawn:
        scores[drawn] = nucleus(scores[drawn] / decoding.temperature, decoding.top_p)
    words = scores.argmax(dim=-1)
    if drawn:
        numbers = torch.tensor([lines[row].numbers[lines[row].length] for row in drawn], dtype=torch.float64)
        words[drawn] = draw(scores[drawn], numbers.to(scores.device))
    log_probs = scores.log_softmax(dim=-1).gather(1, words[:, None])[:, 0]
    # One crossing from the device for both; a double holds either exactly.
    for line, word, log_prob in zip(lines, *torch.stack([words.double(), log_probs.double()]).tolist(), strict=True):
        refuse_non_finite(log_prob)
        if int(word) != eos_id:
            line.ids.append(int(word))
            line.log_probs.append(log_prob)
        line.is_done = int(word) == eos_id or line.length == decoding.max_new_tokens


def steered(scores: Tensor, histories: Sequence[Sequence[int]], decoding: DecodingConfig, eos_id: int) -> Tensor:
    """Scores (rows, V) with what was said made less likely, and what may not come next forbidden."""
    scores = scores.clone()
    if decoding.repetition_penalty != 1.0:
        # Keskar et al., "CTRL", arXiv:1909.05858, Sec. 4.1, and negative scores multiplied, as transformers has it.
        said = [(row, word) for row, ids in enumerate(histories) for word in dict.fromkeys(ids)]
        if said:
            rows, words = torch.tensor(said, device=scores.device).T
            own = scores[rows, words]
            penalty = decoding.repetition_penalty
            scores[rows, words] = torch.where(own < 0, own * penalty, own / penalty)
    forbidden = [(row, word) for row, ids in enumerate(histories) for word in _forbidden(ids, decoding, eos_id)]
    if forbidden:
        rows, words = torch.tensor(forbidden, device=scores.device).T
        scores[rows, words] = -math.inf
    return scores


def _forbidden(ids: Sequence[int], decoding: DecodingConfig, eos_id: int) -> Iterator[int]:
    """The end before its time, and words that would repeat an n-gram."""
    if len(ids) < decoding.min_new_tokens:
        yield eos_id
    size = decoding.no_repeat_ngram_size
    if size:
        last = list(ids[len(ids) - size + 1 :])
        for start in range(len(ids) - size + 1):
            if list(ids[start : start + size - 1]) == last:
                yield ids[start + size - 1]


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Scores (rows, V) with minus infinity outside of the likeliest words that hold ``top_p`` of the probability.

    Source: Holtzman et al., "The curious case of neural text degeneration", ICLR 2020, Sec. 3.1.
    """
    if top_p == 1.0:
        return scores
    probabilities, order = scores.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
    return scores.masked_fill(outside, -math.inf)


def draw(scores: Float[Tensor, "rows vocabulary"], numbers: Float[Tensor, " rows"]) -> Tensor:
    """The word of each row whose part of the line from 0 to 1 holds the row's number; likelier words come first."""
    probabilities, order = scores.double().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    ends = probabilities.cumsum(dim=-1)
    place = (ends <= numbers[:, None] * ends[:, -1:]).sum(dim=-1, keepdim=True)
    last = (probabilities > 0).sum(dim=-1, keepdim=True).clamp(min=1) - 1
    return order.gather(1, torch.minimum(place, last))[:, 0]


def refuse_non_finite(log_prob: float) -> None:
    """Refuse what a choice among scores that are no finite numbers looks like.

    Without this an argmax over NaN names the first token, which may end the report: an empty draft without a word.

    Raises:
        UnusableModelError: always, if it is not finite.
    """
    if not math.isfinite(log_prob):
        raise UnusableModelError("the model's scores are not finite: its weights or its precision cannot be used")
