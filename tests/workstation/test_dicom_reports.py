"""The DICOM objects of a report: what is in them, whose they are, and that the same report is the same instance."""

from __future__ import annotations

import io
import logging
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.sr._concepts_dict import concepts

from radweave.core.errors import InputError
from radweave.core.ontology import CLASSES
from radweave.core.study import LabelState
from radweave.workstation import structured_reports
from radweave.workstation.find_prior import parse_signed
from radweave.workstation.finished import CAUTION, Finding, FinishedReport, Model, Section, SectionKind
from radweave.workstation.formats import FORMATS
from radweave.workstation.structured_reports import PRIVATE_SCHEME, Code, code_of, free_code_of
from tests.image_files import CANARY
from tests.workstation.reports import (
    ADDED,
    BOX,
    FINDINGS,
    IMPRESSION,
    PLACE,
    SIGNED,
    STUDY,
    WRITTEN,
    added,
    finished,
    identity,
)

DICOM = [name for name, kind in FORMATS.items() if kind.suffix == ".dcm"]
SR = ["sr-basic", "sr-tid1500"]


def written(name: str, report: FinishedReport) -> Dataset:
    return dcmread(io.BytesIO(FORMATS[name].bytes_of(report)))


def texts(dataset: Dataset) -> list[str]:
    """All text of a tree, in order."""
    rows = [str(dataset.TextValue)] if "TextValue" in dataset else []
    return rows + [text for item in dataset.get("ContentSequence", ()) for text in texts(item)]


@pytest.mark.parametrize("name", DICOM)
def test_a_report_belongs_to_the_study_of_its_images(name: str) -> None:
    dataset, patient = written(name, finished()), identity()
    assert dataset.StudyInstanceUID == STUDY
    assert (dataset.PatientName, dataset.PatientID) == (patient.patient_name, patient.patient_id)
    assert (dataset.PatientBirthDate, dataset.PatientSex, dataset.PatientAge) == ("19010203", "F", "098Y")
    assert (dataset.StudyDate, dataset.StudyTime, dataset.StudyID) == ("19991231", "101112.5", "S1")
    assert (dataset.AccessionNumber, dataset.ReferringPhysicianName) == ("A1", "Ray^X")
    assert dataset.SeriesInstanceUID != patient.series_instance_uid


@pytest.mark.parametrize("name", DICOM)
def test_a_report_states_research_use_and_its_model(name: str) -> None:
    dataset = written(name, finished())
    assert dataset.SeriesDescription == CAUTION == "CAUTION: Not for Diagnostic Use, for research use only."
    assert name in ("map-dicom", "box-dicom") or dataset.VerificationFlag == "UNVERIFIED"
    (item,) = dataset.ContributingEquipmentSequence
    assert item.PurposeOfReferenceCodeSequence[0].CodeValue == "109102"
    assert (item.Manufacturer, item.ManufacturerModelName, item.SoftwareVersions) == ("Radweave", "baseline", "0.1.0")
    other = written(name, finished(model=Model("baseline", "tiny", "0.1.0", "cd" * 32)))
    assert item.DeviceUID != other.ContributingEquipmentSequence[0].DeviceUID


@pytest.mark.parametrize("name", SR)
def test_a_draft_is_preliminary_until_a_reader_signs_it(name: str) -> None:
    draft, signed = written(name, finished()), written(name, finished(signature=SIGNED))
    assert (draft.PreliminaryFlag, draft.CompletionFlag) == ("PRELIMINARY", "PARTIAL")
    assert "VerifyingObserverSequence" not in draft
    assert (signed.PreliminaryFlag, signed.CompletionFlag, signed.VerificationFlag) == ("FINAL", "COMPLETE", "VERIFIED")
    (observer,) = signed.VerifyingObserverSequence
    assert (observer.VerifyingObserverName, observer.VerifyingOrganization) == (SIGNED.name, SIGNED.organization)
    assert observer.VerificationDateTime == "20260305080910+0000"
    assert signed.SOPInstanceUID != draft.SOPInstanceUID
    assert any(text.startswith("Preliminary:") for text in texts(draft))
    assert not any("Preliminary" in text for text in texts(signed))


