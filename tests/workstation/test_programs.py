"""Reports in other programs: validators, viewers, archives."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from pydicom import dcmread

from radweave.core.study import LabelState
from radweave.workstation.finished import Addendum, Finding, FinishedReport, Section, SectionKind, person_name
from radweave.workstation.formats import FORMATS
from radweave.workstation.identity import read_identities
from tests.image_files import CANARY
from tests.workstation.archive import AET, Archive, needs, running
from tests.workstation.reports import FINDINGS, IMPRESSION, SIGNED, STUDY, dicom_image, finished, identity, placed

pytestmark = pytest.mark.programs

DICOM = [name for name, kind in FORMATS.items() if kind.suffix == ".dcm"]
SR = ["sr-basic", "sr-tid1500"]
KINDS = ("BasicTextSR", "Comprehensive3DSR", "EncapsulatedPDF", "MultiframeTrueColorSCImage", "ParametricMap",
         "GrayscaleSoftcopyPresentationState")  # fmt: skip
CR = "1.2.840.10008.5.1.4.1.1.1"
HOSTILE = "a < b & c | d ^ e ~ f \\ g <b>\tx</b> &lt;\u00a0山\u202e\u2028 \U0001f600\ufffe\x07\x0b end \\.br\\\r\nnext"
LONG = "The lungs are clear, äöü. " * 500
REPORTS: dict[str, dict[str, Any]] = {
    "draft": {},
    "signed": {"signature": SIGNED},
    "signed after a draft": {"signature": SIGNED, "predecessor": finished()},
    "with an addendum": {
        "signature": SIGNED,
        "addenda": (Addendum("The effusion is small.", SIGNED),),
        "predecessor": finished(signature=SIGNED),
    },
    "rejected": {"rejected": SIGNED, "predecessor": finished()},
    "signed by an account": {"signature": replace(SIGNED, name=person_name("Dr. Weber, Jana=A\\B^x"))},
    "hostile": {"text": HOSTILE, "sections": (Section("findings", HOSTILE), Section("impression", HOSTILE))},
    "all sections": {"sections": tuple(Section(kind, "One.\nTwo.") for kind in get_args(SectionKind))},
    "several views": {
        "sources": (identity(modality="DX", sop_class_uid=f"{CR}.1"),
                    identity(sop_instance_uid=f"{STUDY}.2.1", series_instance_uid=f"{STUDY}.2")),
    },
    "the longest values": {
        "sources": (identity(patient_name="W" * 64, patient_id="9" * 64, accession_number="1" * 16, study_id="2" * 16,
                             study_instance_uid="1." + "2" * 62, series_instance_uid="1." + "3" * 62,
                             sop_instance_uid="1." + "4" * 62, study_description="d" * 64),),
        "findings": (Finding("Größe of a class " * 12, 0.5, 0.5, LabelState.POSITIVE, "flag"),),
    },
    "japanese": {"sources": (identity(patient_name="Yamada^Tarou=山田^太郎=やまだ^たろう"),)},
    "long": {"text": LONG, "sections": (Section("findings", LONG.strip()),)},
    "bare": {
        "sources": (identity(patient_name="", patient_id="", patient_birth_date="", patient_sex="", patient_age="",
                             study_date="", study_time="", study_id="", accession_number="", study_description="",
                             referring_physician_name=""),),
    },
    "scan": {
        "sources": tuple(identity(sop_instance_uid=f"{STUDY}.1.{n}", modality="CT",
                                  sop_class_uid="1.2.840.10008.5.1.4.1.1.2") for n in range(1, 200)),
    },
    "several maps": {"maps": finished().maps * 3},
    "maps of a scan": {
        "sources": (identity(modality="CT", sop_class_uid="1.2.840.10008.5.1.4.1.1.2",
                             frame_of_reference_uid=f"{STUDY}.7"),),
        "maps": (placed("Lung nodule"), placed("Pleural effusion")),
    },
    "many classes": {"findings": tuple(Finding(f"Class {n}", n / 50, 0.5, LabelState.UNCERTAIN) for n in range(50))},
    "de-identified": {"sources": (identity(patient_identity_removed="YES", deidentification_method="by hand"),)},
}  # fmt: skip


def call(*words: object) -> str:
    """The output of a program, which must succeed."""
    needs(str(words[0]))
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=60)
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, output
    return output


def written(name: str, report: FinishedReport, folder: Path) -> Path:
    path = folder / f"{name}{FORMATS[name].suffix}"
    path.write_bytes(FORMATS[name].bytes_of(report))
    return path


@pytest.mark.parametrize("kind", REPORTS)
@pytest.mark.parametrize("name", DICOM)
def test_a_validator_finds_no_error(name: str, kind: str, tmp_path: Path) -> None:
    needs("dciodvfy")
    path = written(name, finished(**REPORTS[kind]), tmp_path)
    done = subprocess.run(["dciodvfy", "-new", str(path)], capture_output=True, text=True, timeout=60)
    output = (done.stdout + done.stderr).splitlines()
    assert [line for line in output if line.startswith(("Error", "Abort"))] == []
    assert any(line in KINDS for line in output)


@pytest.mark.parametrize("name", SR)
def test_dcmtk_shows_the_whole_tree(name: str, tmp_path: Path) -> None:
    path = written(name, finished(), tmp_path)
    dump = call("dsrdump", "+Pl", path)
    for text in ("UNVERIFIED", "PRELIMINARY", FINDINGS[:30], IMPRESSION, CANARY):
        assert text in dump
    page = tmp_path / "page.html"
    call("dsr2html", path, page)
    assert IMPRESSION in page.read_text()


def test_dcmtk_gives_the_pdf_back(tmp_path: Path) -> None:
    path = written("pdf-dicom", finished(), tmp_path)
    call("dcm2pdf", path, tmp_path / "a.pdf")
    page = FORMATS["pdf"].bytes_of(finished())
    assert (tmp_path / "a.pdf").read_bytes()[: len(page)] == page


@pytest.mark.parametrize("kind", REPORTS)
def test_the_pages_have_the_content_of_the_report(kind: str, tmp_path: Path) -> None:
    report = finished(**REPORTS[kind])
    path = written("pdf", report, tmp_path)
    text = " ".join(call("pdftotext", "-layout", path, "-").split())
    assert " ".join(report.sections[0].text[:60].split()) in text or "山" in report.text, "which no font here has"
    assert "CAUTION: Not for Diagnostic Use, for research use only." in text
    assert ("PRELIMINARY" in text) is (report.signature is None and report.rejected is None)
    assert ("REJECTED" in text) is (report.rejected is not None)
    assert all(added.text in text for added in report.addenda)
    for finding in report.findings[:2]:
        assert " ".join(finding.name.split()) in text
    numbers = re.findall(r"Page (\d+) of (\d+)", text)
    assert numbers == [(str(number), str(len(numbers))) for number in range(1, len(numbers) + 1)]
    assert text.count("Patient ID ") >= len(numbers) > 0, "every page says whose it is"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    with running(tmp_path_factory.mktemp("orthanc")) as started:
        yield started


@pytest.fixture
def study(archive: Archive, tmp_path: Path, request: pytest.FixtureRequest) -> FinishedReport:
    """A study that is in the archive, sent by DCMTK, and its report."""
    path = dicom_image(tmp_path / "image.dcm", PatientID=f"{CANARY}{abs(hash(request.node.name)) % 10**6}")
    call("storescu", "-aec", AET, "127.0.0.1", archive.dicom, path)
    sources, _ = read_identities([path])
    return replace(finished(), sources=sources)


def modalities(archive: Archive, report: FinishedReport) -> list[str]:
    """The series of the report's study by QIDO."""
    series = archive.web().search_for_series(study_instance_uid=report.patient.study_instance_uid)
    return sorted(row["00080060"]["Value"][0] for row in series)


