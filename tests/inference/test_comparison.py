"""A draft beside its reference: what contradicts, what was missed, what was made up, marked in both texts."""

from __future__ import annotations

import pytest

from radweave.core.study import LabelState
from radweave.inference.explain.comparison import Difference, TextComparison, compare_texts
from radweave.labels import get_labeler

LABELER = get_labeler("chexpert14")


def differences(draft: str, reference: str) -> dict[str, Difference]:
    return {row.name: row.difference for row in compare_texts(draft, reference, LABELER).rows}


def marked(compared_texts: TextComparison, which: str) -> list[tuple[str, str, Difference]]:
    """Text, class and difference of every mark of one of the texts."""
    lines = getattr(compared_texts, which)
    return [(part.text, *what) for parts in lines for part in parts for what in part.differences]


@pytest.mark.parametrize(
    ("draft", "reference", "expected"),
    [
        ("The heart is enlarged.", "The heart is enlarged.", Difference.SAME),
        ("The heart is enlarged.", "Heart size is normal.", Difference.CONTRADICTED),
        ("Heart size is normal.", "The heart is enlarged.", Difference.CONTRADICTED),
        ("Heart size is normal.", "Possible cardiomegaly.", Difference.CONTRADICTED),
        ("The heart is enlarged.", "The lungs are clear.", Difference.INVENTED),
        ("Possible cardiomegaly.", "The lungs are clear.", Difference.INVENTED),
        ("The lungs are clear.", "The heart is enlarged.", Difference.MISSED),
        ("The heart is enlarged.", "Possible cardiomegaly.", Difference.SURER),
        ("Possible cardiomegaly.", "The heart is enlarged.", Difference.LESS_SURE),
    ],
)
def test_differences_of_a_draft_from_its_reference(draft: str, reference: str, expected: Difference) -> None:
    assert differences(draft, reference)["Cardiomegaly"] is expected


def test_a_denial_that_the_other_text_does_not_have_is_no_difference() -> None:
    assert "Fracture" not in differences("No fracture.", "The heart is enlarged.")
    assert "Fracture" not in differences("The heart is enlarged.", "No fracture.")
    assert "No Finding" not in differences("The lungs are clear.", "The lungs are clear.")


def test_marks_stand_in_both_texts_on_the_words_that_differ() -> None:
    compared_texts = compare_texts(
        "The heart is enlarged. There is a pneumothorax. No effusion.",
        "Heart size is normal. Pleural effusion.",
        LABELER,
    )
    assert {(name, difference) for _, name, difference in marked(compared_texts, "draft")} == {
        ("Cardiomegaly", Difference.CONTRADICTED),
        ("Pneumothorax", Difference.INVENTED),
        ("Pleural Effusion", Difference.CONTRADICTED),
    }
    assert {(name, difference) for _, name, difference in marked(compared_texts, "reference")} == {
        ("Cardiomegaly", Difference.CONTRADICTED),
        ("Pleural Effusion", Difference.CONTRADICTED),
    }
    assert ("pneumothorax", "Pneumothorax", Difference.INVENTED) in marked(compared_texts, "draft")
    texts = ["".join(part.text for part in parts) for parts in compared_texts.draft]
    assert texts == ["The heart is enlarged.", "There is a pneumothorax.", "No effusion."], "no word is lost"
    assert compared_texts.count(Difference.CONTRADICTED) == 2
    assert [row.difference for row in compared_texts.rows] == sorted(
        (row.difference for row in compared_texts.rows), key=list(Difference).index
    ), "the gravest first"


def test_agreement_has_no_mark() -> None:
    compared_texts = compare_texts("The heart is enlarged.", "The heart is enlarged.", LABELER)
    assert marked(compared_texts, "draft") == marked(compared_texts, "reference") == []
    assert compared_texts.rows[0].draft is compared_texts.rows[0].reference is LabelState.POSITIVE


def test_sides_are_compared_where_labels_agree() -> None:
    compared_texts = compare_texts("There is a left pleural effusion.", "Right pleural effusion is seen.", LABELER)
    assert compared_texts.count(Difference.SIDE) == 1
    assert {text for text, _, _ in marked(compared_texts, "draft")} == {"left", "effusion"}
    assert {text for text, _, _ in marked(compared_texts, "reference")} == {"Right", "effusion"}
    same = compare_texts("There is a left pleural effusion.", "Left pleural effusion.", LABELER)
    assert same.count(Difference.SIDE) == 0
