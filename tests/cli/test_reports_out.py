"""``generate --out``: one study's report as a file that another system reads, or a word about why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom import dcmread

from command_line import radweave
from image_files import CANARY, edit, write_dicom, write_series
from radweave.core.study import RESEARCH_ONLY
from radweave.engine.restore import restore
from radweave.inference.predictor import Predictor
from radweave.workstation.draft_report import finished_report
from radweave.workstation.finished import writable
from radweave.workstation.formats import FORMATS
from toys import toy_image


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A radiograph that the toy run knows, as PNG."""
    return toy_image(tmp_path / "left.png", bright_side="left", seed=3)


@pytest.fixture
def dicom(picture: Path, tmp_path: Path) -> Path:
    """The same as DICOM, of a patient whose every name is the canary."""
    import numpy as np
    from PIL import Image

    return write_dicom(tmp_path / "left.dcm", np.asarray(Image.open(picture).convert("L")) / 255, bits=8)


def test_every_format_holds_the_draft(toy_run: Path, dicom: Path) -> None:
    run = restore(toy_run)
    predictor = Predictor.of(run)
    views, warnings = predictor.read_views([dicom], force=True)
    draft = predictor.report_on(views, study_id="left", warnings=warnings, force=True)
    looked = {"attention_maps": {run.card.classes[0]: [[[0.0, 1.0], [0.0, 0.0]]]}}  # this method gives none
    draft = replace(draft, evidence={**draft.evidence, **looked})
    report = finished_report(run, predictor, draft, views)
    assert [one.name for one in report.maps] == [run.card.classes[0]]
    assert {one.name for one in report.findings} == set(run.card.classes)
    assert report.text == writable(draft.text)
    assert report.text in FORMATS["text"].bytes_of(report).decode()
    bundle = json.loads(FORMATS["fhir"].bytes_of(report))
    assert bundle["entry"][0]["resource"]["conclusion"] == report.text
    for chosen in FORMATS.values():
        assert len(chosen.bytes_of(report)) > len(report.text)


def test_a_suffix_chooses_the_format_and_the_same_draft_is_the_same_instance(
    toy_run: Path, dicom: Path, tmp_path: Path
) -> None:
    before, out = dicom.read_bytes(), tmp_path / "a.dcm"
    done = radweave("generate", toy_run, dicom, "--force", "--out", dicom, "--overwrite")
    assert (done.returncode, dicom.read_bytes() == before) == (2, True)
    assert "is not a report as sr-basic" in done.stderr
    done = radweave("generate", toy_run, dicom, "--force", "--out", out)
    assert done.returncode == 0, done.stderr
    assert RESEARCH_ONLY in done.stderr
    assert (done.stdout, CANARY in done.stderr) == ("", False)
    first = dcmread(out)
    assert first.SOPClassUID.name == "Basic Text SR Storage"
    assert first.StudyInstanceUID == dcmread(dicom).StudyInstanceUID
    assert "--overwrite" in radweave("generate", toy_run, dicom, "--force", "--out", out).stderr
    assert radweave("generate", toy_run, dicom, "--force", "--out", out, "--overwrite").returncode == 0
    assert dcmread(out).SOPInstanceUID == first.SOPInstanceUID


def test_what_is_nobodys_is_refused_and_leaves_no_file(toy_run: Path, picture: Path, tmp_path: Path) -> None:
    done = radweave("generate", toy_run, picture, "--force", "--out", tmp_path / "a.dcm")
    assert (done.returncode, "nobody's" in done.stderr) == (2, True)
    assert radweave("generate", toy_run, picture, "--force", "--out", tmp_path / "a.pdf").returncode == 0
    assert sorted(path.name for path in tmp_path.glob("a.*")) == ["a.pdf"]


def test_a_header_that_cannot_be_taken_over_is_refused_by_its_field(toy_run: Path, dicom: Path, tmp_path: Path) -> None:
    edit(dicom, StudyInstanceUID=None)
    done = radweave("generate", toy_run, dicom, "--force", "--out", tmp_path / "a.dcm")
    assert (done.returncode, "StudyInstanceUID" in done.stderr, CANARY in done.stderr) == (2, True, False)
    assert not (tmp_path / "a.dcm").exists()


def test_a_file_holds_one_report(toy_run: Path, dicom: Path, picture: Path, tmp_path: Path) -> None:
    done = radweave("generate", toy_run, dicom, picture, "--force", "--out", tmp_path / "a.pdf")
    assert (done.returncode, "2 studies" in done.stderr) == (2, True)
    done = radweave("generate", toy_run, dicom, picture, "--force", "--one-study", "--out", tmp_path / "a.dcm")
    assert done.returncode == 0, done.stderr
    assert "say nothing of whose they are" in done.stderr
    (tmp_path / "broken.dcm").write_text("no image")
    done = radweave("generate", toy_run, dicom, tmp_path / "broken.dcm", "--force", "--out", tmp_path / "b.pdf")
    assert done.returncode == 2
    assert not (tmp_path / "b.pdf").exists()


def test_formats_are_refused_where_they_make_no_sense(tmp_path: Path) -> None:
    out = tmp_path / "a.pdf"
    for words, reason in (
        (["x.png", "--out", out, "--format", "docx"], "sr-tid1500"),
        (["x.png", "--format", "pdf"], "--format is for"),
        (["--data", "d", "--out", out, "--format", "pdf"], "--format is for"),
        (["x.png", "--out", out, "--json"], "--json"),
    ):
        done = radweave("generate", "nowhere", *words)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_a_report_about_a_scan_names_every_slice(toy_ct_run: Path, tmp_path: Path) -> None:
    write_series(tmp_path / "scan")
    done = radweave("generate", toy_ct_run, tmp_path / "scan", "--force", "--out", tmp_path / "a.dcm")
    assert done.returncode == 0, done.stderr
    (study,) = dcmread(tmp_path / "a.dcm").CurrentRequestedProcedureEvidenceSequence
    assert len(study.ReferencedSeriesSequence[0].ReferencedSOPSequence) == 24
