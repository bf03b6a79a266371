"""The choice among candidates."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.drafting.candidates import Candidate, Sentence
from radweave.drafting.choice import Choice, ExpectedUtility

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
    found = chooser.choose(
        np.array(probabilities), np.array(weights), np.arange(3) == (-1 if barred is None else barred)
    )
    assert found is not None
    return found


def test_wording_alone_says_what_most_reports_say() -> None:
    assert choose(0.9, 0.9, beta=0).asserted == ()


def test_a_finding_is_said_when_it_pays_off() -> None:
    # Wording prefers "normal" by 0.6 x 1 - 0.2 x 1 + 0.2 x 1 = 0.6: 6 (p - 0.2) has to be more.
    assert choose(0.29, 0.1).asserted == ()
    found = choose(0.31, 0.1)
    assert found.asserted == ("Pleural Effusion",)
    assert found.findings == pytest.approx(6 * 0.11)
    assert found.wording == pytest.approx(0.6 * 1 + 0.2 * 2)


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

    def text(barred: tuple[bool, bool]) -> str | None:
        found = chooser.choose(np.array([0.9]), np.array([0.5, 0.5]), np.array(barred))
        return None if found is None else found.candidate.text

    assert text((False, False)) == "normal effusion"
    assert text((False, True)) == "normal"
    assert text((True, False)) is None, "nothing is left to say"
