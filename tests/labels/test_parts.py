"""The parts of the rule-based labeler: sentences with offsets, the phrase language, lexicons that compile."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radweave.core.errors import InputError
from radweave.core.ontology import LABEL_SETS, LabelSet
from radweave.labels import CLASSES, LABELER_OF, NO_FINDING, get_labeler, label_set_of
from radweave.labels.phrases import Lexicon, Match, PhraseBook, load_lexicon, longest, phrase_pattern
from radweave.labels.text import MAX_SENTENCE_CHARS, fold, sentences, spoken_ranges, tokenize


def result(phrase: str, text: str) -> list[tuple[int, int]]:
    book = PhraseBook([(phrase, "it")])
    return [(match.first, match.last) for match in book.matches(tokenize(fold(text)))]


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        ("pleural effusion*", "small pleural effusions", [(1, 2)]),
        ("effusion*", "effusion and effusions", [(0, 0), (2, 2)]),
        ("*pleura*", "the subpleural nodule", [(1, 1)]),
        ("widen*|enlarg* .. aorta", "widening of the aorta", [(0, 3)]),
        ("widen* .. aorta", "widening of the whole thoracic descending aorta", []),
        ("widen* ... aorta", "widening of the whole thoracic descending aorta", [(0, 6)]),
        ("widen* ... aorta", "widening, normal aorta", []),
        ("not very? large", "not very large, not large", [(0, 2), (4, 5)]),
        (": no END", "effusion: no", [(1, 2)]),
        (": no END", "effusion: no change", []),
        ("?", "effusion?", [(1, 1)]),
        ("lead", "leads", []),
    ],
)
def test_phrases(phrase: str, text: str, expected: list[tuple[int, int]]) -> None:
    assert result(phrase, text) == expected


@pytest.mark.parametrize("phrase", ["", "..", ".. a", "a ..", "very? large", "... b"])
def test_a_phrase_needs_a_first_and_a_last_word(phrase: str) -> None:
    with pytest.raises(ValueError, match="begins and ends with a word"):
        phrase_pattern(phrase)


def test_the_longest_of_overlapping_matches_stays() -> None:
    matches = [Match(0, 0, "a"), Match(0, 2, "b"), Match(2, 3, "c"), Match(3, 3, "d")]
    assert longest(matches) == [Match(0, 2, "b"), Match(3, 3, "d")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two", ["one", " two"]),
        ("A nodule of 1.3 cm. Next", ["a nodule of 1.3 cm", " next"]),
        ("effusion vs. thickening", ["effusion vs. thickening"]),
        ("signs, e.g. blunting", ["signs, e.g. blunting"]),
        ("clear.The heart", ["clear", "the heart"]),
        ("edema? Effusion", ["edema?", " effusion"]),
        ("(edema?) seen", ["(edema?) seen"]),
        ("a line\nbreak", ["a line\nbreak"]),
        ("a\n\nb", ["a", "b"]),
        ("a; b", ["a", " b"]),
    ],
)
def test_sentence_borders(text: str, expected: list[str]) -> None:
    assert [sentence for _, sentence in sentences(fold(text)) if sentence.strip()] == expected


@given(st.text(max_size=400))
def test_sentences_are_slices_in_order(text: str) -> None:
    folded = fold(text)
    assert len(folded) == len(text)
    end = 0
    for offset, sentence in sentences(folded):
        assert offset >= end
        assert folded[offset : offset + len(sentence)] == sentence
        assert len(sentence) <= MAX_SENTENCE_CHARS
        end = offset + len(sentence)


@given(st.text(max_size=200))
def test_tokens_know_their_place(text: str) -> None:
    sentence = tokenize(fold(text))
    for index, token in enumerate(sentence.tokens):
        assert sentence.words[sentence.at[index] :].startswith(f"{token} ")
        assert sentence.token_at(sentence.at[index]) == index
        assert sentence.starts[index] < sentence.ends[index] <= len(text)


def test_silent_sections_end_at_the_next_spoken_one() -> None:
    text = fold("History: cough. Comparison: none. Findings: clear. Impression: normal.")
    spoken = "".join(text[first:last] for first, last in spoken_ranges(text))
    assert spoken == "findings: clear. impression: normal."


@pytest.mark.parametrize("lexicon", map(load_lexicon, LABEL_SETS))
def test_lexicons_cover_their_classes(lexicon: Lexicon) -> None:
    assert lexicon.classes == CLASSES[lexicon.name]
    assert set(lexicon.terms) == set(lexicon.classes) - {NO_FINDING}
    for terms in lexicon.terms.values():
        assert terms.findings or terms.structures


@pytest.mark.parametrize("label_set", LABEL_SETS.values(), ids=list(LABEL_SETS))
def test_every_label_set_has_its_labelers(label_set: LabelSet) -> None:
    labeler = get_labeler(label_set.name)
    assert (labeler.name, labeler.classes) == (f"rule-based {label_set.name}", label_set.classes)
    if label_set.network is not None:
        assert label_set_of(label_set.network) is label_set
        assert import_module(f"radweave.labels.{label_set.network}").LABELER.classes == label_set.classes
        with pytest.raises(InputError, match="needs its weights"):
            get_labeler(label_set.network)


def test_reports_of_each_modality_have_a_label_set() -> None:
    assert LABELER_OF == {"xray": "chexpert14", "ct": "ct18"}
