"""Options of decoding do what they say."""

from __future__ import annotations

import pytest
import torch

from radweave.nn.decoding import Beam, BeamSearch, DecodingConfig, nucleus
from radweave.nn.language_model import LlamaConfig


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
def test_a_search_is_over_when_no_open_beam_is_better_than_the_worst_finished(open_total: float, is_done: bool) -> None:
    """Finished are -1 and -6 over 2 words: an open beam that is worse than the better of them may still go on."""
    decoding, end = DecodingConfig(num_beams=2, max_new_tokens=9, length_penalty=1.0), 2
    search = BeamSearch.of(2)
    search.go_on([(0, 5, -0.5, -0.5), (0, end, -1.0, -1.0), (0, 6, -2.0, -2.0), (0, 7, -3.0, -3.0)], decoding, end)
    assert (search.finished, search.is_done) == ([(-1.0, Beam((), (), -1.0))], False)
    search.go_on([(0, end, -5.5, -6.0), (1, 5, 0.0, open_total), (0, 6, -6.5, -7.0)], decoding, end)
    assert [score for score, _ in search.finished] == [-1.0, -3.0]
    assert search.is_done == is_done
    assert search.sources == [1, 0]


def test_an_end_that_is_not_among_the_best_finishes_nothing() -> None:
    decoding, end = DecodingConfig(num_beams=2, max_new_tokens=9), 2
    search = BeamSearch.of(2)
    search.go_on([(0, 5, -0.5, -0.5), (0, 6, -0.6, -0.6), (0, end, -0.7, -0.7), (0, 7, -3.0, -3.0)], decoding, end)
    assert search.finished == []
    assert [beam.ids for beam in search.open] == [(5,), (6,)]
