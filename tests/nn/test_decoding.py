"""Options of decoding, greedy and drawn words, and beams, with scores whose probabilities are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from radweave.nn.decoding import (
    Beam,
    BeamSearch,
    DecodingConfig,
    TokenSequence,
    draw,
    next_words,
    nucleus,
    process_scores,
)
from radweave.nn.language_model import LlamaConfig

SCORES = torch.tensor([[0.1, 0.5, 0.25, 0.15]]).log()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_positive_length_penalty_favours_long_reports(seed: int) -> None:
    """Scores of beams are sums of negative log-probabilities over the length to the power of the penalty."""
    torch.manual_seed(seed)
    model = (
        LlamaConfig(hidden_size=16, num_layers=1, num_heads=2).build(vocab_size=6, bos_id=1, eos_id=2, pad_id=0).eval()
    )
    prefix, mask = torch.randn(4, 3, 16), torch.ones(4, 3, dtype=torch.bool)

    def lengths(penalty: float) -> list[int]:
        ids, _ = model.generate(prefix, mask, DecodingConfig(num_beams=4, max_new_tokens=12, length_penalty=penalty))
        return [len(row) for row in ids]

    short, long = lengths(-5.0), lengths(5.0)
    assert all(a <= b for a, b in zip(short, long, strict=True))
    assert sum(short) < sum(long)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.6, 1.0])
def test_a_growing_cache_draws_from_the_words_that_the_options_leave(
    temperature: float, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more than fifty words: transformers would leave out the others unless it is told not to."""
    torch.manual_seed(0)
    model = LlamaConfig(hidden_size=16, num_layers=1, num_heads=2).build(vocab_size=90, bos_id=1, eos_id=2, pad_id=0)
    steps: list[torch.Tensor] = []
    real = model.eval().model.compute_transition_scores

    def watched(
        words: torch.Tensor, scores: tuple[torch.Tensor, ...], *more: object, **options: object
    ) -> torch.Tensor:
        steps.extend(scores)
        return real(words, scores, *more, **options)

    monkeypatch.setattr(model.model, "compute_transition_scores", watched)
    prefix, mask = torch.randn(1, 3, 16), torch.ones(1, 3, dtype=torch.bool)
    decoding = DecodingConfig(do_sample=True, temperature=temperature, top_p=top_p, max_new_tokens=1, cache="growing")
    model.generate(prefix, mask, decoding)
    with torch.no_grad():
        plain = model.model(inputs_embeds=prefix).logits[:, -1]
    expected = nucleus(plain / temperature, top_p)
    assert (int(expected.isfinite().sum()) == 90) == (top_p == 1)
    torch.testing.assert_close(steps[0], expected)


@pytest.mark.parametrize(("open_total", "is_done"), [(-1.0, False), (-5.9, False), (-6.0, True), (-7.0, True)])
def test_a_search_ends_when_no_open_beam_is_better_than_the_worst_finished(open_total: float, is_done: bool) -> None:
    """Finished are -1 and -6 over 2 words: an open beam that is worse than the better of them may still go on."""
    decoding, end = DecodingConfig(num_beams=2, max_new_tokens=9, length_penalty=1.0), 2
    search = BeamSearch.of(2)
    search.extend([(0, 5, -0.5, -0.5), (0, end, -1.0, -1.0), (0, 6, -2.0, -2.0), (0, 7, -3.0, -3.0)], decoding, (end,))
    assert (search.finished, search.is_done) == ([(-1.0, Beam((), (), -1.0))], False)
    search.extend([(0, end, -5.5, -6.0), (1, 5, 0.0, open_total), (0, 6, -6.5, -7.0)], decoding, (end,))
    assert [score for score, _ in search.finished] == [-1.0, -3.0]
    assert search.is_done == is_done
    assert search.parents == [1, 0]


def test_an_end_token_below_the_best_finishes_no_beam() -> None:
    decoding, end = DecodingConfig(num_beams=2, max_new_tokens=9), 2
    search = BeamSearch.of(2)
    search.extend([(0, 5, -0.5, -0.5), (0, 6, -0.6, -0.6), (0, end, -0.7, -0.7), (0, 7, -3.0, -3.0)], decoding, (end,))
    assert search.finished == []
    assert [beam.ids for beam in search.open] == [(5,), (6,)]


@pytest.mark.parametrize(("top_p", "top"), [(1.0, {0, 1, 2, 3}), (0.8, {1, 2, 3}), (0.7, {1, 2}), (0.4, {1})])
def test_the_nucleus_is_the_likeliest_words_that_hold_top_p(top_p: float, top: set[int]) -> None:
    assert set(nucleus(SCORES, top_p).isfinite().nonzero()[:, 1].tolist()) == top


