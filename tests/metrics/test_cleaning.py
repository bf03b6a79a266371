"""The papers' text rules, with the oddities that are in their published numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radweave.metrics.protocols import clean, ptb_like_tokens, rouge_score_tokens, tokens_13a


@pytest.mark.parametrize("cleaner", ["r2gen_iu", "r2gen_mimic"])
def test_r2gen_cleaners(cleaner: str) -> None:
    assert clean("Heart size (mild) normal. Lungs: clear, follow-up!", cleaner) == (
        "heart size mild normal . lungs clear follow-up ."
    )
    # "1. " goes wherever it stands, so a vertebra loses its number's full stop and its last digit.
    assert clean("Fracture of T11. Stable.", cleaner) == "fracture of t1stable ."
    assert clean("1. No edema. 2. No effusion.", cleaner) == "no edema . no effusion ."
    # An empty report is not empty afterwards.
    assert clean("", cleaner) == " ."


def test_underscores_are_squeezed_for_mimic_only_then_dropped() -> None:
    # The mark goes after the blanks at a sentence's ends went, so a blank stays where it stood.
    assert clean("Clear. ____ called", "r2gen_mimic") == "clear .  called ."
    assert clean("a  b", "r2gen_mimic") == "a b ."
    assert clean("a  b", "r2gen_iu") == "a  b ."


def test_r2gengpt_keeps_the_colon_that_r2gen_deletes() -> None:
    text = "Impression: size < 3 cm"
    assert clean(text, "r2gengpt_mimic") == "impression : size < 3 cm ."
    assert clean(text, "r2gen_mimic") == "impression size  3 cm ."
    assert clean("lungs clear</s> <unk> junk", "r2gengpt_output") == "lungs clear"


def test_unknown_word_mark_survives_a_cleaner_that_deletes_its_brackets() -> None:
    assert clean("The <unk> is normal.", "r2gen_iu") == "the <unk> is normal ."


def test_outputs_rules() -> None:
    assert clean("lungs clear. no edema.", "promptmrg_output") == "lungs clear . no edema . "
    assert clean("a - b", "promptmrg_output") == "a-b "
    assert clean("Lungs\nclear . No edema .", "vlm3d_reference") == "Lungsclear.No edema."
    assert clean('"Lungs_ clear . <|eot_id|>', "vlm3d_output") == "Lungs clear."
    assert clean("Clear.  Normal.", "dots") == "Clear . Normal ."
    assert clean("The region 3 is lung: Clear. The region 4 is heart: Big.", "region_prefix") == "Clear. Big."


def test_ptb_like_tokens() -> None:
    expected = "heart size 3.5 cm is n't the patient 's it can not be 1/2 follow-up p.m 5mm x 3 %"
    text = "Heart size (3.5 cm) isn't the patient's; it cannot be 1/2 follow-up, p.m. 5mm x 3%."
    assert " ".join(ptb_like_tokens(text)) == expected
    assert ptb_like_tokens("clear.No effusion...\n\n[ok]") == ["clear", "no", "effusion", "ok"]
    assert ptb_like_tokens("心影正常") == ["心", "影", "正", "常"]
    assert ptb_like_tokens("Überblähung der Lunge") == ["überblähung", "der", "lunge"]


def test_13a_and_rouge_score_tokens() -> None:
    assert tokens_13a("Size 3.5 cm, (left). &quot;A-B&quot; 5-6") == (
        ["Size", "3.5", "cm", ",", "(", "left", ")", ".", '"', "A-B", '"', "5", "-", "6"]
    )
    assert rouge_score_tokens("No 3.5-cm Nodule; ä") == ["no", "3", "5", "cm", "nodule"]


@given(st.text(max_size=60))
def test_no_text_breaks_a_rule(text: str) -> None:
    for cleaner in ("none", "lower", "dots", "r2gen_iu", "r2gen_mimic", "r2gengpt_mimic", "promptmrg_output"):
        assert isinstance(clean(text, cleaner), str)
    assert all(token and not token.isspace() for token in ptb_like_tokens(text))
    assert all(tokens_13a(text))
