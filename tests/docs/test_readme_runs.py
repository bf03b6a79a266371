"""The commands of README, run in order as they stand there, in a folder that has the files they name."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from page_commands import commands
from PIL import Image

from command_line import radweave
from image_files import write_dicom
from radweave.data.dataset import Dataset
from toys import ROOT, toy_image

README = ROOT / "README.md"
STANDS_FOR = {"FILE": "chest.dcm"}
NOT_RUN = {
    "data import": "needs the download; importers have their tests",
    "ablate": "trains for an hour; tests/experiments",
    "bench": "trains for hours; tests/experiments",
}
ALSO = {"train": ["--dry-run"]}
"""Training takes minutes; whether the line would train does not."""


def test_the_commands_of_readme_run_one_after_the_other(
    toy_dataset: Dataset, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(toy_dataset.path, tmp_path / "iu")
    pixels = np.asarray(Image.open(toy_image(tmp_path / "chest.png", bright_side="left", seed=3))) / 255
    write_dicom(tmp_path / "chest.dcm", pixels)
    monkeypatch.chdir(tmp_path)
    ran = []
    for command in commands(README):
        line = " ".join(command.words)
        if any(line.startswith(f"{verb} ") for verb in NOT_RUN):
            continue
        done = radweave(*(STANDS_FOR.get(word, word) for word in command.words), *ALSO.get(command.words[0], []))
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        ran.append(command.words[0])
        if command.words[0] == "train":
            shutil.copytree(toy_run, tmp_path / "run")
    assert {"data", "train", "generate", "explain", "evaluate", "export", "estimate", "inspect"} <= set(ran)
    assert (tmp_path / "predictions.jsonl").is_file()
    assert any((tmp_path / "page").iterdir())
    assert any((tmp_path / "model").iterdir())
