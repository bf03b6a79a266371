"""Studies counted a few at a time: what is found does not depend on how many, nor on who is counted beside."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radweave.metrics import language, ngrams
from radweave.metrics.language import cider, language_and_floors, language_statistics
from radweave.metrics.ngrams import PairedTexts, ReportStatistics, count_pairs
from radweave.metrics.prepare import PreparedTexts
from radweave.metrics.protocols import get_protocol
from radweave.metrics.statistics import among, resampled_weights

WORDS = ["the", "lungs", "are", "clear", ".", "no", "effusion", "small", "left", "", "opacity"]


def texts(studies: int, seed: int = 0) -> PreparedTexts:
    draw = random.Random(seed)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))

    hyps = ["", *(text() for _ in range(studies - 1))]
    return PreparedTexts(hyps, [[text() for _ in range(draw.randint(1, 3))] for _ in range(studies)])


@pytest.mark.parametrize("protocol", ["full", "hf"])
def test_a_few_studies_at_a_time_score_as_all_at_once(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, paired = get_protocol(protocol), texts(11)
    at_once = language_statistics(paired, rules)
    monkeypatch.setattr(language, "STUDIES_AT_A_TIME", 3)
    monkeypatch.setattr(ngrams, "_BLOCK", 2)
    in_parts = language_statistics(paired, rules)
    assert at_once.keys() == in_parts.keys()
    for name, statistic in at_once.items():
        # CIDEr adds the n-grams of a study in another order; all else is counted or divided study by study.
        atol = 1e-12 if name.startswith("CIDEr") else 0.0
        np.testing.assert_allclose(in_parts[name].per_study, statistic.per_study, rtol=0, atol=atol)
        np.testing.assert_allclose(in_parts[name].rows, statistic.rows, rtol=0, atol=atol)
    shared = {id(in_parts[f"BLEU_{n}"].rows) for n in (1, 2, 3, 4)}
    assert len(shared) == (1 if protocol == "full" else 4)


def test_parts_know_the_words_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIDEr weighs an n-gram by how many of all studies have it."""
    paired = texts(9)
    whole = PairedTexts.of([text.split() for text in paired.hyps], [[t.split() for t in refs] for refs in paired.refs])
    wanted, _ = cider(whole, count_pairs(whole, 4))
    monkeypatch.setattr(language, "STUDIES_AT_A_TIME", 2)
    result = language_statistics(paired, get_protocol("full"))["CIDEr"].per_study
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-12)
    assert wanted.max() > 0


def test_floors_counted_beside_score_as_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, paired, other = get_protocol("full"), texts(8), texts(8, seed=1).hyps
    monkeypatch.setattr(language, "STUDIES_AT_A_TIME", 3)
    main, floors, none = language_and_floors(paired, {"other": other, "own": paired.hyps}, rules)
    alone = language_statistics(PreparedTexts(other, paired.refs), rules)
    assert floors["other"] == pytest.approx({name: one.corpus() for name, one in alone.items()}, abs=1e-12)
    assert floors["own"] == pytest.approx({name: one.corpus() for name, one in main.items()}, abs=1e-12)
    assert floors["other"]["BLEU_4"] != floors["own"]["BLEU_4"]
    some = np.arange(8) % 3 != 1
    assert none == {"other": {}, "own": {}}
    _, _, floors = language_and_floors(paired, {"other": other}, rules, some)
    kept = among(alone, some)
    assert floors["other"] == pytest.approx({name: one.corpus() for name, one in kept.items()}, abs=1e-12)
    assert kept["CIDEr"].corpus() == pytest.approx(alone["CIDEr"].per_study[some].mean())
    assert kept["BLEU_1"].corpus() != pytest.approx(alone["BLEU_1"].corpus())


def test_an_n_gram_counts_once_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its references lie in one block or not."""
    reports, owners = [["a", "b"], ["a", "b"], ["a"], ["b", "a", "b"]], np.array([0, 0, 1, 2])
    for block in (1, 2, 100):
        monkeypatch.setattr(ngrams, "_BLOCK", block)
        result = ReportStatistics.of(reports, 2, owners)
        by_word = {word: int(result.frequencies[0][number]) for word, number in result.words.items()}
        assert by_word == {"a": 3, "b": 2}
        assert sorted(result.frequencies[1].tolist()) == [1, 2]
        numbers = [result.encode(text) for text in (["a", "b", "new"], ["new", "b", "a"])]
        tables, frequency = result.count(numbers)
        bigrams = [(result.words["a"], result.words["b"], 2), (result.words["b"], result.words["a"], 1)]
        shown = {
            (int(tables[0].last[before]), int(last), int(count))
            for before, last, count in zip(tables[1].before, tables[1].last, frequency[1], strict=True)
            if count
        }
        assert shown == set(bigrams)


def test_chunk_size_does_not_change_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = np.arange(7)
    at_once = np.concatenate(list(resampled_weights(clusters, 25, seed=3)))
    monkeypatch.setattr("radweave.metrics.statistics._CHUNK_WEIGHTS", 20)
    chunks = list(resampled_weights(clusters, 25, seed=3))
    assert [len(chunk) for chunk in chunks] == [2] * 12 + [1]
    np.testing.assert_array_equal(np.concatenate(chunks), at_once)
