"""Sections of reports, and slices of batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radweave.core.batch import Batch, Slice
from radweave.core.study import (
    Report,
    draft_sections,
    has_both_sections,
    join_sections,
    join_sentences,
    rows_by_section,
    split_sections,
)

BOTH = "FINDINGS: The lungs are clear. Heart: normal. IMPRESSION: No acute disease."
PARTS = {"findings": "The lungs are clear. Heart: normal.", "impression": "No acute disease."}


def test_split_sections_inverts_join_sections() -> None:
    assert join_sections(PARTS) == BOTH
    assert split_sections(BOTH) == PARTS
    assert join_sections({"": "Clear lungs."}) == "Clear lungs.", "a report without parts has no heading"
    sentences = [("impression", "Normal."), ("findings", "Clear."), ("findings", "No mass.")]
    assert join_sentences(sentences) == "FINDINGS: Clear. No mass. IMPRESSION: Normal."


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        # As tokenizers without capitals write it.
        ("findings : clear . impression : normal .", {"findings": "clear .", "impression": "normal ."}),
        ("Clear. IMPRESSION: Normal.", {"findings": "Clear.", "impression": "Normal."}),
        ("FINDINGS: Clear IMPRESSION:Normal. FINDINGS: Thin.", {"findings": "Clear Thin.", "impression": "Normal."}),
        ("IMPRESSION: Normal.", {"impression": "Normal."}),
        ("FINDINGS: IMPRESSION: Normal.", {"impression": "Normal."}),
        ("The findings: clear lungs.", {}),
        ("Clear lungs.", {}),
        ("", {}),
    ],
)
def test_split_sections_loses_no_word(text: str, parts: dict[str, str]) -> None:
    assert split_sections(text) == parts


_WORDS = st.lists(st.sampled_from(["Clear.", "lungs", "Heart:", "finding", "impression", "IMPRESSIONS"]), min_size=1)


@given(_WORDS, _WORDS)
def test_words_stay_in_their_section(findings: list[str], impression: list[str]) -> None:
    parts = {"findings": " ".join(findings), "impression": " ".join(impression)}
    assert split_sections(join_sections(parts)) == parts
    assert has_both_sections(join_sections(parts))


def test_has_both_sections_needs_the_canonical_form() -> None:
    assert has_both_sections(BOTH)
    for other in (
        "FINDINGS: Clear.",
        "Clear. IMPRESSION: Normal.",
        BOTH.lower(),
        f" {BOTH}",
        "FINDINGS:  IMPRESSION: x",
    ):
        assert not has_both_sections(other)


def test_rows_by_section() -> None:
    rows = [
        {"text": "FINDINGS: Clear.", "n": 1},
        {"text": "Thin IMPRESSION: Normal.", "n": 2},
        {"text": "Well.", "n": 3},
    ]
    assert rows_by_section(rows) == [
        {"text": "Clear.", "section": "findings", "n": 1},
        {"text": "Thin", "section": "findings", "n": 2},
        {"text": "Normal.", "section": "impression", "n": 2},
        {"text": "Well.", "section": "impression", "n": 3},
    ]
    known = [{"text": "Normal.", "section": "impression"}]
    assert rows_by_section(known) == known


def test_the_target_of_a_run_decides_the_sections_of_a_report() -> None:
    assert Report(BOTH, "s", target="both").sections == PARTS
    assert Report("Normal.", "s", target="impression").sections == {"impression": "Normal."}
    assert Report("Normal.", "s").sections == {"findings": "Normal."}
    assert Report("", "s", target="both").sections == {}
    assert draft_sections("No heading.", "both") == {"findings": "No heading."}


@pytest.mark.parametrize(
    ("rows", "of", "priors"),
    [
        ([0, 1, 2, 3], (1, 3, 0), ["before 1", "before 3", "before 0"]),
        ([3, 0], (0, 1), ["before 3", "before 0"]),
        ([2, 1], (1,), ["before 1"]),
        ([2], (), None),
    ],
)
def test_a_part_of_a_batch_keeps_what_is_of_each_study(
    rows: list[int], of: tuple[int, ...], priors: list[str] | None
) -> None:
    """In the order asked for: texts, tensors, and the prior of each study that has one."""
    before = Batch(["before 1", "before 3", "before 0"], ["1", "3", "0"], class_labels=torch.tensor([[1], [3], [0]]))
    whole = Batch(
        [f"s{row}" for row in range(4)],
        [str(row) for row in range(4)],
        reports=[f"report {row}" for row in range(4)],
        class_labels=torch.arange(4)[:, None],
        vision_grid=(2, 3),
        priors=before,
        prior_of=(1, 3, 0),
    )
    part = whole.only(rows)
    assert part.study_ids == [f"s{row}" for row in rows]
    assert part.reports == [f"report {row}" for row in rows]
    assert part.class_labels is not None
    assert part.class_labels.flatten().tolist() == rows
    assert (part.vision_grid, part.prior_of) == ((2, 3), of)
    assert (None if part.priors is None else part.priors.study_ids) == priors
    if part.priors is not None:
        assert part.priors.class_labels is not None
        assert [part.patient_ids[row] for row in part.prior_of] == part.priors.patient_ids
        assert part.priors.class_labels.flatten().tolist() == [int(patient) for patient in part.priors.patient_ids]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_weights_of_all_slices_sum_to_one(size: int) -> None:
    for total in range(1, 12):
        slices = [Slice.of(total, rank, size) for rank in range(size)]
        assert sum(part.weight(size) for part in slices) == pytest.approx(1), total
        assert all(part.is_cut == (size > 1 and total >= size) for part in slices)
