"""Phrases that drafts share with their reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.metrics.commands import CompareRequest, run_compare
from radweave.metrics.phrases import matched_phrases

REFERENCE = "Heart size is normal. A small left effusion is seen. No pneumothorax."


def write_pairs(path: Path, drop: int = 0) -> Path:
    """Four drafts that lack the first ``drop`` words of their reference."""
    rows = [{"study_id": f"s{i}", "hyp": " ".join(REFERENCE.split()[drop:]), "ref": REFERENCE} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def compared(folder: Path, out: Path | None) -> None:
    runs = write_pairs(folder / "a.jsonl"), write_pairs(folder / "b.jsonl", drop=3)
    run_compare(CompareRequest(runs=runs, ontology="none", meteor=False, resamples=20, phrases=2, out=out))


def marked(draft: str, reference: str = REFERENCE) -> list[tuple[str, int]]:
    return [(one.text, one.phrase) for one in matched_phrases(draft, reference).passages if one.phrase]


def test_phrases_are_numbered_in_the_order_of_the_reference() -> None:
    draft = "There is a small left effusion. The heart size is normal."
    assert marked(draft) == [("a small left effusion", 2), ("heart size is normal", 1)]
    assert "".join(one.text for one in matched_phrases(draft, REFERENCE).passages) == draft


@pytest.mark.parametrize(
    ("draft", "phrases"),
    [
        ("Small left lung.", []),  # two words within a longer sentence
        ("No pneumothorax.", [("No pneumothorax", 1)]),  # two words, and a whole sentence
        ("No pneumothorax seen.", []),
        ("size is.", []),  # a whole sentence of the draft alone
        ("HEART SIZE, is normal", [("HEART SIZE, is normal", 1)]),  # without case and punctuation
        ("is normal a small", []),  # crosses the end of a sentence of the reference
        ("size is. normal heart", []),  # crosses the end of a sentence of the draft
        ("left effusion is seen", [("left effusion is seen", 1)]),
        ("", []),
    ],
)
def test_a_phrase_has_three_words_or_is_a_sentence(draft: str, phrases: list[tuple[str, int]]) -> None:
    assert marked(draft) == phrases


def test_the_longest_of_several_places_counts() -> None:
    assert marked("no focal lung opacity", "No focal lung mass. No focal lung opacity.") == [
        ("no focal lung opacity", 1)
    ]


def test_the_share_is_that_of_words() -> None:
    assert matched_phrases("Perhaps heart size is normal.", REFERENCE).share == pytest.approx(4 / 5)
    assert matched_phrases("...", REFERENCE).share is None


def test_the_page_has_every_system_beside_the_reference(tmp_path: Path) -> None:
    compared(tmp_path, tmp_path / "out")
    page = (tmp_path / "out/phrases.html").read_text()
    assert page.count("<article") == page.count("<h3>Reference</h3>") == 2
    assert page.count("100 % of the words matched") == 2
    assert "<mark" in page
    assert "<script" not in page


def test_phrases_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="phrases"):
        compared(tmp_path, None)
