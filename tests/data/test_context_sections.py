"""Context sections: in a fixed order, without names, dates and marks, and never the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.study import LONGEST_TEXT, Study
from radweave.data.targets import ContextSections, refuse_target_in_context
from radweave.methods.experiment import DataConfig

STUDY = Study(
    study_id="s1",
    patient_id="p77",
    findings="Clear.",
    impression="Normal.",
    indication="XXXX-year-old, fall on 5/17/2024, patient p77, sent by Dr. Jane Doe, MRN 1234567",
    technique="PA  and\nlateral.",
)


def test_context_has_the_configured_order_and_no_identifiers() -> None:
    text = ContextSections(("technique", "indication")).of(STUDY)
    assert text == "Technique: PA and lateral.\nIndication: year-old, fall on, patient, sent by, MRN\n"
    for named in ("p77", "Jane", "Doe", "2024", "1234567", "XXXX", "___"):
        assert named not in text


def test_a_missing_section_gives_an_empty_context_and_no_sections_give_none() -> None:
    bare = STUDY.model_copy(update={"indication": None})
    assert ContextSections(("indication",)).of(bare) == ""
    assert ContextSections(("indication",)).of(STUDY.model_copy(update={"indication": " XXXX. "})) == ""
    assert ContextSections().of(STUDY) is None
    assert ContextSections().of_texts({"indication": "Cough."}, "study", []) is None
    assert ContextSections(("indication",)).of_texts({"technique": "PA."}, "study", []) == ""


def test_a_single_study_gets_the_same_context() -> None:
    texts = {"indication": "Cough.", "technique": None}
    assert ContextSections(("indication", "technique")).of_texts(texts, "study", []) == "Indication: Cough.\n"


@pytest.mark.parametrize("text", [7, ["Cough."], "x" * (LONGEST_TEXT + 1)])
def test_a_section_that_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="field 'indication': not a section"):
        ContextSections(("indication",)).of_texts({"indication": text}, "study", [])  # type: ignore[dict-item]


@pytest.mark.parametrize("target", ["findings", "findings+impression", "both"])
def test_findings_are_context_for_an_impression_only(target: str) -> None:
    refuse_target_in_context(("findings",), "impression")
    refuse_target_in_context(("indication", "technique"), target)
    with pytest.raises(InputError, match=r"input_sections.*both context and target"):
        refuse_target_in_context(("findings",), target)
    with pytest.raises(ValueError, match="both context and target"):
        DataConfig(target=target, input_sections=("findings",))  # type: ignore[arg-type]
    assert DataConfig(target="impression", input_sections=("findings",)).input_tokens


def test_an_impression_is_never_context_and_no_section_comes_twice() -> None:
    with pytest.raises(ValueError, match="input_sections"):
        DataConfig(input_sections=("impression",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="twice"):
        DataConfig(input_sections=("indication", "indication"))


def test_a_name_in_an_image_header_is_removed_from_the_context(tmp_path: Path) -> None:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header = FileDataset(str(tmp_path / "a.dcm"), {}, file_meta=meta, preamble=b"\0" * 128)
    header.PatientName = "Quarnwick^Ann"
    header.save_as(tmp_path / "a.dcm")
    context = ContextSections(("indication",)).of_texts(
        {"indication": "Quarnwick has a cough."}, "study", [tmp_path / "a.dcm"]
    )
    assert context == "Indication: has a cough.\n"
