"""Sections are found by headings, whatever their place and case; the text stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radweave.data.targets import Sections, has_headings, parse_sections

FULL = """                                 FINAL REPORT
 EXAMINATION:  CHEST (PA AND LAT)

 INDICATION:  ___ year old woman with cough  // pneumonia?

 TECHNIQUE:  Two views.

 COMPARISON:  ___.

 FINDINGS:

 The lungs are clear.
 Heart size is normal.

 IMPRESSION:

 No acute process.
"""


def test_all_sections_of_a_full_report() -> None:
    assert parse_sections(FULL) == Sections(
        findings="The lungs are clear. Heart size is normal.",
        impression="No acute process.",
        indication="___ year old woman with cough // pneumonia?",
        comparison="___.",
        technique="Two views.",
    )


def test_a_preliminary_reading_before_the_final_report_is_dropped() -> None:
    text = "WET READ: Large effusion.\nIMPRESSION: Wet.\n________\n" + FULL
    assert parse_sections(text) == parse_sections(FULL)
    assert parse_sections("IMPRESSION: Wet.\nFINAL REPORT\nFINDINGS: Clear.") == Sections(findings="Clear.")


def test_text_under_a_heading_that_names_the_images_is_findings() -> None:
    text = "HISTORY: Cough.\n\nPORTABLE AP CHEST RADIOGRAPH: Low volumes.\nNo effusion.\n\nIMPRESSION: Low volumes."
    sections = parse_sections(text)
    assert (sections.findings, sections.impression) == ("Low volumes. No effusion.", "Low volumes.")
    assert sections.indication == "Cough."


def test_an_untitled_paragraph_after_the_comparison_is_findings() -> None:
    text = (
        "INDICATION: Fever.\n\nCOMPARISON: None.\n\n The lungs are clear.\n\n Heart is normal.\n\nIMPRESSION: Normal."
    )
    sections = parse_sections(text)
    assert sections.comparison == "None."
    assert sections.findings == "The lungs are clear. Heart is normal."


def test_titled_findings_go_before_what_stands_untitled() -> None:
    text = "COMPARISON: None.\n\nDictated at noon.\n\nFINDINGS: Clear.\n\nIMPRESSION: Normal."
    assert parse_sections(text).findings == "Clear."


def test_headings_on_one_line() -> None:
    text = "Indication: Pain. Findings: The lungs are clear. No effusion. Impression: Normal chest."
    assert parse_sections(text) == Sections("The lungs are clear. No effusion.", "Normal chest.", "Pain.")
    assert has_headings(text)


@pytest.mark.parametrize(
    "text", ["The lungs are clear.", "", "Note the findings: none are acute", "ratio 2:1 in the summary of findings"]
)
def test_text_without_headings_has_no_sections(text: str) -> None:
    assert parse_sections(text) == Sections()
    assert not has_headings(text)


@pytest.mark.parametrize("name", ["findings", "impression", "indication", "comparison", "technique"])
def test_the_last_of_two_sections_with_text_counts_and_an_addendum_is_ignored(name: str) -> None:
    heading = name.upper()
    first, second, empty = f"{heading}: First.\n", f"{heading}: Second.\n", f"{heading}:\n"
    after = "NOTE: Seen.\nADDENDUM: Called at noon."
    assert getattr(parse_sections(first + second + after), name) == "Second."
    assert getattr(parse_sections(first + empty + after), name) == "First."


def test_findings_and_impression_in_one_count_as_findings() -> None:
    sections = parse_sections("FINDINGS AND IMPRESSION:\n Clear lungs.\n")
    assert sections == Sections(findings="Clear lungs.")


def test_drawn_rules_go_and_deidentified_words_stay() -> None:
    assert parse_sections("FINDINGS: Seen by Dr. ___.\n______________\n").findings == "Seen by Dr. ___."


@given(st.text(max_size=400))
def test_any_text_is_taken(text: str) -> None:
    sections = parse_sections(text)
    for name in ("findings", "impression", "indication", "comparison", "technique"):
        value = getattr(sections, name)
        assert value is None or value.strip() == value != ""
