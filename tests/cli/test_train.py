"""The verbs train and config: a try, a dry run, a file of changes, and going on with nothing but the folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command_line import radweave
from radweave.core.config import parse_yaml
from radweave.core.devices import VARIABLE
from radweave.core.json_files import read_json
from radweave.data.dataset import Dataset
from toys import TOY_OVERRIDES, TOY_SIZES

TOY = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(toy_dataset: Dataset, tmp_path: Path) -> None:
    before = sorted(toy_dataset.path.rglob("*"))
    done = radweave(
        "train", "baseline", toy_dataset.path, *TOY, "--out", tmp_path / "run", "--dry-run", "--epochs", "3"
    )
    assert done.returncode == 0, done.stderr
    assert "stage vision: passed over" in done.stdout
    train = sum(1 for _ in toy_dataset.studies("train"))
    assert f"stage report: 3 epochs, at most {3 * -(-train // 4)} updates of 4 studies" in done.stdout
    assert re.search(r"frozen .*\bword_head", done.stdout)
    assert "GB" in done.stdout
    assert not any(tmp_path.iterdir())
    assert sorted(toy_dataset.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("model.vision_encoder.path=nowhere/at/all", "model.vision_encoder.path"),
        ("data.tokenizer={kind: pretrained, path: nowhere/at/all}", "data.tokenizer.path"),
        ("model.language_model={kind: pretrained, path: nowhere/at/all}", "model.language_model.path"),
    ],
)
def test_a_dry_run_finds_a_path_that_leads_nowhere(override: str, field: str, toy_dataset: Dataset) -> None:
    done = radweave("train", "baseline", toy_dataset.path, override, "--dry-run")
    assert done.returncode == 2
    assert field in done.stderr
    assert "no such folder" in done.stderr


def test_a_limited_run_goes_on_with_nothing_but_its_folder(toy_dataset: Dataset, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "changes.yaml"
    file.write_text("stages: {report: {batch_size: 2}}\n")
    options = ["--out", run, "--limit", "5", "--epochs", "1", "--config", file]
    assert radweave("train", "baseline", toy_dataset.path, *TOY, *options).returncode == 0
    card, weights = read_json(run / "run.json"), (run / "weights.safetensors").read_bytes()
    assert card["trained_steps"]["report"] == 2, "four studies by twos: the override of 4 comes after the file's 2"
    (run / "run.json").unlink()
    (run / "weights.safetensors").unlink()
    done = radweave("train", "--resume", run)
    assert done.returncode == 0, done.stderr
    assert (run / "weights.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--resume", "{}/none"], ["no training was started"]),
        (["train", "--resume", "{}/none", "--epochs", "2"], ["--resume", "give none"]),
        (["train", "baseline"], ["which data set"]),
        (["train", "baseline", "{}"], ["--out"]),
        (["train", "baseline", "{}", "--out", "{}/run", "--device", "cuda:77"], ["--device", "no such device"]),
        (["train", "baseline", "{}", "--out", "{}/run", "--config", "{}/none.yaml"], ["none.yaml", "missing"]),
    ],
)
def test_what_is_missing_is_named(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    done = radweave(*(argument.format(tmp_path) for argument in arguments))
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr


def test_the_configuration_is_printed_with_a_file_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "changes.yaml"
    file.write_text(json.dumps({"method": "dast", "model": {"retrieval": {"kind": "none"}}, "seed": 3}))
    done = radweave("config", "dast", "--config", file, "seed=4")
    assert done.returncode == 0, done.stderr
    values = parse_yaml(done.stdout)
    assert (values["seed"], values["model"]["retrieval"]) == (4, {"kind": "none"})
    assert "--config" not in radweave("config", "baseline", "--config", file).stdout
    assert radweave("config", "baseline", "--config", file).returncode == 2
