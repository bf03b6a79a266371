"""The vectorised metrics against plain loops written from the definitions, and against known oddities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radweave.metrics.language import cider, coco_bleu, coco_rouge_l, hf_bleu, lcs_length, rouge_score_l, rouge_score_n
from radweave.metrics.meteor import meteor_value
from radweave.metrics.ngrams import PairedTexts, count_ngrams, count_pairs

WORDS = st.sampled_from(["the", "heart", "is", "normal", "lungs", "clear", "left", "no", ""])
TEXT = st.lists(WORDS, max_size=12)
FILLED = st.lists(WORDS, min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(TEXT, st.lists(FILLED, min_size=1, max_size=3)), min_size=1, max_size=5)
# Both sides compute the same few dozen floating-point operations, in another order.
EXACT = 1e-9


def paired(pairs: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]) -> PairedTexts:
    return PairedTexts.of([hyp for hyp, _ in pairs], [refs for _, refs in pairs])


def ngrams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))


def plain_bleu(pairs: Sequence[tuple[list[str], list[list[str]]]], order: int) -> float:
    matches, candidates = [0] * 4, [0] * 4
    hyp_length = ref_length = 0
    for hyp, refs in pairs:
        hyp_length += len(hyp)
        ref_length += min((abs(len(ref) - len(hyp)), len(ref)) for ref in refs)[1]
        for n in range(4):
            counts = ngrams(hyp, n + 1)
            most: Counter[tuple[str, ...]] = Counter()
            for ref in refs:
                most |= ngrams(ref, n + 1)
            matches[n] += sum((counts & most).values())
            candidates[n] += max(len(hyp) - n, 0)
    product = math.prod((matches[n] + 1e-15) / (candidates[n] + 1e-9) for n in range(order))
    score = product ** (1 / order)
    ratio = (hyp_length + 1e-15) / (ref_length + 1e-9)
    return score if ratio >= 1 else score * math.exp(1 - 1 / ratio)


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_coco_bleu_equals_plain_loops(pairs: list[tuple[list[str], list[list[str]]]]) -> None:
    texts = paired(pairs)
    scores = coco_bleu(texts, count_pairs(texts, 4))
    for order in range(1, 5):
        assert scores[f"BLEU_{order}"].corpus() == pytest.approx(plain_bleu(pairs, order), abs=EXACT)
        alone = [plain_bleu([pair], order) for pair in pairs]
        assert scores[f"BLEU_{order}"].per_study == pytest.approx(alone, abs=EXACT)


def plain_cider(pairs: Sequence[tuple[list[str], list[list[str]]]], *, clipped: bool) -> list[float]:
    scores = [0.0] * len(pairs)
    for n in range(1, 5):
        df = Counter(gram for _, refs in pairs for gram in {g for ref in refs for g in ngrams(ref, n)})

        def weigh(tokens: list[str], n: int = n, df: Counter[tuple[str, ...]] = df) -> dict[tuple[str, ...], float]:
            logs = math.log(len(pairs))
            return {g: c * (logs - math.log(max(1, df[g]))) for g, c in ngrams(tokens, n).items()}

        for i, (hyp, refs) in enumerate(pairs):
            h = weigh(hyp)
            for ref in refs:
                r = weigh(ref)
                dot = sum((min(h.get(g, 0.0), w) if clipped else h.get(g, 0.0)) * w for g, w in r.items())
                norm = math.sqrt(sum(w * w for w in h.values())) * math.sqrt(sum(w * w for w in r.values()))
                value = dot / norm if norm else 0.0
                if clipped:
                    bigrams = max(len(hyp) - 1, 0) - max(len(ref) - 1, 0)
                    value *= math.exp(-(bigrams**2) / 72.0)
                scores[i] += 10.0 * value / 4 / len(refs)
    return scores


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_cider_equals_plain_loops(pairs: list[tuple[list[str], list[list[str]]]]) -> None:
    texts = paired(pairs)
    clipped, plain = cider(texts, count_pairs(texts, 4))
    assert clipped == pytest.approx(plain_cider(pairs, clipped=True), abs=1e-7)
    assert plain == pytest.approx(plain_cider(pairs, clipped=False), abs=1e-7)


def plain_lcs(a: Sequence[str], b: Sequence[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for j, y in enumerate(b):
            row.append(before[j] + 1 if x == y else max(before[j + 1], row[j]))
    return row[-1]


@given(TEXT, TEXT)
def test_bit_parallel_lcs_equals_the_table(a: list[str], b: list[str]) -> None:
    assert lcs_length(a, b) == plain_lcs(a, b) == lcs_length(b, a)


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_rouge_equals_plain_loops(pairs: list[tuple[list[str], list[list[str]]]]) -> None:
    texts = paired([(hyp or [""], refs) for hyp, refs in pairs])
    best = []
    for hyp, refs in zip(texts.hyps, [refs for _, refs in pairs], strict=True):
        precision = max(plain_lcs(hyp, ref) / len(hyp) for ref in refs)
        recall = max(plain_lcs(hyp, ref) / len(ref) for ref in refs)
        best.append((1 + 1.44) * precision * recall / (recall + 1.44 * precision) if precision and recall else 0.0)
    assert coco_rouge_l(texts).per_study == pytest.approx(best, abs=EXACT)

    def f1(overlap: int, hyp: int, ref: int) -> float:
        return 2 * overlap / (hyp + ref) if overlap else 0.0

    counts = count_pairs(texts, 2)
    for order in (1, 2):
        scores = [
            max(
                f1(sum((ngrams(hyp, order) & ngrams(ref, order)).values()), len(hyp) - order + 1, len(ref) - order + 1)
                for ref in refs
            )
            for hyp, (_, refs) in zip(texts.hyps, pairs, strict=True)
        ]
        assert rouge_score_n(texts, counts[order - 1], order).per_study == pytest.approx(scores, abs=EXACT)
    whole = [
        max(f1(plain_lcs(hyp, ref), len(hyp), len(ref)) for ref in refs)
        for hyp, (_, refs) in zip(texts.hyps, pairs, strict=True)
    ]
    assert rouge_score_l(texts).per_study == pytest.approx(whole, abs=EXACT)


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_ngram_counts_equal_counters(texts: list[list[str]]) -> None:
    for order, table in enumerate(count_ngrams(texts, 3), start=1):
        for i, text in enumerate(texts):
            mine = sorted(table.count[table.text == i].tolist())
            assert mine == sorted(ngrams(text, order).values())


def test_hf_bleu_smooths_every_order_and_takes_the_shortest_reference() -> None:
    texts = paired([(["a", "b", "c", "d"], [["a", "b", "x", "d", "e", "f"], ["a", "b"]])])
    score = hf_bleu(texts, count_pairs(texts, 4))["BLEU_2"]
    # 3 of 4 words and 1 of 3 bigrams match, one is added to each; the hypothesis is longer than the shortest reference.
    assert score.corpus() == pytest.approx(math.sqrt((4 / 5) * (2 / 4)))
    assert hf_bleu(paired([([], [["a"]])]), count_pairs(paired([([], [["a"]])]), 4))["BLEU_1"].corpus() == 0.0


def test_oddities_of_the_coco_scorers() -> None:
    same3 = paired([(["no", "acute", "disease"], [["no", "acute", "disease"]])])
    assert coco_bleu(same3, count_pairs(same3, 4))["BLEU_4"].corpus() == pytest.approx(0.0316, abs=1e-4)
    same1 = paired([(["normal"], [["normal"]])])
    assert coco_bleu(same1, count_pairs(same1, 4))["BLEU_4"].corpus() < 1e-3
    empty = paired([([""], [[""]])])
    assert coco_rouge_l(empty).corpus() == 1.0
    nothing = paired([([], [["a", "b"]])])
    assert coco_bleu(nothing, count_pairs(nothing, 4))["BLEU_1"].corpus() == 0.0


def test_identical_reports_score_one() -> None:
    report = ["the", "heart", "is", "normal", "in", "size", "and", "the", "lungs", "are", "clear"]
    other = ["there", "is", "a", "small", "left", "effusion", "with", "basal", "atelectasis"]
    texts = paired([(report, [report]), (other, [other])])
    counts = count_pairs(texts, 4)
    assert coco_bleu(texts, counts)["BLEU_4"].corpus() == pytest.approx(1.0, abs=1e-8)
    assert coco_rouge_l(texts).corpus() == pytest.approx(1.0)
    clipped, plain = cider(texts, counts)
    assert clipped.mean() == pytest.approx(10.0)
    assert plain.mean() == pytest.approx(10.0)


def test_meteor_formula_by_hand() -> None:
    """Numbers of one alignment of "heart size is normal ." with "the heart is normal in size ."."""
    sums = np.zeros(23)
    sums[:8] = [5, 7, 2, 4, 3, 3, 2, 2]
    sums[20:] = [4, 5, 5]
    precision = (0.75 * 3 + 0.25 * 2) / (0.75 * 3 + 0.25 * 2)
    recall = (0.75 * 3 + 0.25 * 2) / (0.75 * 3 + 0.25 * 4)
    mean = precision * recall / (0.85 * precision + 0.15 * recall)
    assert meteor_value(sums) == pytest.approx(mean * (1 - 0.6 * (4 / 5) ** 0.2))
    assert meteor_value(np.zeros(23)) == 0.0
