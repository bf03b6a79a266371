"""Findings in the evidence beside those in the draft, against counts done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from radweave.labels import get_labeler
from radweave.metrics.evidence import evidence_agreement, recalled_text

EFFUSION, EDEMA, CLEAR = "There is a pleural effusion.", "There is pulmonary edema.", "The lungs are clear."


def row(ref: str, hyp: str, **evidence: Any) -> dict[str, Any]:
    return {"ref": ref, "hyp": hyp, "evidence": evidence}


def test_against_counts_by_hand() -> None:
    rows = [
        # Draft right, heads right and one too many, recalled right.
        row(
            EFFUSION,
            EFFUSION,
            class_probabilities={"Pleural Effusion": 0.9, "Edema": 0.5, "No Finding": 0.9},
            recalled=[{"kind": "report", "text": EFFUSION}],
        ),
        # Draft misses, heads right, recalled wrong.
        row(
            EDEMA,
            CLEAR,
            class_probabilities={"Pleural Effusion": 0.1, "Edema": 0.7},
            recalled=[{"kind": "report", "text": EFFUSION}],
        ),
        # Without a reference: does not count.
        {"ref": None, "hyp": EDEMA, "evidence": {}},
    ]
    result = evidence_agreement(rows, get_labeler("chexpert14"))
    assert result.draft == pytest.approx(2 * 1 / (1 + 2))
    assert result.heads == pytest.approx(2 * 2 / (3 + 2))
    assert result.recalled == pytest.approx(2 * 1 / (2 + 2))
    assert result.draft_heads == pytest.approx(2 * 1 / (1 + 3))
    assert result.draft_recalled == pytest.approx(2 * 1 / (1 + 2))
    assert result.recalled_kind == "report"
    assert (result.per_reference, result.per_draft) == (1.0, 0.5)


def test_missing_evidence_is_none_not_zero() -> None:
    result = evidence_agreement([row(EFFUSION, EFFUSION, sentences=[])], get_labeler("chexpert14"))
    assert (result.heads, result.recalled, result.draft_heads, result.draft_recalled) == (None, None, None, None)
    assert result.recalled_kind is None
    assert result.draft == 1.0


def test_null_in_a_file_is_an_absent_value() -> None:
    without_thresholds = row(EFFUSION, EFFUSION, calibration={"thresholds": None}, recalled=None)
    without_thresholds["evidence"]["class_probabilities"] = {"Pleural Effusion": 0.6, "Edema": None}
    without_heads = row(EDEMA, EDEMA, class_probabilities=None, calibration=None)
    result = evidence_agreement([without_thresholds, without_heads], get_labeler("chexpert14"))
    assert result.heads == pytest.approx(2 * 1 / (1 + 2)), "0.6 reaches 0.5, and the second draft has no heads"
    assert (result.heads_ap, result.recalled) == (None, None)


@pytest.mark.parametrize(
    ("recalled", "expected"),
    [
        ([{"kind": "sentence", "text": "a"}, {"kind": "report", "text": "b"}], ("report", "b")),
        ([{"kind": "report", "text": "a"}, {"kind": "report", "text": "b"}], ("report", "a")),
        ([{"kind": "sentence", "text": "a"}, {"kind": "sentence", "text": "b"}], ("sentence", "a b")),
        ([{"kind": "region", "study_id": "x"}], (None, "")),
    ],
)
def test_recalled_cases_are_counted_by_rule(recalled: list[dict[str, Any]], expected: tuple[str | None, str]) -> None:
    assert recalled_text({"recalled": recalled}) == expected


def test_heads_count_from_run_thresholds_and_never_without_one() -> None:
    probabilities = {"Pleural Effusion": 0.3, "Edema": 0.9}
    result = evidence_agreement(
        [
            row(
                EFFUSION,
                CLEAR,
                class_probabilities=probabilities,
                calibration={"thresholds": {"Pleural Effusion": 0.2}},
            )
        ],
        get_labeler("chexpert14"),
    )
    assert result.heads == 1.0
    assert result.heads_ap is None, "not all classes have a probability"
    full = dict.fromkeys(get_labeler("chexpert14").classes, 0.1) | {"Pleural Effusion": 0.3}
    two = [row(EFFUSION, CLEAR, class_probabilities=full), row(CLEAR, CLEAR, class_probabilities=full)]
    assert evidence_agreement(two, get_labeler("chexpert14")).heads_ap == 0.5
