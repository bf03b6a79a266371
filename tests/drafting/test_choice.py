"""The choice among candidates, of all pairs and of the nearest in a large bank."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from radweave.drafting.candidates import Candidate, CandidatePool, Sentence, bleu_point, utilities
from radweave.drafting.choice import Choice, ExpectedUtility, NearbyUtility, nearest_rows
from radweave.labels import get_labeler
from radweave.metrics.ngrams import ReportStatistics
from radweave.metrics.pairwise import MAX_ORDER, PairwiseWording, WordingWeights
from radweave.nn.decoding import ExpectedUtilityConfig

CANDIDATES = [Candidate((Sentence(text, "report", row),)) for row, text in enumerate(("normal", "effusion", "mass"))]
WORDING = np.array([[2.0, 1.0, 1.0], [1.0, 2.0, 0.0], [1.0, 0.0, 2.0]], dtype=np.float32)
ASSERTS = np.array([[0, 0], [1, 0], [0, 1]], dtype=float)


def choose(
    *probabilities: float, weights: tuple[float, ...] = (0.6, 0.2, 0.2), barred: int | None = None, beta: float = 6.0
) -> Choice:
    chooser = ExpectedUtility(
        CANDIDATES,
        ASSERTS,
        WORDING,
        classes=("Pleural Effusion", "Lung Lesion"),
        thresholds=np.array([0.2, 0.2]),
        beta=beta,
    )
    own = np.arange(3) == (-1 if barred is None else barred)
    (result,) = chooser.best(1, np.array(probabilities), np.array(weights), own)
    return result


def test_without_findings_the_most_common_wording_wins() -> None:
    assert choose(0.9, 0.9, beta=0).asserted == ()


def test_a_finding_is_stated_if_its_expected_utility_is_positive() -> None:
    # Wording prefers "normal" by 0.6 x 1 - 0.2 x 1 + 0.2 x 1 = 0.6: 6 (p - 0.2) has to be more.
    assert choose(0.29, 0.1).asserted == ()
    result = choose(0.31, 0.1)
    assert result.asserted == ("Pleural Effusion",)
    assert result.findings == pytest.approx(6 * 0.11)
    assert result.wording == pytest.approx(0.6 * 1 + 0.2 * 2)


def test_a_patient_never_gets_words_of_their_own_reports() -> None:
    assert choose(0.9, 0.5, weights=(0.1, 0.8, 0.1)).candidate.text == "effusion"
    kept_apart = choose(0.9, 0.5, weights=(0.1, 0.8, 0.1), barred=1)
    assert kept_apart.candidate.text == "mass"
    # Nor does their report speak for the words of others.
    assert kept_apart.wording == pytest.approx(0.1 * 1 + 0.1 * 2)
    assert choose(0.0, 0.0, weights=(0.1, 0.8, 0.1), barred=1).wording == pytest.approx(0.1 * 2 + 0.1 * 1)


def test_one_sentence_of_the_patients_own_bars_the_whole_composite() -> None:
    mixed = [Candidate((Sentence("normal", "template", 0), Sentence("effusion", "finding", 1))), *CANDIDATES[:1]]
    asserts, wording = np.array([[1.0], [0.0]]), np.array([[3.0, 3.0], [0.0, 0.0]], dtype=np.float32)
    chooser = ExpectedUtility(mixed, asserts, wording, classes=("Pleural Effusion",), thresholds=np.array([0.2]))

    def texts(barred: tuple[bool, bool]) -> list[str]:
        results = chooser.best(1, np.array([0.9]), np.array([0.5, 0.5]), np.array(barred))
        return [result.candidate.text for result in results]

    assert texts((False, False)) == ["normal effusion"]
    assert texts((False, True)) == ["normal"]
    assert texts((True, False)) == [], "nothing is left to say"


LABELER, CONFIG = get_labeler("chexpert14"), ExpectedUtilityConfig()
STATED = ("The heart is enlarged.", "There is a left pleural effusion.", "There is a right lower lobe opacity.")
NORMAL = ("The heart is normal in size.", "The lungs are clear.", "No effusion is seen.", "The bones are intact.")
CHANCE = random.Random(0)
REPORTS = [
    " ".join([*CHANCE.sample(STATED, CHANCE.randint(0, 2)), *CHANCE.sample(NORMAL, CHANCE.randint(1, 4))])
    for _ in range(40)
]
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def pool() -> CandidatePool:
    return CandidatePool.build(REPORTS, LABELER, CONFIG)


def nearby(pool: CandidatePool, **limits: int) -> NearbyUtility:
    point = bleu_point(pool.candidates, REPORTS, [*range(1, len(REPORTS)), 0])
    thresholds = np.full(len(LABELER.classes), 0.2)
    return NearbyUtility(
        pool.candidates,
        pool.asserts,
        REPORTS,
        classes=LABELER.classes,
        thresholds=thresholds,
        weights=WordingWeights(),
        point=point,
        **limits,
    )


def paired(pool: CandidatePool) -> ExpectedUtility:
    point = bleu_point(pool.candidates, REPORTS, [*range(1, len(REPORTS)), 0])
    worth = utilities(pool.candidates, REPORTS, CONFIG, point)
    thresholds = np.full(len(LABELER.classes), 0.2)
    return ExpectedUtility(pool.candidates, pool.asserts, worth, classes=LABELER.classes, thresholds=thresholds)


def test_with_all_neighbours_the_choice_is_that_of_all_pairs(pool: CandidatePool) -> None:
    own, reference = nearby(pool, nearest=len(REPORTS), composites=len(pool.candidates)), paired(pool)
    for study in range(12):
        weights = RNG.normal(1 / 40, 0.03, size=40)
        probabilities = RNG.random(len(LABELER.classes)) * 0.5
        barred = np.arange(40) % 13 == study
        (result,) = own.best(1, probabilities, weights, barred)
        (wanted,) = reference.best(1, probabilities, weights, barred)
        assert result.wording + result.findings == pytest.approx(wanted.wording + wanted.findings, abs=1e-4)
        assert result.candidate.text == wanted.candidate.text


@pytest.mark.parametrize("make", [nearby, paired])
def test_a_refused_candidate_is_chosen_only_where_there_is_no_other(
    pool: CandidatePool, make: Callable[[CandidatePool], ExpectedUtility | NearbyUtility]
) -> None:
    chooser, probabilities, weights = make(pool), np.full(len(LABELER.classes), 0.3), RNG.normal(1 / 40, 0.03, size=40)
    nothing, everything = (np.full(len(pool.candidates), value) for value in (False, True))

    def chosen(refused: NDArray[np.bool_] | None, barred: NDArray[np.bool_]) -> str:
        (found,) = chooser.best(1, probabilities, weights, barred, refused)
        return found.candidate.text

    none, texts = np.zeros(40, dtype=bool), [candidate.text for candidate in pool.candidates]
    best = chosen(None, none)
    assert chosen(nothing, none) == chosen(everything, none) == best
    first = nothing.copy()
    first[texts.index(best)] = True
    second = chosen(first, none)
    assert second != best
    # Those that are not refused are made of the patient's own reports: the refused ones are what is left.
    only = everything.copy()
    only[texts.index(second)] = False
    barred = np.isin(np.arange(40), [sentence.row for sentence in pool.candidates[texts.index(second)].sentences])
    assert chosen(only, none) == second
    assert chosen(only, barred) == chosen(None, barred) != second


def test_utilities_of_a_few_are_those_of_all_pairs(pool: CandidatePool) -> None:
    """Document frequencies are the whole bank's, whichever reports are looked at."""
    words = [text.lower().split() for text in REPORTS]
    bank = ReportStatistics.of(words, MAX_ORDER)
    statement = [["a", "word", "no", "report", "has", *words[3]], words[5]]
    rows = [2, 7, 30]
    few = PairwiseWording.within([bank.encode(text) for text in statement], [bank.words_of(row) for row in rows], bank)
    full = PairwiseWording(statement, words)
    both = slice(0, 2)
    assert few.cider(both) == pytest.approx(full.cider(both)[:, rows], abs=1e-9)
    assert few.rouge_l(both) == pytest.approx(full.rouge_l(both)[:, rows], abs=1e-9)


def test_the_nearest_are_exact_and_of_equals_the_first() -> None:
    weights = np.array([0.1, 0.3, 0.2, 0.3, 0.2, 0.9])
    barred = np.arange(6) == 5
    assert nearest_rows(weights, barred, 3).tolist() == [1, 2, 3]
    assert nearest_rows(weights, barred, 9).tolist() == [0, 1, 2, 3, 4]


def test_nearby_candidates_exclude_barred_reports(pool: CandidatePool) -> None:
    chooser = nearby(pool, nearest=5, composites=10)
    weights, barred = np.full(40, 1 / 40), np.arange(40) < 20
    weights[25] = 0.4
    (result,) = chooser.best(1, np.zeros(len(LABELER.classes)), weights, barred)
    assert all(sentence.row >= 20 for sentence in result.candidate.sentences)
    assert chooser.best(1, np.zeros(len(LABELER.classes)), weights, np.ones(40, dtype=bool)) == []