def test_a_uniform_number_draws_the_word_of_its_interval() -> None:
    numbers = [0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 0.999]
    words = draw(SCORES.expand(len(numbers), -1), torch.tensor(numbers, dtype=torch.float64))
    assert words.tolist() == [1, 1, 2, 2, 3, 3, 0, 0]
    narrow = nucleus(SCORES, 0.7)
    assert draw(narrow.expand(2, -1), torch.tensor([0.66, 0.67], dtype=torch.float64)).tolist() == [1, 2]


def test_repeated_words_are_less_likely_and_forbidden_ones_impossible() -> None:
    decoding = DecodingConfig(repetition_penalty=2.0, no_repeat_ngram_size=2, min_new_tokens=4)
    scores = torch.tensor([[1.0, -1.0, 3.0, 0.5], [1.0, -1.0, 3.0, 0.5]])
    processed = process_scores(scores, [[0, 1, 0], []], decoding, ends=(3,))
    # After 0 came 1: it may not come again. Row 1 is empty; neither may end yet.
    assert processed.tolist() == [[0.5, -math.inf, 3.0, -math.inf], [1.0, -1.0, 3.0, -math.inf]]
    assert process_scores(scores, [[1, 0, 2, 2], [0]], decoding, ends=(3,))[0].tolist() == [0.5, -2.0, -math.inf, 0.5]
    assert float(scores[0, 1]) == -1.0, "the input is unchanged"


def test_sequences_end_at_the_end_token_or_the_length_and_have_the_log_probabilities_of_their_words() -> None:
    decoding = DecodingConfig(max_new_tokens=2)
    sequences = [TokenSequence(), TokenSequence(ids=[2], log_probs=[-1.0])]
    next_words(sequences, torch.cat([SCORES, SCORES]), decoding, ends=(1,))
    assert [(sequence.ids, sequence.is_done) for sequence in sequences] == [([], True), ([2], True)]
    sequences = [TokenSequence(), TokenSequence(ids=[2], log_probs=[-1.0])]
    next_words(sequences, torch.cat([SCORES, SCORES]), decoding, ends=(3,))
    assert [(sequence.ids, sequence.is_done) for sequence in sequences] == [([1], False), ([2, 1], True)]
    assert sequences[0].log_probs == pytest.approx([math.log(0.5)])
    drawn = TokenSequence(uniforms=[0.7])
    next_words([drawn], SCORES, decoding.model_copy(update={"do_sample": True, "top_p": 0.7}), ends=(3,))
    assert (drawn.ids, drawn.log_probs) == ([2], pytest.approx([math.log(0.25 / 0.75)]))


def by_hand(scores: list[float], ids: list[int], decoding: DecodingConfig, number: float, eos: int) -> int:
    """One draw with all options, number by number."""
    left = [value * (decoding.repetition_penalty ** (1 if value < 0 else -1) if word in ids else 1)
            for word, value in enumerate(scores)]  # fmt: skip
    size = decoding.no_repeat_ngram_size
    grams = {tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)} if size else set()
    barred = {word for word in range(len(scores)) if size and (*ids[len(ids) - size + 1 :], word) in grams}
    barred |= {eos} if len(ids) < decoding.min_new_tokens else set()
    weights = {word: math.exp(left[word] / decoding.temperature) for word in range(len(left)) if word not in barred}
    order, top = sorted(weights, key=lambda word: -weights[word]), list[int]()
    while sum(weights[word] for word in top) < decoding.top_p * sum(weights.values()) and len(top) < len(order):
        top.append(order[len(top)])
    ends = [sum(weights[word] for word in top[: at + 1]) / sum(weights[word] for word in top) for at in range(len(top))]
    return top[next(at for at, end in enumerate(ends) if number < end)]


@pytest.mark.parametrize(
    ("first", "second"), itertools.combinations(
        ({"temperature": 0.5}, {"temperature": 2.5}, {"top_p": 0.7}, {"repetition_penalty": 2.0},
         {"no_repeat_ngram_size": 2}, {"min_new_tokens": 6}), 2,
    ), ids=str,
)  # fmt: skip
def test_combined_options_draw_the_words_of_a_plain_computation(
    first: dict[str, float], second: dict[str, float]
) -> None:
    decoding = DecodingConfig.model_validate({"do_sample": True, "max_new_tokens": 9, **first, **second})
    rng = np.random.default_rng(0)
    for _ in range(30):
        scores, ids, number = rng.normal(size=6), rng.integers(0, 3, size=5).tolist(), float(rng.random())
        sequence = TokenSequence(uniforms=[number] * 9, ids=list(ids))
        next_words([sequence], torch.tensor(scores[None]), decoding, ends=(1,))
        wanted = by_hand(scores.tolist(), ids, decoding, number, 1)
        assert sequence.ids[5:] == ([] if wanted == 1 else [wanted])
        assert sequence.is_done == (wanted == 1)