@pytest.mark.parametrize("name", SR)
def test_a_signed_report_names_its_draft_where_an_archive_has_it(name: str) -> None:
    draft, alone = written(name, finished()), written(name, finished(signature=SIGNED))
    signed = written(name, finished(signature=SIGNED, predecessor=finished()))
    (study,) = signed.PredecessorDocumentsSequence
    (series,) = study.ReferencedSeriesSequence
    (item,) = series.ReferencedSOPSequence
    assert study.StudyInstanceUID == STUDY
    assert series.SeriesInstanceUID == draft.SeriesInstanceUID == signed.SeriesInstanceUID
    assert (item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID) == (draft.SOPClassUID, draft.SOPInstanceUID)
    assert (draft.InstanceNumber, signed.InstanceNumber) == (1, 2), "viewers sort a series by it"
    assert not any("PredecessorDocumentsSequence" in one for one in (draft, alone))


def test_each_finding_names_the_images_it_is_about() -> None:
    def sources(dataset: Dataset) -> list[list[str]]:
        (measurements,) = [item for item in dataset.ContentSequence if _name(item) == "126010"]
        return [
            [str(item.ReferencedSOPSequence[0].ReferencedSOPInstanceUID) for item in group.ContentSequence
             if item.ValueType == "IMAGE"]
            for group in measurements.ContentSequence
        ]  # fmt: skip

    both = (identity(), identity(sop_instance_uid=f"{STUDY}.1.2"))
    assert sources(written("sr-tid1500", finished(sources=both, places=()))) == [[f"{STUDY}.1.1", f"{STUDY}.1.2"]] * 3
    scan = tuple(identity(sop_instance_uid=f"{STUDY}.1.{number}") for number in range(1, 20))
    assert sources(written("sr-tid1500", finished(sources=scan, places=()))) == [[]] * 3, (
        "of a scan the library names all"
    )


@pytest.mark.parametrize("name", SR)
def test_a_structured_report_begins_with_its_cautions(name: str) -> None:
    rows = texts(written(name, finished()))
    assert rows.index(FINDINGS) < rows.index(IMPRESSION)
    assert rows.index("Warning: UNTRAINED WEIGHTS: this text is noise") < rows.index(FINDINGS)
    assert 'To be looked at: "No pneumothorax." (contradicted)' in rows


@pytest.mark.parametrize("name", SR)
def test_a_structured_report_refers_to_every_image(name: str) -> None:
    sources = tuple(identity(sop_instance_uid=f"{STUDY}.{series}.{number}", series_instance_uid=f"{STUDY}.{series}")
                    for series in (1, 2) for number in range(10))  # fmt: skip
    (study,) = written(name, finished(sources=sources)).CurrentRequestedProcedureEvidenceSequence
    assert study.StudyInstanceUID == STUDY
    rows = {
        (series.SeriesInstanceUID, item.ReferencedSOPInstanceUID)
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }
    assert rows == {(source.series_instance_uid, source.sop_instance_uid) for source in sources}


def test_findings_are_codes_with_their_state_and_probability() -> None:
    dataset = written("sr-tid1500", finished(places=()))
    assert dataset.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    (measurements,) = [item for item in dataset.ContentSequence if _name(item) == "126010"]
    rows = []
    for group in measurements.ContentSequence:
        inside = {_name(item): item for item in group.ContentSequence}
        number = inside.get(structured_reports.PROBABILITY.value)
        rows.append(
            (
                inside["121071"].ConceptCodeSequence[0].CodeValue,
                inside[structured_reports.IN_THE_REPORT.value].ConceptCodeSequence[0].CodeMeaning,
                None if number is None else float(number.MeasuredValueSequence[0].NumericValue),
            )
        )
    unlisted = code_of("Enlarged Cardiomediastinum").value
    assert rows == [("287272002", "Present", 0.91), ("36118008", "Absent", 0.62), (unlisted, "Not mentioned", None)]


