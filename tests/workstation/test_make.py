"""From a draft to the record: sections lose no word."""

from __future__ import annotations

import pytest

from radweave.workstation.draft_report import sections_of

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
def test_a_draft_is_split_into_sections_without_losing_words(
    text: str, target: str, sections: list[tuple[str, str]]
) -> None:
    assert [(section.kind, section.text) for section in sections_of(text, target)] == sections
