"""The choice of a word among scores whose probabilities are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from radweave.nn.decoding import DecodingConfig, Line, draw, next_words, nucleus, steered

SCORES = torch.tensor([[0.1, 0.5, 0.25, 0.15]]).log()


@pytest.mark.parametrize(("top_p", "kept"), [(1.0, {0, 1, 2, 3}), (0.8, {1, 2, 3}), (0.7, {1, 2}), (0.4, {1})])
def test_the_likeliest_words_that_hold_top_p_stay(top_p: float, kept: set[int]) -> None:
    assert set(nucleus(SCORES, top_p).isfinite().nonzero()[:, 1].tolist()) == kept


def test_a_number_draws_the_word_in_whose_part_of_the_line_it_lies() -> None:
    numbers = [0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 0.999]
    words = draw(SCORES.expand(len(numbers), -1), torch.tensor(numbers, dtype=torch.float64))
    assert words.tolist() == [1, 1, 2, 2, 3, 3, 0, 0]
    narrow = nucleus(SCORES, 0.7)
    assert draw(narrow.expand(2, -1), torch.tensor([0.66, 0.67], dtype=torch.float64)).tolist() == [1, 2]


def test_what_was_said_is_less_likely_and_what_may_not_come_is_impossible() -> None:
    decoding = DecodingConfig(repetition_penalty=2.0, no_repeat_ngram_size=2, min_new_tokens=4)
    scores = torch.tensor([[1.0, -1.0, 3.0, 0.5], [1.0, -1.0, 3.0, 0.5]])
    found = steered(scores, [[0, 1, 0], []], decoding, eos_id=3)
    # After 0 came 1: it may not come again. Row 1 has said nothing; neither may end yet.
    assert found.tolist() == [[0.5, -math.inf, 3.0, -math.inf], [1.0, -1.0, 3.0, -math.inf]]
    assert steered(scores, [[1, 0, 2, 2], [0]], decoding, eos_id=3)[0].tolist() == [0.5, -2.0, -math.inf, 0.5]
    assert float(scores[0, 1]) == -1.0, "the scores given are as they were"


def test_lines_end_at_the_end_token_and_at_the_length_and_have_the_log_probabilities_of_their_choice() -> None:
    decoding = DecodingConfig(max_new_tokens=2)
    lines = [Line(), Line(ids=[2], log_probs=[-1.0])]
    next_words(lines, torch.cat([SCORES, SCORES]), decoding, eos_id=1)
    assert [(line.ids, line.is_done) for line in lines] == [([], True), ([2], True)]
    next_words(lines := [Line(), Line(ids=[2], log_probs=[-1.0])], torch.cat([SCORES, SCORES]), decoding, eos_id=3)
    assert [(line.ids, line.is_done) for line in lines] == [([1], False), ([2, 1], True)]
    assert lines[0].log_probs == pytest.approx([math.log(0.5)])
    drawn = Line(numbers=[0.7])
    next_words([drawn], SCORES, decoding.model_copy(update={"do_sample": True, "top_p": 0.7}), eos_id=3)
    assert (drawn.ids, drawn.log_probs) == ([2], pytest.approx([math.log(0.25 / 0.75)]))


def by_hand(scores: list[float], said: list[int], decoding: DecodingConfig, number: float, eos: int) -> int:
    """One draw with all options, number by number."""
    left = [value * (decoding.repetition_penalty ** (1 if value < 0 else -1) if word in said else 1)
            for word, value in enumerate(scores)]  # fmt: skip
    size = decoding.no_repeat_ngram_size
    grams = {tuple(said[at : at + size]) for at in range(len(said) - size + 1)} if size else set()
    barred = {word for word in range(len(scores)) if size and (*said[len(said) - size + 1 :], word) in grams}
    barred |= {eos} if len(said) < decoding.min_new_tokens else set()
    weights = {word: math.exp(left[word] / decoding.temperature) for word in range(len(left)) if word not in barred}
    order, kept = sorted(weights, key=lambda word: -weights[word]), list[int]()
    while sum(weights[word] for word in kept) < decoding.top_p * sum(weights.values()) and len(kept) < len(order):
        kept.append(order[len(kept)])
    ends = [
        sum(weights[word] for word in kept[: at + 1]) / sum(weights[word] for word in kept) for at in range(len(kept))
    ]
    return kept[next(at for at, end in enumerate(ends) if number < end)]


@pytest.mark.parametrize(
    ("first", "second"), itertools.combinations(
        ({"temperature": 0.5}, {"temperature": 2.5}, {"top_p": 0.7}, {"repetition_penalty": 2.0},
         {"no_repeat_ngram_size": 2}, {"min_new_tokens": 6}), 2,
    ), ids=str,
)  # fmt: skip
def test_options_together_draw_what_is_drawn_by_hand(first: dict[str, float], second: dict[str, float]) -> None:
    decoding = DecodingConfig.model_validate({"do_sample": True, "max_new_tokens": 9, **first, **second})
    rng = np.random.default_rng(0)
    for _ in range(30):
        scores, said, number = rng.normal(size=6), rng.integers(0, 3, size=5).tolist(), float(rng.random())
        line = Line(numbers=[number] * 9, ids=list(said))
        next_words([line], torch.tensor(scores[None]), decoding, eos_id=1)
        wanted = by_hand(scores.tolist(), said, decoding, number, 1)
        assert line.ids[5:] == ([] if wanted == 1 else [wanted])
        assert line.is_done == (wanted == 1)
