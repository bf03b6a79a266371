"""Cleanings do exactly what their published counterparts do, quirks included."""

from __future__ import annotations

import pytest

from radweave.core.errors import InputError
from radweave.data.targets import (
    CLEANINGS,
    clean_r2gen_iu,
    clean_r2gen_mimic,
    clean_r2gengpt_mimic,
    cleaner,
    drop_deid_marks,
    drop_deid_sentences,
    drop_prior_comparison,
    split_sentences,
)


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("Heart is normal. Lungs are clear.", "heart is normal . lungs are clear ."),
        # The first number goes, the others end the sentence before them.
        ("1. Clear lungs. 2. No effusion.", "clear lungs . no effusion ."),
        ("Clear 2. None", "clear . none ."),
        # "1. " is deleted anywhere, also at the end of T11.
        ("Fracture of T11. Stable.", "fracture of t1stable ."),
        # From ":" to "[" everything goes, hyphens stay.
        ("Size: 3 < 4 [mm] = x-ray @ a/b?", "size 3  4 mm  x-ray  ab ."),
        # An empty report and empty sentences are kept.
        ("", " ."),
        ("A. . B.", "a .  . b ."),
        # Three halvings: eight dots become one, nine leave two, whose blank ends a sentence.
        ("a........ b", "a . b ."),
        # Characters inside a sentence go after it was stripped, so the blank before them stays.
        ("Opacity (old ) here )", "opacity old  here  ."),
        ('It\'s 100% "clear"', "its 100 clear ."),
    ],
)
def test_r2gen_iu_rule(raw: str, cleaned: str) -> None:
    assert clean_r2gen_iu(raw) == cleaned


def test_mimic_rule_also_shrinks_underscores_blanks_and_line_breaks() -> None:
    raw = "Comparison: ____ .\n\n  Heart   size is\nnormal."
    assert clean_r2gen_mimic(raw) == "comparison  . heart size is normal ."
    # The IU rule knows neither line breaks nor runs of blanks.
    assert "\n" in clean_r2gen_iu(raw)


def test_r2gengpt_keeps_the_colon_that_r2gen_deletes() -> None:
    raw = "Lungs: clear. Angle > 5."
    assert clean_r2gen_mimic(raw) == "lungs clear . angle  5 ."
    assert clean_r2gengpt_mimic(raw) == "lungs : clear . angle > 5 ."


def test_deid_marks_go_alone_or_with_their_sentence() -> None:
    raw = "There are no XXXX of a pleural effusion. Lungs are clear. Seen by ___ ."
    assert drop_deid_marks(raw) == "There are no of a pleural effusion. Lungs are clear. Seen by."
    assert drop_deid_sentences(raw) == "Lungs are clear."


@pytest.mark.parametrize(
    "sentence",
    [
        "No change compared to the prior study.",
        "The effusion is unchanged.",
        "Interval removal of the tube.",
        "Opacity has markedly improved.",
        "Scarring is again seen at the base.",
    ],
)
def test_sentences_about_an_earlier_examination_are_dropped(sentence: str) -> None:
    assert drop_prior_comparison(f"The heart is large. {sentence} No effusion.") == "The heart is large. No effusion."


@pytest.mark.parametrize(
    "sentence", ["Right lung is clear.", "No pneumothorax.", "Prior sternotomy wires.", "Stable bony thorax."]
)
def test_sentences_about_this_examination_stay(sentence: str) -> None:
    assert drop_prior_comparison(sentence) == sentence


def test_list_numbers_do_not_end_sentences() -> None:
    assert split_sentences("1. Clear lungs.  2. No\neffusion. Size 2.5 cm.") == [
        "1. Clear lungs.",
        "2. No effusion.",
        "Size 2.5 cm.",
    ]
    assert split_sentences("  ") == []


def test_steps_apply_from_left_to_right() -> None:
    assert cleaner("drop_deid_sentences+r2gen_iu")("No XXXX. Clear.") == "clear ."
    assert cleaner("none")("As it was.") == "As it was."


def test_an_unknown_step_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="r2gen_iu"):
        cleaner("r2gen_uk")


@pytest.mark.parametrize("name", list(CLEANINGS))
def test_every_step_takes_the_empty_text_and_odd_characters(name: str) -> None:
    clean = cleaner(name)
    assert clean("").strip() in ("", ".")
    assert isinstance(clean("\x00\u2028\u202eabc <b>\r\n" * 50), str)


def test_the_steps_of_a_name_run_from_left_to_right() -> None:
    text = "1.\nClear lungs."
    assert cleaner("squeeze_blanks+r2gen_iu")(text) == "clear lungs ."
    assert cleaner("r2gen_iu+squeeze_blanks")(text) == "1 clear lungs ."
