"""From a draft to the record: sections lose no word, control characters go."""

from __future__ import annotations

import pytest

from radweave.hospital.make import sections_of, writable

BOTH = "Findings: The heart is normal.\nImpression: Clear lungs."


@pytest.mark.parametrize(
    ("text", "target", "sections"),
    [
        (BOTH, "findings+impression", [("findings", "The heart is normal."), ("impression", "Clear lungs.")]),
        ("Clear lungs.", "impression", [("impression", "Clear lungs.")]),
        ("Clear lungs.", "findings", [("findings", "Clear lungs.")]),
        ("Clear lungs.", "findings+impression", [("findings", "Clear lungs.")]),
        ("Before. " + BOTH, "findings+impression", [("findings", "Before. " + BOTH)]),
        (BOTH + "\nComparison: None.", "findings", [("findings", BOTH + "\nComparison: None.")]),
        ("Impression: Clear.", "findings", [("findings", "Impression: Clear.")]),
        (" \n", "findings", []),
    ],
)
def test_a_draft_is_cut_into_sections_only_where_no_word_is_lost(
    text: str, target: str, sections: list[tuple[str, str]]
) -> None:
    assert [(section.kind, section.text) for section in sections_of(text, target)] == sections


def test_control_characters_go_and_lines_stay() -> None:
    assert writable(" a\x00b\x1bc\nd\te\x9f \ud800") == "abc\nd\te"