def test_reports_stored_by_dicomweb_are_filed_under_their_study(
    archive: Archive, study: FinishedReport, tmp_path: Path
) -> None:
    for _ in range(2):  # sent twice, each is there once
        archive.web().store_instances([dcmread(written(name, study, tmp_path)) for name in DICOM])
    assert modalities(archive, study) == ["CR", "DOC", "OT", "PR", "SR", "SR"]
    (series,) = archive.web().search_for_studies(search_filters={"PatientID": study.patient.patient_id})
    assert series["00201206"]["Value"] == [6]  # series
    assert series["00201208"]["Value"] == [6]  # instances
    for name in SR:
        original = dcmread(written(name, study, tmp_path))
        back = archive.web().retrieve_instance(
            original.StudyInstanceUID, original.SeriesInstanceUID, original.SOPInstanceUID
        )
        back.save_as(tmp_path / "back.dcm", enforce_file_format=True)
        assert IMPRESSION in call("dsrdump", "+Pl", tmp_path / "back.dcm")


def test_reports_sent_by_dcmtk_are_filed_under_their_study(
    archive: Archive, study: FinishedReport, tmp_path: Path
) -> None:
    call("storescu", "-aec", AET, "127.0.0.1", archive.dicom, written("sr-basic", study, tmp_path))
    paths = [written(name, study, tmp_path) for name in DICOM]
    call("dcmsend", "-aec", AET, "127.0.0.1", archive.dicom, *paths)
    assert modalities(archive, study) == ["CR", "DOC", "OT", "PR", "SR", "SR"]
