"""Progress where there is no terminal: lines that name the stage, the epoch and how far it goes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import radweave
from radweave.cli import options
from radweave.data.dataset import Dataset
from toys import TOY_OVERRIDES, TOY_SIZES


def test_a_log_names_stage_epoch_and_total(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "LINE_EVERY_S", 0.0)
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2", "stages.report.select=loss"]
    log = radweave("train", "baseline", toy_dataset.path, "--out", tmp_path / "run", *overrides).stderr
    lines = [line for line in log.splitlines() if line.startswith("stage report")]
    assert re.match(r"stage report: 1 of 6 \(16 %\)  epoch 1 of 2  loss \d\.\d+  \d+ studies/s$", lines[0])
    assert re.match(r"stage report: 3 of 6 \(50 %\)  epoch 1 of 2", lines[2])
    assert lines[3].startswith("stage report, epoch 1 of 2: validation ")
    assert re.match(r"stage report: 6 of 6 \(100 %\)  epoch 2 of 2", lines[-2])
    assert lines[-1].startswith("stage report, epoch 2 of 2: validation ")


def test_lines_come_at_both_ends_and_seldom_between(capsys: pytest.CaptureFixture[str]) -> None:
    with options.bar("reading") as told:
        for done in range(1, 1001):
            told(done, 1000)
        told(1000, 1000)
    assert capsys.readouterr().err.splitlines() == ["reading: 1 of 1000 (0 %)", "reading: 1000 of 1000 (100 %)"]


def test_an_import_knows_how_many_studies_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toys import toy_image

    monkeypatch.setattr(options, "LINE_EVERY_S", 0.0)
    for number in range(3):
        toy_image(tmp_path / f"{number}.png", bright_side="left", seed=number)
    rows = "".join(f"s{number},p{number},{number}.png,Lungs clear.\n" for number in range(3))
    (tmp_path / "r.csv").write_text("study_id,patient_id,image,findings\n" + rows)
    done = radweave("data", "import", "folder", tmp_path / "r.csv", "--out", tmp_path / "out", "--split", "train")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("reading studies")] == [
        "reading studies: 1 of 3 (33 %)", "reading studies: 2 of 3 (66 %)", "reading studies: 3 of 3 (100 %)",
    ]  # fmt: skip


def test_a_check_knows_how_many_studies_there_are(toy_dataset: Dataset) -> None:
    done = radweave("data", "check", toy_dataset.path)
    total = len(toy_dataset.manifest_path.read_text("utf-8").splitlines())
    assert [line for line in done.stderr.splitlines() if line.startswith("checking studies")] == [
        f"checking studies: 1 of {total} ({100 // total} %)", f"checking studies: {total} of {total} (100 %)",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["bench", "ablate"])
def test_what_takes_hours_says_so(verb: str) -> None:
    assert "takes hours" in " ".join(radweave(verb, "--help").stdout.split())


def test_inspect_takes_many_and_one_that_is_missing_leaves_the_others(toy_dataset: Dataset, tmp_path: Path) -> None:
    files = [toy_dataset.image_path(f"images/{number}_0.png") for number in (1, 2)]
    done = radweave("inspect", *files)
    assert done.returncode == 0
    assert "2 entries, 0 refused" in done.stdout
    mixed = radweave("inspect", files[0], tmp_path / "nowhere.png", files[1])
    assert mixed.returncode == 2
    assert "nowhere.png: refused: no such file or folder" in mixed.stdout
    assert "3 entries, 1 refused" in mixed.stdout
