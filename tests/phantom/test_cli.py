"""The verb ``radweave phantom``."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from radweave.cli.data import phantom
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset


@pytest.fixture
def app() -> typer.Typer:
    verb = typer.Typer()
    verb.command()(phantom)
    return verb


def test_writes_a_dataset_with_masks_and_twins(app: typer.Typer, tmp_path: Path) -> None:
    out = tmp_path / "d"
    inputs = ["--modality", "xray", "--studies", "8", "--seed", "1", "--image-size", "64", "--prevalence", "balanced"]
    result = CliRunner().invoke(app, [str(out), *inputs, "--masks"])
    assert result.exit_code == 0, result.output
    assert "studies 8" in result.output
    studies = list(Dataset.open(out).studies())
    for study in studies:
        for ref in study.images:
            assert (out / ref.path.replace("images/", "twins/")).is_file()
        for finding in study.truth:
            assert len(finding["masks"]) == len(study.images)
            assert all((out / path).is_file() for path in finding["masks"])
    assert any(study.truth for study in studies)


@pytest.mark.long
def test_the_turnover_reaches_the_data_set(app: typer.Typer, tmp_path: Path) -> None:
    inputs = ["--studies", "40", "--image-size", "32", "--prevalence", "balanced", "--jobs", "1"]
    trends = {}
    for turnover in ("low", "real", "none"):
        out = tmp_path / turnover
        chosen = [] if turnover == "low" else ["--turnover", turnover]
        assert CliRunner().invoke(app, [str(out), *inputs, *chosen]).exit_code == 0
        dataset = Dataset.open(out)
        assert dataset.card.options["turnover"] == turnover
        trends[turnover] = Counter(finding["trend"] for study in dataset.studies() for finding in study.truth)
    assert set(trends["none"]) == {"first", "unchanged"}
    assert trends["real"]["resolved"] > trends["low"]["resolved"] > 0


def test_refuses_an_existing_folder_and_leaves_it_alone(app: typer.Typer, tmp_path: Path) -> None:
    out = tmp_path / "d"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    result = CliRunner().invoke(app, [str(out), "--studies", "1", "--image-size", "32"])
    assert isinstance(result.exception, InputError)
    assert [p.name for p in out.iterdir()] == ["mine.txt"]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize(
    "wrong", [["--studies", "0"], ["--modality", "mri"], ["--prevalence", "rare"], ["--turnover", "x"]]
)
def test_a_wrong_option_exits_with_2(app: typer.Typer, tmp_path: Path, wrong: list[str]) -> None:
    assert CliRunner().invoke(app, [str(tmp_path / "d"), *wrong]).exit_code == 2


def test_the_verb_imports_nothing_heavy() -> None:
    heavy = ("torch", "nibabel", "scipy", "numpy")
    code = f"import sys, radweave.cli.data; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_folder_is_an_argument_or_an_option(app: typer.Typer, tmp_path: Path) -> None:
    small = ["--studies", "1", "--image-size", "32", "--jobs", "1"]
    for inputs in (["--out", str(tmp_path / "a")], [str(tmp_path / "b")]):
        assert CliRunner().invoke(app, [*inputs, *small]).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    for wrong in ([], [str(tmp_path / "c"), "--out", str(tmp_path / "c")]):
        result = CliRunner().invoke(app, [*wrong, *small])
        assert isinstance(result.exception, InputError)
        assert "--out" in str(result.exception)
