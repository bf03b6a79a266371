"""Intervals and tests against plain recomputation, and published p-values."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.labels import get_labeler
from radweave.metrics import Evaluation, Options, Pair, evaluate_pairs
from radweave.metrics.significance import (
    Difference,
    benjamini_hochberg,
    compare,
    compare_seeds,
    compared_statistics,
    corrected,
    holm,
)
from radweave.metrics.statistics import bootstrap, cluster_index, mean_statistic, resampled_weights

PLAIN = Options(meteor=False, floors=False, resamples=0)
REPORTS = (
    "the heart is normal in size and the lungs are clear .",
    "there is a small left pleural effusion with basal atelectasis .",
    "no pneumothorax . stable cardiomegaly .",
    "right upper lobe opacity may be pneumonia .",
    "the mediastinum is unremarkable . old rib fractures are seen .",
    "bilateral effusions have increased . there is mild edema .",
)


def pairs_of(hyps: list[str], patients: list[str | None] | None = None) -> list[Pair]:
    owners = patients or [None] * len(hyps)
    return [Pair(f"s{i}", hyp, (REPORTS[i % len(REPORTS)],), patient_id=owners[i]) for i, hyp in enumerate(hyps)]


def spoiled(every: int) -> list[str]:
    """The references with each ``every``-th word left out."""
    texts = [REPORTS[i % len(REPORTS)].split() for i in range(24)]
    return [" ".join(w for j, w in enumerate(text) if j % every) for text in texts]


def mixed() -> tuple[list[str], list[str]]:
    """Two systems of which each has some of the better outputs: tests then depend on who is compared with whom."""
    both = list(zip(spoiled(3), spoiled(4), strict=True))
    pairs = [(x, y) if i % 5 < 2 else (y, x) for i, (x, y) in enumerate(both)]
    return [x for x, _ in pairs], [y for _, y in pairs]


def evaluation(hyps: list[str]) -> Evaluation:
    return evaluate_pairs(pairs_of(hyps), "ws", options=PLAIN)


def test_resampled_bleu_is_the_bleu_of_the_resampled_corpus() -> None:
    """One resample, recomputed by scoring the drawn studies as a corpus of their own."""
    pairs = pairs_of(spoiled(4))
    statistic = evaluate_pairs(pairs, "ws", options=PLAIN).statistics["BLEU_4"]
    weights = next(iter(resampled_weights(np.arange(len(pairs)), 1, seed=3)))
    drawn = [
        Pair(f"{pair.study_id}.{copy}", pair.hyp, pair.refs)
        for pair, count in zip(pairs, weights[0].astype(int), strict=True)
        for copy in range(count)
    ]
    assert weights.sum() == len(pairs) == len(drawn)
    expected = evaluate_pairs(drawn, "ws", options=PLAIN).corpus["BLEU_4"].value
    assert statistic.value(weights @ statistic.rows)[0] == pytest.approx(expected, abs=1e-12)


def test_interval_holds_the_score_and_repeats_with_its_seed() -> None:
    pairs = pairs_of(spoiled(5))
    first, repeated, other = (
        evaluate_pairs(pairs, "ws", options=Options(meteor=False, floors=False, resamples=200, seed=seed)).corpus
        for seed in (0, 0, 1)
    )
    for score in first.values():
        if score.value is not None:
            assert score.interval is not None
            assert score.interval.low is not None
            assert score.interval.high is not None
            assert score.interval.low <= score.value <= score.interval.high
    assert first["BLEU_4"] == repeated["BLEU_4"]
    assert first["BLEU_4"] != other["BLEU_4"]


def test_bootstrap_interval_of_a_mean_agrees_with_theory() -> None:
    values = np.random.default_rng(0).normal(size=400)
    interval = bootstrap({"mean": mean_statistic(values)}, np.arange(400), resamples=4000)["mean"]
    half = 1.96 * values.std() / 20
    # 4,000 resamples put the 2.5 % point to within about 0.07 standard errors (one standard error here is 0.05).
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)


def test_a_patients_studies_are_drawn_together() -> None:
    clusters = cluster_index(["p", "p", None, None, "q"])
    assert clusters.tolist() == [0, 0, 1, 2, 3]
    weights = np.concatenate(list(resampled_weights(clusters, 50, seed=0)))
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, [0, 2, 3, 4]].sum(axis=1) == 4).all()


def test_one_study_or_one_patient_has_no_interval() -> None:
    pairs = [Pair("a", "x", ("x y",), patient_id="p"), Pair("b", "y", ("x y",), patient_id="p")]
    for drafts in (pairs, pairs[:1]):
        score = evaluate_pairs(drafts, "ws", options=Options(meteor=False, resamples=50)).corpus["BLEU_1"].to_json()
        assert score["interval"] is None
        assert "one study or one patient" in score["interval_note"]


def test_comparison_tells_a_difference_from_none() -> None:
    better, worse = evaluation(spoiled(8)), evaluation(spoiled(2))
    result = {d.metric: d for d in compare(worse, better, resamples=500)}
    bleu = result["BLEU_4"]
    assert bleu.difference is not None
    assert bleu.difference > 0
    assert bleu.low is not None
    assert bleu.low > 0
    # Nothing in 500 resamples is as large: (0 + 1) / (500 + 1).
    assert bleu.p_randomisation == pytest.approx(1 / 501)
    assert bleu.p_bootstrap == pytest.approx(1 / 501)
    assert bleu.p_holm is not None
    assert bleu.p_holm > 1 / 501
    for difference in compare(better, better, resamples=100):
        assert difference.difference is None or difference.difference == 0
        assert difference.p_randomisation in (None, 1.0)


def test_system_does_not_differ_from_itself_in_any_resample() -> None:
    """Both systems are drawn with the same studies; drawn apart, the interval around 0 would be wide."""
    same = evaluation(spoiled(5))
    for difference in compare(same, same, resamples=100):
        if difference.difference is not None:
            assert (difference.low, difference.high, difference.p_bootstrap) == (0.0, 0.0, 1.0)


def test_randomisation_p_value_against_all_exchanges() -> None:
    """Six studies have 64 exchanges; the sampled p-value is close to the exact one."""
    a = evaluate_pairs(pairs_of(spoiled(3)[:6]), "ws", options=PLAIN)
    b = evaluate_pairs(pairs_of(spoiled(4)[:6]), "ws", options=PLAIN)
    gap = b.statistics["ROUGE_L"].per_study - a.statistics["ROUGE_L"].per_study
    signs = np.array([[1 if code >> i & 1 else -1 for i in range(6)] for code in range(64)])
    exact = (np.abs(signs @ gap) >= abs(gap.sum()) - 1e-12).mean()
    result = next(d for d in compare(a, b, resamples=4000) if d.metric == "ROUGE_L")
    # Standard error of a share near 0.5 with 4,000 draws: 0.008; four of them.
    assert result.p_randomisation == pytest.approx(exact, abs=0.032)


def test_exchanges_depend_on_seed_and_keep_patients_together() -> None:
    """All of B is better, but there are two patients: of their four exchanges two are as far apart, so p is 1/2."""
    owners: list[str | None] = ["p"] * 12 + ["q"] * 12
    worse, better = (evaluate_pairs(pairs_of(spoiled(n), owners), "ws", options=PLAIN) for n in (2, 8))
    result = {d.metric: d for d in compare(worse, better, resamples=400)}
    assert result["BLEU_4"].p_randomisation == pytest.approx(0.5, abs=0.1)
    a, b = (evaluation(hyps) for hyps in mixed())
    first, repeated, other = (
        [d.p_randomisation for d in compare(a, b, resamples=100, seed=seed)] for seed in (0, 0, 1)
    )
    assert first == repeated
    assert first != other


def test_mean_leaves_out_studies_without_value() -> None:
    statistic = mean_statistic(np.array([1.0, np.nan, 3.0]))
    assert statistic.corpus() == 2.0
    assert np.isnan(mean_statistic(np.array([np.nan])).corpus())


def test_comparison_pairs_by_id_not_by_place() -> None:
    a, b = (evaluation(hyps) for hyps in mixed())
    shuffled = evaluate_pairs(list(reversed(pairs_of(mixed()[1]))), "ws", options=PLAIN)
    in_order, by_id = (compare(a, other, resamples=100) for other in (b, shuffled))
    assert any(0.02 < (x.p_randomisation or 0) < 0.98 for x in in_order)
    for x, y in zip(in_order, by_id, strict=True):
        assert x.p_randomisation == y.p_randomisation
        # Sums in another order differ in the last digits.
        assert (x.difference, x.low, x.high) == pytest.approx((y.difference, y.low, y.high), abs=1e-12)


def test_comparison_refuses_other_studies_and_other_protocols() -> None:
    a = evaluation(spoiled(3))
    with pytest.raises(InputError, match="not about the same studies"):
        compare(a, evaluate_pairs(pairs_of(spoiled(3)[:-1]), "ws", options=PLAIN))
    with pytest.raises(InputError, match="different protocols"):
        compare(a, evaluate_pairs(pairs_of(spoiled(3)), "full", options=PLAIN))


def test_holm_and_benjamini_hochberg_by_hand() -> None:
    assert holm([0.01, 0.04, None, 0.03]) == [0.03, 0.06, None, 0.06]
    by_bh = benjamini_hochberg([0.01, 0.04, None, 0.03])
    assert by_bh.pop(2) is None
    assert by_bh == pytest.approx([0.03, 0.04, 0.04])
    family = corrected([Difference("x", 0, 1, 1, p_randomisation=0.5), Difference("y", 0, 1, 1)])
    assert (family[0].p_holm, family[1].p_holm) == (0.5, None)


# Printed scores and p-values of Tian et al., arXiv:2603.17718, Table 5 (five seeds each).
TABLE_5 = {
    "B1": ([47.25, 47.43, 47.63, 47.41, 47.30], [58.01, 57.75, 57.73, 57.75, 58.16], 8.77e-13),
    "B4": ([24.87, 25.02, 25.27, 25.09, 24.84], [35.82, 35.54, 35.54, 35.52, 34.28], 6.44e-07),
    "MTR": ([44.07, 44.06, 44.38, 44.18, 43.99], [50.76, 50.59, 50.59, 50.58, 47.40], 7.65e-04),
    "RG-L": ([36.67, 36.67, 36.98, 37.62, 36.53], [39.48, 39.27, 39.28, 39.25, 32.32], 5.05e-01),
    "F1": ([0.253, 0.250, 0.248, 0.260, 0.259], [0.398, 0.397, 0.397, 0.397, 0.406], 1.62e-10),
    "Recall": ([0.180, 0.178, 0.178, 0.186, 0.186], [0.440, 0.441, 0.441, 0.441, 0.450], 1.13e-13),
    "Precision": ([0.423, 0.417, 0.412, 0.430, 0.427], [0.362, 0.361, 0.361, 0.361, 0.370], 3.36e-06),
}


def test_published_table_over_seeds_is_reproduced() -> None:
    a = [{name: scores[0][seed] for name, scores in TABLE_5.items()} for seed in range(5)]
    b = [{name: scores[1][seed] for name, scores in TABLE_5.items()} for seed in range(5)]
    result = {comparison.metric: comparison for comparison in compare_seeds(a, b)}
    for name, (_, _, p) in TABLE_5.items():
        # Three digits are printed, of scores rounded to two.
        assert result[name].p == pytest.approx(p, rel=0.01), name
    assert (round(result["B1"].a_mean, 2), round(result["B1"].a_std, 2)) == (47.40, 0.15)
    assert (round(result["RG-L"].b_mean, 2), round(result["RG-L"].b_std, 2)) == (37.92, 3.13)


def test_seeds_without_spread_have_no_test_and_one_seed_is_refused() -> None:
    same = compare_seeds([{"x": 1.0}] * 3, [{"x": 2.0}] * 3)[0]
    assert same.p is None
    assert "do not vary" in str(same.note)
    with pytest.raises(InputError, match="several seeds"):
        compare_seeds([{"x": 1.0}], [{"x": 2.0}] * 2)


@pytest.mark.parametrize(
    ("labels", "protocol", "tested"),
    [
        # With No Finding the average over all classes is another score; without, as of CT, it is the same one.
        ("chexpert14", "full", ["CE_F1", "CE_F1_macro", "CE_F1_example", "CE_micro_F1"]),
        ("ct18", "full", ["CE_F1", "CE_F1_macro", "CE_F1_example"]),
    ],
)
def test_each_average_of_findings_is_tested_once_and_first(labels: str, protocol: str, tested: list[str]) -> None:
    pairs = pairs_of(["Small pleural effusion. No pneumothorax.", "Cardiomegaly.", "The lungs are clear."] * 4)
    scored = evaluate_pairs(pairs, protocol, labeler=get_labeler(labels), options=PLAIN)
    names = list(compared_statistics(scored))
    assert [name for name in names if name.startswith("CE_") and name != "CE_sided_findings_F1"] == tested
    assert names[: len(tested)] == tested
