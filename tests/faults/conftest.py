"""Copies of the toy run and the toy data set that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from radweave.data.dataset import Dataset


@pytest.fixture
def run(toy_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy_run, tmp_path / "run"))


@pytest.fixture
def dataset(toy_dataset: Dataset, tmp_path: Path) -> Dataset:
    shutil.copytree(toy_dataset.path, tmp_path / "data", ignore=shutil.ignore_patterns(".cache"))
    return Dataset.open(tmp_path / "data")