def _name(item: Dataset) -> str:
    return str(item.ConceptNameCodeSequence[0].CodeValue) if "ConceptNameCodeSequence" in item else ""


def test_no_two_sections_have_one_heading() -> None:
    kinds: tuple[SectionKind, ...] = get_args(SectionKind)
    sections = tuple(Section(kind, f"Words of {kind}.") for kind in kinds)
    for name in SR:
        dataset = written(name, finished(text=" ".join(one.text for one in sections), sections=sections))
        inside = [item for item in dataset.ContentSequence if item.ValueType == "CONTAINER"]
        headings = {
            str(inner.TextValue): (_name(item), _name(inner))
            for item in inside for inner in item.get("ContentSequence", ())
            if inner.ValueType == "TEXT" and str(inner.TextValue).startswith("Words of")
        }  # fmt: skip
        assert len(headings) == len(set(headings.values())) == 5


def test_items_are_shown_separately() -> None:
    def containers(item: Dataset) -> list[str]:
        own = [str(item.ContinuityOfContent)] if "ContinuityOfContent" in item else []
        return own + [word for inside in item.get("ContentSequence", ()) for word in containers(inside)]

    rows = containers(written("sr-tid1500", finished()))
    assert len(rows) > 5
    assert set(rows) == {"SEPARATE"}


def test_the_pdf_is_in_its_object_whole() -> None:
    dataset, page = written("pdf-dicom", finished()), FORMATS["pdf"].bytes_of(finished())
    assert dataset.MIMETypeOfEncapsulatedDocument == "application/pdf"
    assert dataset.EncapsulatedDocument[: dataset.EncapsulatedDocumentLength] == page
    assert dataset.BurnedInAnnotation == "YES"
    assert [item.ReferencedSOPInstanceUID for item in dataset.SourceInstanceSequence] == [f"{STUDY}.1.1"]


@pytest.mark.parametrize("name", DICOM)
def test_a_report_determines_its_instance(name: str) -> None:
    first = written(name, finished())
    assert FORMATS[name].bytes_of(finished()) == FORMATS[name].bytes_of(finished())
    changed: list[dict[str, Any]] = [
        {"text": "Clear lungs."},
        {"model": Model("baseline", "tiny", "0.1.0", "cd" * 32)},
        {"model": Model("baseline", "tiny", "0.2.0", "ab" * 32)},
        {"sources": (identity(sop_instance_uid=f"{STUDY}.1.2"),)},
        {"sources": (identity(study_instance_uid=f"{STUDY}.9"),)},
        {"signature": SIGNED},
        # What an archive has of one UID may never be two things: what is said beside the text counts too.
        {"sources": (identity(patient_id="CORRECTED"),)},
        {"warnings": ()},
        {"findings": (replace(finished().findings[0], probability=0.5), *finished().findings[1:])},
        {"flagged": ()},
        {"sections": (Section("impression", finished().text),)},
        {"places": (replace(PLACE, probability=None),)},
        {"places": (replace(PLACE, too_large=1),)},
        {"places": (replace(PLACE, boxes=(replace(BOX, box=(0.5, 0.25, 0.75, 0.625)),)),)},
    ]
    later = written(name, finished(written=WRITTEN.replace(year=2027)))
    assert (later.SOPInstanceUID, later.SeriesInstanceUID) == (first.SOPInstanceUID, first.SeriesInstanceUID)
    near = (replace(finished().findings[0], probability=0.91000001), *finished().findings[1:])
    assert written(name, finished(findings=near)).SOPInstanceUID == first.SOPInstanceUID, "four places are written"
    uids = {first.SOPInstanceUID, *(written(name, finished(**change)).SOPInstanceUID for change in changed)}
    assert len(uids) == 1 + len(changed)
    assert all(len(uid) <= 64 and uid.startswith("2.25.") for uid in uids)


