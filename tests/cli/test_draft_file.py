"""``generate IMAGE``: drafts as a file, and views that the user states."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from command_line import radweave
from radweave.core.escaping import csv_line
from radweave.core.study import RESEARCH_ONLY
from radweave.data.dataset import Dataset
from toys import toy_image


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


def test_an_output_that_cannot_be_used_is_refused_before_the_run_is_opened(images: list[Path], tmp_path: Path) -> None:
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


def test_no_file_is_written_where_no_draft_was(toy_run: Path, images: list[Path], tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text(OLD)
    done = radweave("generate", toy_run, images[2], "--out", tmp_path / "there.csv", "--overwrite")
    assert done.returncode == 2
    assert (tmp_path / "there.csv").read_text() == OLD
    done = radweave("generate", toy_run, images[0], "--out", tmp_path / "there.csv", "--overwrite")
    assert done.returncode == 0
    assert (tmp_path / "there.csv").read_text().startswith(OLD + "left,")


@pytest.mark.parametrize("cell", ["=1+1", "@SUM(A1)", "+1+cmd|' /C calc'!A0", "-1+1", "\t=1", "  =1", "＝1"])
def test_no_cell_is_a_formula(cell: str) -> None:
    row = next(csv.reader([csv_line(["a", cell])]))
    assert row == ["a", f"'{cell}"]


@pytest.mark.parametrize("cell", ["", "-1", "+2.5", "No effusion. = none", "0"])
def test_numbers_and_texts_stay_as_they_are(cell: str) -> None:
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


def test_views_are_refused_where_they_make_no_sense(toy_run: Path, images: list[Path], toy_dataset: Dataset) -> None:
    for words, reason in (
        (["--view", "oblique"], "frontal, lateral, pa, ap"),
        (["--view", "pa", "--view", "lateral"], "expected 1 or 3"),
    ):
        done = radweave("generate", toy_run, *images, *words)
        assert done.returncode == 2
        assert reason in done.stderr
    done = radweave("generate", toy_run, "--data", toy_dataset.path, "--out", "x.jsonl", "--view", "pa")
    assert "a dataset states the views" in done.stderr


def test_sections_are_given_for_one_study_and_arrive(
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
