"""What a model is told of a study: in a fixed order, without names, dates and marks, and never what it is to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.study import LONGEST_TEXT, Study
from radweave.data.targets import Telling, refuse_own_words
from radweave.methods.experiment import DataConfig

STUDY = Study(
    study_id="s1",
    patient_id="p77",
    findings="Clear.",
    impression="Normal.",
    indication="XXXX-year-old, fall on 5/17/2024, patient p77, sent by Dr. Jane Doe, MRN 1234567",
    technique="PA  and\nlateral.",
)


def test_sections_stand_in_the_order_asked_for_without_what_names_the_patient() -> None:
    text = Telling(("technique", "indication")).of(STUDY)
    assert text == "Technique: PA and lateral.\nIndication: year-old, fall on, patient, sent by, MRN\n"
    for named in ("p77", "Jane", "Doe", "2024", "1234567", "XXXX", "___"):
        assert named not in text


def test_a_study_without_the_section_is_told_nothing_and_a_run_without_sections_never_asks() -> None:
    bare = STUDY.model_copy(update={"indication": None})
    assert Telling(("indication",)).of(bare) == ""
    assert Telling(("indication",)).of(STUDY.model_copy(update={"indication": " XXXX. "})) == ""
    assert Telling().of(STUDY) is None
    assert Telling().asked({"indication": "Cough."}, "study", []) is None
    assert Telling(("indication",)).asked({"technique": "PA."}, "study", []) == ""


def test_one_that_is_asked_for_by_itself_is_told_the_same() -> None:
    given = {"indication": "Cough.", "technique": None}
    assert Telling(("indication", "technique")).asked(given, "study", []) == "Indication: Cough.\n"


@pytest.mark.parametrize("given", [7, ["Cough."], "x" * (LONGEST_TEXT + 1)])
def test_a_section_that_is_no_text_is_refused(given: object) -> None:
    with pytest.raises(InputError, match="field 'indication': not a section"):
        Telling(("indication",)).asked({"indication": given}, "study", [])  # type: ignore[dict-item]


@pytest.mark.parametrize("target", ["findings", "findings+impression", "both"])
def test_findings_are_told_for_an_impression_alone(target: str) -> None:
    refuse_own_words(("findings",), "impression")
    refuse_own_words(("indication", "technique"), target)
    with pytest.raises(InputError, match=r"input_sections.*told and written"):
        refuse_own_words(("findings",), target)
    with pytest.raises(ValueError, match="told and written"):
        DataConfig(target=target, input_sections=("findings",))  # type: ignore[arg-type]
    assert DataConfig(target="impression", input_sections=("findings",)).input_tokens


def test_an_impression_is_never_told_and_no_section_twice() -> None:
    with pytest.raises(ValueError, match="input_sections"):
        DataConfig(input_sections=("impression",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="twice"):
        DataConfig(input_sections=("indication", "indication"))


def test_a_name_in_the_header_of_the_image_is_taken_out(tmp_path: Path) -> None:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header = FileDataset(str(tmp_path / "a.dcm"), {}, file_meta=meta, preamble=b"\0" * 128)
    header.PatientName = "Quarnwick^Ann"
    header.save_as(tmp_path / "a.dcm")
    told = Telling(("indication",)).asked({"indication": "Quarnwick has a cough."}, "study", [tmp_path / "a.dcm"])
    assert told == "Indication: has a cough.\n"
