"""The commands of README, run in order as they stand there, in a folder that has the files they name."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from radweave.data.dataset import Dataset
from tests.command_line import radweave
from tests.docs.page_commands import commands
from tests.image_files import write_dicom
from tests.toys import ROOT, toy_image

README = ROOT / "README.md"
NOT_RUN = ("demo", "serve")
"""The first takes minutes, the second serves until it is ended; tests of their own have both."""
ALSO = {"train": ["--dry-run"]}
"""Training takes minutes; whether the line would train does not."""


def test_the_commands_of_readme_run_one_after_the_other(
    toy_dataset: Dataset, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(toy_dataset.path / "images", tmp_path / "images")
    _write_table(toy_dataset, tmp_path / "reports.csv")
    pixels = np.asarray(Image.open(toy_image(tmp_path / "chest.png", bright_side="left", seed=3))) / 255
    write_dicom(tmp_path / "chest.dcm", pixels)
    monkeypatch.chdir(tmp_path)
    ran = []
    for command in commands(README):
        if command.in_prose or command.words[0] in NOT_RUN:
            continue
        done = radweave(*command.words, *ALSO.get(command.words[0], []))
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        ran.append(command.words[0])
        if command.words[0] == "train":
            shutil.copytree(toy_run, tmp_path / "run")
    assert {"data", "train", "generate", "explain", "evaluate"} <= set(ran)
    assert (tmp_path / "mine" / "manifest.jsonl").is_file()
    assert (tmp_path / "drafts.jsonl").is_file()
    assert any((tmp_path / "page").iterdir())


def _write_table(dataset: Dataset, path: Path) -> None:
    """A row per study, with the paths of its images."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "study_id", "patient_id", "findings"])
        for split in ("train", "val", "test"):
            for study in dataset.studies(split):
                images = "|".join(image.path for image in study.images)
                rows.writerow([images, study.study_id, study.patient_id, study.report])
