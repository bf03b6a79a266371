"""Files of drafts and of finished reports."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom import dcmread

from radweave.core.escaping import csv_line
from radweave.core.study import RESEARCH_ONLY
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.inference.predictor import Predictor
from radweave.workstation.draft_report import finished_report
from radweave.workstation.finished import MarkedBox, writable
from radweave.workstation.formats import FORMATS
from tests.command_line import radweave
from tests.image_files import CANARY, edit, write_dicom, write_series
from tests.toys import toy_image


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Two radiographs and one file that is none."""
    paths = [toy_image(tmp_path / f"{side}.png", bright_side=side, seed=3) for side in ("left", "right")]
    (tmp_path / "letter.png").write_text("no image")
    return [*paths, tmp_path / "letter.png"]


OLD = "study_id,report,warnings,refused,notice\n"


def test_drafts_go_into_a_file_by_its_suffix(toy_run: Path, images: list[Path], tmp_path: Path) -> None:
    printed = json.loads(radweave("generate", toy_run, *images, "--json").stdout)
    drafts = {row["study_id"]: row.get("report") for row in printed}
    for suffix in (".jsonl", ".txt", ".csv"):
        done = radweave("generate", toy_run, *images, "--out", tmp_path / f"drafts{suffix}")
        assert done.returncode == 2
        assert done.stdout == ""
        assert "1 of 3 studies were refused" in done.stderr
    assert [json.loads(line) for line in (tmp_path / "drafts.jsonl").read_text().splitlines()] == printed
    text = (tmp_path / "drafts.txt").read_text()
    assert text.endswith(f"\n\n{RESEARCH_ONLY}\n")
    assert text.startswith(f"left\n{drafts['left']}\n")
    assert "letter.png\nrefused: " in text
    with (tmp_path / "drafts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["study_id"]: row["report"] or None for row in rows} == drafts
    assert [bool(row["refused"]) for row in rows] == [False, False, True]


def test_an_unusable_output_is_refused_before_opening_the_run(images: list[Path], tmp_path: Path) -> None:
    for name in ("drafts.docx", "drafts", "drafts.jsonl.gz"):
        done = radweave("generate", "nowhere", images[0], "--out", tmp_path / name)
        assert done.returncode == 2
        assert ".jsonl, .txt, .csv" in done.stderr
    (tmp_path / "there.csv").write_text(OLD)
    done = radweave("generate", "nowhere", images[0], "--out", tmp_path / "there.csv")
    assert "--overwrite" in done.stderr
    done = radweave("generate", "nowhere", images[0], "--out", tmp_path / "there.csv", "--overwrite")
    assert "no such run folder" in done.stderr
    assert (tmp_path / "there.csv").read_text() == OLD


def test_no_file_is_written_without_a_draft(toy_run: Path, images: list[Path], tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text(OLD)
    done = radweave("generate", toy_run, images[2], "--out", tmp_path / "there.csv", "--overwrite")
    assert done.returncode == 2
    assert (tmp_path / "there.csv").read_text() == OLD
    done = radweave("generate", toy_run, images[0], "--out", tmp_path / "there.csv", "--overwrite")
    assert done.returncode == 0
    assert (tmp_path / "there.csv").read_text().startswith(OLD + "left,")


@pytest.mark.parametrize("cell", ["=1+1", "@SUM(A1)", "+1+cmd|' /C calc'!A0", "-1+1", "\t=1", "  =1", "＝1"])
def test_csv_cells_are_no_formulas(cell: str) -> None:
    row = next(csv.reader([csv_line(["a", cell])]))
    assert row == ["a", f"'{cell}"]


@pytest.mark.parametrize("cell", ["", "-1", "+2.5", "No effusion. = none", "0"])
def test_csv_keeps_numbers_and_texts(cell: str) -> None:
    assert next(csv.reader([csv_line(["a", cell])])) == ["a", cell]


def test_files_with_stated_views_get_the_drafts_of_the_data_set(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    done = radweave("generate", toy_run, "--data", toy_dataset.path, "--split", "val", "--out", tmp_path / "p.jsonl")
    assert done.returncode == 0, done.stderr
    drafts = {row["study_id"]: row["hyp"] for row in map(json.loads, (tmp_path / "p.jsonl").open())}
    assert len(drafts) == 4
    counts = set()
    for study in toy_dataset.studies("val"):
        files = [toy_dataset.image_path(ref.path) for ref in study.images]
        views = [word for ref in study.images for word in ("--view", ref.view.value.lower())]
        done = radweave("generate", toy_run, *files, *views, "--one-study", "--json")
        assert json.loads(done.stdout)[0]["report"] == drafts[study.study_id]
        counts.add(len(files))
    assert counts == {1, 2}


def test_contradictory_views_are_refused(toy_run: Path, images: list[Path], toy_dataset: Dataset) -> None:
    for words, reason in (
        (["--view", "oblique"], "frontal, lateral, pa, ap"),
        (["--view", "pa", "--view", "lateral"], "expected 1 or 3"),
    ):
        done = radweave("generate", toy_run, *images, *words)
        assert done.returncode == 2
        assert reason in done.stderr
    done = radweave("generate", toy_run, "--data", toy_dataset.path, "--out", "x.jsonl", "--view", "pa")
    assert "a dataset states the views" in done.stderr


def test_context_sections_reach_the_model(
    toy_run: Path, images: list[Path], toy_dataset: Dataset, tmp_path: Path
) -> None:
    words = ["--indication", "Cough.", "--technique", "PA.", "--findings", "Clear."]
    done = radweave("generate", toy_run, *images[:1], *words)
    assert done.returncode == 0, done.stderr
    for name in ("indication", "technique", "findings"):
        assert f"the {name} is not looked at: the run was trained without" in done.stderr
    text = tmp_path / "report.txt"
    done = radweave("generate", toy_run, *images[:1], *words[:2], "--out", text, "--format", "text")
    assert "the indication is not looked at" in done.stderr
    assert radweave("generate", toy_run, *images, *words).returncode == 2
    done = radweave("generate", toy_run, "--data", toy_dataset.path, "--out", "x.jsonl", *words[:2])
    assert "field '--indication': a dataset has the sections" in done.stderr


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
    placed = {
        "finding": run.card.classes[0], "sides": ["left"], "zones": [], "probability": 0.7, "probabilities": {},
        "boxes": [{"view": 0, "box": [0.5, 0, 1, 1]}, {"view": 1, "box": [0.5, 0, 1, 1]}],
    }  # fmt: skip
    sentences = [{"text": draft.text, "places": [placed]}]
    draft = replace(draft, evidence={**draft.evidence, **looked, "sentences": sentences})
    report = finished_report(run, predictor, draft, views)
    (place,) = report.places
    assert place.named == "left"
    assert place.boxes == (MarkedBox(0, (0.5, 0.0, 1.0, 1.0), source=0),), "there is no second image"
    assert [one.name for one in report.maps] == [run.card.classes[0]]
    assert {one.name for one in report.findings} == set(run.card.classes)
    assert report.text == writable(draft.text)
    assert report.text in FORMATS["text"].bytes_of(report).decode()
    bundle = json.loads(FORMATS["fhir"].bytes_of(report))
    assert bundle["entry"][0]["resource"]["conclusion"] == report.text
    for chosen in FORMATS.values():
        assert len(chosen.bytes_of(report)) > len(report.text)


def test_a_suffix_chooses_the_format_and_instances_are_reproducible(toy_run: Path, dicom: Path, tmp_path: Path) -> None:
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


def test_reports_without_a_patient_are_refused(toy_run: Path, picture: Path, tmp_path: Path) -> None:
    done = radweave("generate", toy_run, picture, "--force", "--out", tmp_path / "a.dcm")
    assert (done.returncode, "names no patient" in done.stderr) == (2, True)
    assert radweave("generate", toy_run, picture, "--force", "--out", tmp_path / "a.pdf").returncode == 0
    assert sorted(path.name for path in tmp_path.glob("a.*")) == ["a.pdf"]


def test_an_unusable_header_is_refused_by_field(toy_run: Path, dicom: Path, tmp_path: Path) -> None:
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


def test_contradictory_formats_are_refused(tmp_path: Path) -> None:
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


def test_files_refused_for_one_reason_are_counted(toy_run: Path, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.png").write_text("no image")
    done = radweave("generate", toy_run, tmp_path)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 6
    assert errors[-1].startswith("error: 3 more files: ")
    assert "8 of 8 studies were refused" in done.stderr
