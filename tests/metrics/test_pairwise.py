"""All pairs at once give what the metrics give one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radweave.metrics.language import cider, coco_bleu, coco_rouge_l, lcs_length
from radweave.metrics.ngrams import PairedTexts, count_pairs
from radweave.metrics.pairwise import CommonSubsequence, PairwiseWording, WordingWeights

texts = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=150), min_size=2, max_size=5)


def paired(candidate: list[str], references: list[list[str]]) -> PairedTexts:
    return PairedTexts.of([candidate] * len(references), [[reference] for reference in references])


@settings(max_examples=25, deadline=None)
@given(candidates=texts, references=texts)
def test_pairs_score_as_the_metrics_score_them(candidates: list[list[str]], references: list[list[str]]) -> None:
    wording = PairwiseWording(candidates, references)
    every = slice(0, len(candidates))
    ciders, rouges = wording.cider(every), wording.rouge_l(every)
    for row, candidate in enumerate(candidates):
        both = paired(candidate, references)
        # 1e-6: sums of some hundred products in double precision, in another order.
        np.testing.assert_allclose(ciders[row], cider(both, count_pairs(both, 4))[0], atol=1e-6)
        np.testing.assert_allclose(rouges[row], coco_rouge_l(both).per_study, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(candidates=texts, references=texts)
def test_common_subsequences_run_over_the_ends_of_machine_words(
    candidates: list[list[str]], references: list[list[str]]
) -> None:
    lengths = CommonSubsequence(candidates, references).lengths(slice(0, len(candidates)))
    assert lengths.tolist() == [[lcs_length(one, other) for other in references] for one in candidates]


def test_a_word_that_no_reference_has_changes_nothing() -> None:
    common = CommonSubsequence([["new", "a", "b"], ["new"]], [["a", "c", "b"]])
    assert common.lengths(slice(0, 2)).tolist() == [[2], [0]]


def test_first_order_bleu_ranks_drafts_as_corpus_bleu_does() -> None:
    references = [["the", "heart", "is", "large", "today"], ["the", "lungs", "are", "clear", "today"]]
    candidates = [*references, ["the", "heart", "is", "small", "now"], ["lungs", "are"]]
    wording = PairwiseWording(candidates, references)
    point = wording.bleu_point(np.array([[2, 0], [1, 1]]))
    (_, utility), *rest = wording.blocks(WordingWeights(cider=0, rouge_l=0, bleu=1), point)
    assert rest == []

    def corpus(first: int) -> float:
        both = PairedTexts.of([candidates[first], candidates[1]], [[reference] for reference in references])
        return float(coco_bleu(both, count_pairs(both, 4))["BLEU_4"].corpus())

    for better, worse in ((0, 2), (2, 3), (0, 3)):
        assert corpus(better) > corpus(worse)
        assert utility[better, 0] > utility[worse, 0]


def test_blocks_are_the_whole_in_order() -> None:
    candidates = [list(text) for text in ("abc", "abd", "xyz", "aabb", "cab")]
    references = [list(text) for text in ("abcabc", "xyz")]
    wording = PairwiseWording(candidates, references)
    weights = WordingWeights(bleu=0)
    whole = np.concatenate([block for _, block in wording.blocks(weights, size=5)])
    parts = list(wording.blocks(weights, size=2))
    assert [rows for rows, _ in parts] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    np.testing.assert_array_equal(np.concatenate([block for _, block in parts]), whole)
    assert whole[2, 1] > whole[0, 1]


def test_bleu_needs_a_point() -> None:
    with pytest.raises(ValueError, match="point"):
        next(PairwiseWording([["a"]], [["a"]]).blocks(WordingWeights()))