def test_objects_of_one_report_are_different_instances_in_different_series() -> None:
    made = [written(name, finished()) for name in DICOM]
    for keyword in ("SOPInstanceUID", "SeriesInstanceUID", "SeriesNumber"):
        assert len({str(dataset[keyword].value) for dataset in made}) == len(made)


@pytest.mark.parametrize("name", DICOM)
@pytest.mark.parametrize("patient", ["Müller^Jörg", "Yamada^Tarou=山田^太郎=やまだ^たろう"])
def test_names_of_every_script_come_back(name: str, patient: str) -> None:
    dataset = written(name, finished(sources=(identity(patient_name=patient),)))
    assert dataset.SpecificCharacterSet == "ISO_IR 192"
    assert str(dataset.PatientName) == patient
    assert "SpecificCharacterSet" not in written(name, finished())


@pytest.mark.parametrize("name", DICOM)
@pytest.mark.parametrize("field", ["study_instance_uid", "sop_instance_uid", "series_instance_uid", "sop_class_uid"])
def test_an_image_that_cannot_be_referred_to_is_refused(name: str, field: str) -> None:
    with pytest.raises(InputError, match="is missing in an image") as caught:
        FORMATS[name].bytes_of(finished(sources=(identity(**{field: ""}),)))
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("name", DICOM)
def test_no_library_logs_the_patient(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    FORMATS[name].bytes_of(finished(sources=(identity(patient_name=CANARY),)))
    assert CANARY not in caplog.text


def test_every_code_that_is_not_private_is_in_the_standard() -> None:
    used = [value for value in vars(structured_reports).values() if isinstance(value, Code)]
    used += [
        *structured_reports.PRESENCE.values(),
        *structured_reports._STANDARD.values(),
        *map(structured_reports.modality, structured_reports._MODALITIES),
    ]
    listed = {(scheme, code) for scheme, words in concepts.items() for rows in words.values() for code in rows}
    foreign = {(code.scheme, code.value) for code in used if code.scheme not in (PRIVATE_SCHEME, "RFC5646")}
    # The text of PS3.16 has it in TID 1500; pydicom's dictionary does not hold it.
    assert foreign - listed <= {("UMLS", "C0034375")}
    assert len(foreign) > 30


def test_every_class_of_every_label_set_has_a_code_of_its_own() -> None:
    for names in CLASSES.values():
        for give in (code_of, free_code_of):
            rows = [give(name) for name in names]
            assert len({code.value for code in rows}) == len(names)
            assert all(len(code.value) <= 16 and len(code.meaning) <= 64 for code in rows)
        assert all(free_code_of(name).scheme != "SCT" for name in names)


def test_a_report_about_fifty_classes_and_a_very_long_text_is_written() -> None:
    long = "The lungs are clear. " * 2000
    rows = tuple(Finding(f"Class {number}", 0.5, 0.5, LabelState.UNCERTAIN) for number in range(50))
    report = finished(text=long, sections=(type(finished().sections[0])("findings", long.strip()),), findings=rows)
    for name in DICOM:
        assert written(name, report).StudyInstanceUID == STUDY


@pytest.mark.parametrize("name", SR)
def test_an_addendum_follows_the_report_that_an_archive_has(name: str) -> None:
    signed = finished(signature=SIGNED)
    first = added(1, predecessor=signed)
    documents = [written(name, one) for one in (signed, first, added(2, predecessor=first))]
    for number, (before, after) in enumerate(pairwise(documents), start=1):
        (item,) = after.PredecessorDocumentsSequence[0].ReferencedSeriesSequence[0].ReferencedSOPSequence
        assert item.ReferencedSOPInstanceUID == before.SOPInstanceUID != after.SOPInstanceUID
        assert (after.PreliminaryFlag, after.CompletionFlag, after.VerificationFlag) == (
            "FINAL",
            "COMPLETE",
            "VERIFIED",
        )
        assert after.InstanceNumber == 2 + number, "viewers sort a series by it"
        assert after.SeriesInstanceUID == before.SeriesInstanceUID
        assert f"{after.ContentDate}{after.ContentTime}" > f"{before.ContentDate}{before.ContentTime}"
        rows = texts(after)
        assert set(texts(before)) - set(rows) == {texts(before)[texts(before).index(_status(texts(before)))]}
        assert rows.index(FINDINGS) < rows.index(ADDED[number - 1].text)
        assert f"With {number} addend" in _status(rows)
        observers = [str(one.VerifyingObserverName) for one in after.VerifyingObserverSequence]
        assert observers == [one.name for one in reversed((SIGNED, *(one.signature for one in ADDED[:number])))]


def _status(rows: list[str]) -> str:
    return next(text for text in rows if text.startswith("Signed by"))


def test_a_report_without_an_addendum_keeps_its_instance() -> None:
    """An archive that has one, and gets it again after an update of the software, keeps one."""
    plain = finished(places=())
    reports = (plain, replace(plain, signature=SIGNED), replace(plain, signature=SIGNED, predecessor=plain))
    assert [str(written("sr-basic", one).SOPInstanceUID) for one in reports] == [
        "2.25.202285656052349268030837319391776114804",
        "2.25.197460322295847403540734876967713930471",
        "2.25.76643778091139767952933555236471627757",
    ]


@pytest.mark.parametrize("name", [*SR, "pdf-dicom"])
def test_the_notice_of_a_rejected_draft_follows_it_without_its_text(name: str) -> None:
    text = "The draft of this study was rejected by a reader and is no report. Reason: no chest"
    notice = finished(
        text=text, sections=(Section("impression", text),), findings=(), flagged=(), maps=(), rejected=SIGNED,
        predecessor=finished(),
    )  # fmt: skip
    dataset, draft = written(name, notice), written(name, finished())
    assert (dataset.VerificationFlag, dataset.InstanceNumber) == ("UNVERIFIED", 2)
    assert dataset.SeriesInstanceUID == draft.SeriesInstanceUID
    assert dataset.SOPInstanceUID != draft.SOPInstanceUID
    if name == "pdf-dicom":
        assert dataset.DocumentTitle == "Chest imaging, notice of a rejected draft"
        return
    assert (dataset.PreliminaryFlag, "VerifyingObserverSequence" in dataset) == ("PRELIMINARY", False)
    (item,) = dataset.PredecessorDocumentsSequence[0].ReferencedSeriesSequence[0].ReferencedSOPSequence
    assert (item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID) == (draft.SOPClassUID, draft.SOPInstanceUID)
    assert any(rows.startswith("Rejected by Dr. Jana Weber") for rows in texts(dataset))
    assert FINDINGS not in str(dataset)


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dicom3tools is not installed")
@pytest.mark.parametrize("name", [*SR, "pdf-dicom"])
def test_a_validator_finds_no_error_in_addenda_and_notices(name: str, tmp_path: Path) -> None:
    notice = finished(findings=(), flagged=(), maps=(), rejected=SIGNED, predecessor=finished())
    for number, report in enumerate((added(2, predecessor=added(1, predecessor=finished(signature=SIGNED))), notice)):
        path = tmp_path / f"{number}.dcm"
        path.write_bytes(FORMATS[name].bytes_of(report))
        done = subprocess.run(["dciodvfy", "-new", str(path)], capture_output=True, text=True, check=False)
        assert "Error" not in done.stderr + done.stdout, done.stderr


def test_the_text_of_a_prior_has_its_addenda_without_their_signers(tmp_path: Path) -> None:
    path = tmp_path / "prior.dcm"
    for name in SR:
        path.write_bytes(FORMATS[name].bytes_of(added(2)))
        rows, _ = parse_signed({"path": str(path)})
        assert rows["text"] == f"{' '.join(FINDINGS.split())} {IMPRESSION} {ADDED[0].text} {ADDED[1].text}"
