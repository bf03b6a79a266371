"""The choice of a word among scores whose probabilities are known."""

from __future__ import annotations

import math

import pytest
import torch

from radweave.nn.decoding import DecodingConfig
from radweave.nn.next_words import Line, draw, next_words, nucleus, steered

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
