"""What must hold for any report: denial adds nothing, layout is no meaning, evidence lies in the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radweave.core.study import LabelState
from radweave.labels import NO_FINDING, get_labeler

ONTOLOGIES = ("chexpert14", "ct18", "nih14")
FINDINGS = (
    "pleural effusion",
    "pneumothorax",
    "focal consolidation",
    "atelectasis",
    "pulmonary edema",
    "lung nodule",
    "rib fracture",
    "emphysema",
    "hiatal hernia",
    "coronary artery calcification",
    "ground-glass opacity",
    "cardiomegaly",
    "bronchiectasis",
    "lymphadenopathy",
)
FRAMES = (
    "There is {}.",
    "Small {} on the left.",
    "No {}.",
    "No evidence of {}.",
    "Possible {}.",
    "{} was not observed.",
    "{} cannot be excluded.",
    "The heart is normal, {} in the right base.",
    "Stable {}, unchanged from XXXX.",
    "Heart size is normal. {}.",
)
DENIALS = (
    "No {}.",
    "Without {}.",
    "{} is not seen.",
    "There is no evidence of {} or {}.",
    "Negative for {}, {}, or {}.",
)

findings = st.sampled_from(FINDINGS)
sentences = st.builds(lambda frame, finding: frame.format(finding), st.sampled_from(FRAMES), findings)
reports = st.lists(sentences, max_size=5).map(" ".join)
denials = st.builds(
    lambda frame, first, second, third: frame.format(first, second, third),
    st.sampled_from(DENIALS),
    findings,
    findings,
    findings,
)


def states(text: str, ontology: str) -> dict[str, LabelState]:
    return {name: mention.state for name, mention in get_labeler(ontology).label([text])[0].items()}


@pytest.mark.parametrize("ontology", ONTOLOGIES)
@given(report=reports, denial=denials, first=st.booleans())
def test_a_denial_makes_no_class_positive(ontology: str, report: str, denial: str, first: bool) -> None:
    before = states(report, ontology)
    after = states(f"{denial} {report}" if first else f"{report} {denial}", ontology)
    risen = [name for name in after if after[name] is LabelState.POSITIVE and before[name] is not LabelState.POSITIVE]
    assert risen == []


@pytest.mark.parametrize("ontology", ONTOLOGIES)
@given(report=reports, seed=st.randoms(use_true_random=False))
def test_case_and_white_space_are_no_meaning(ontology: str, report: str, seed: object) -> None:
    spaced = re.sub(" ", lambda _: seed.choice([" ", "  ", "\n", "\t", " \r\n"]), report)  # type: ignore[attr-defined]
    assert states(spaced, ontology) == states(report, ontology)
    assert states(report.upper(), ontology) == states(report, ontology)
    assert states(report.swapcase(), ontology) == states(report, ontology)


@pytest.mark.parametrize("ontology", ONTOLOGIES)
@given(text=st.one_of(reports, st.text(max_size=200), st.lists(st.one_of(sentences, st.text(max_size=9))).map("".join)))
def test_evidence_lies_inside_the_text(ontology: str, text: str) -> None:
    for name, mention in get_labeler(ontology).label([text])[0].items():
        if mention.span is None:
            assert mention.state is LabelState.BLANK or name == NO_FINDING
        else:
            assert 0 <= mention.span[0] < mention.span[1] <= len(text)
            assert mention.state is not LabelState.BLANK


@pytest.mark.parametrize("ontology", ONTOLOGIES)
@given(texts=st.lists(reports, max_size=4))
def test_labels_do_not_depend_on_batch_mates(ontology: str, texts: list[str]) -> None:
    labeler = get_labeler(ontology)
    together = labeler.label(texts)
    assert together == [labeler.label([text])[0] for text in texts]
    assert together == labeler.label(list(reversed(texts)))[::-1]


@pytest.mark.parametrize(("ontology", "word"), [("chexpert14", "which"), ("ct18", "or")])
def test_a_hundred_thousand_words_without_a_full_stop(ontology: str, word: str) -> None:
    """Work that grew with the square of the length would take hours here."""
    labels = get_labeler(ontology).label([f"{word} effusion and " * 33_000])[0]
    assert labels["Pleural Effusion" if ontology == "chexpert14" else "Pleural effusion"].state is not LabelState.BLANK


def test_offsets_survive_letters_that_change_length_in_lower_case() -> None:
    text = "İİİ Right effusion."
    span = get_labeler("chexpert14").label([text])[0]["Pleural Effusion"].span
    assert span is not None
    assert text[slice(*span)] == "effusion"
