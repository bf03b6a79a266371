"""The Python of docs/python.md, run block by block as it stands there, in a folder that has what it names."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import radweave
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from tests.toys import ROOT

LINES_OF_THE_LOOP = 38


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_page_runs_and_its_model_learns_to_write(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(toy_run, "run")
    shutil.copytree(toy_dataset.path, "data")
    shutil.copyfile(toy_dataset.image_path("images/1_0.png"), "chest.png")
    first, sections, training, loop = blocks(ROOT / "docs/python.md")
    names: dict[str, Any] = {}
    exec(compile(first, "docs/python.md", "exec"), names)
    assert names["report"].text
    exec(compile(sections, "docs/python.md", "exec"), names)
    assert any("the indication is not looked at" in warning for warning in names["report"].warnings)
    assert names["scores"].sections["impression"].corpus["BLEU_1"].value > 0.99
    requested = inspect.signature(train)
    monkeypatch.setattr("radweave.engine.train.train", requested.bind)
    exec(compile(training, "docs/python.md", "exec"), names)
    assert names["run"].arguments["dataset_path"] == Path("data")
    assert len([line for line in loop.splitlines() if line.strip()]) <= LINES_OF_THE_LOOP
    result: dict[str, Any] = {}
    exec(compile(loop, "docs/python.md", "exec"), result)
    assert result["loss"].item() < 3.0, "untrained it is the logarithm of the number of words, 3.3 or more"
    assert set(result["drafts"]) == {study.study_id for study in toy_dataset.studies("test")}
    assert result["evaluation"].corpus["BLEU_1"].value is not None


def test_a_run_opens_by_the_documented_call(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Any] = []
    monkeypatch.setattr("radweave.engine.restore.restore", lambda run, device: requested.append((run, device)) or "run")
    monkeypatch.setattr(Predictor, "of", lambda run, **options: (run, options))
    plain = {"untrained": False, "decoding": ()}
    assert radweave.load("folder") == ("run", plain)
    assert radweave.load("folder", device="cpu", decoding=["num_beams=3"], untrained=True) == (
        "run", {"untrained": True, "decoding": ("num_beams=3",)},
    )  # fmt: skip
    requested.pop()
    assert radweave.load("folder", device="cpu", own_decoder=True) == (
        "run", {"untrained": False, "decoding": ("kind=likelihood",)},
    )  # fmt: skip
    assert requested == [(Path("folder"), None), (Path("folder"), torch.device("cpu"))]
    for wrong in ({"run": 3}, {"run": "folder", "decoding": "num_beams=3"}, {"run": "folder", "device": "tpu"}):
        with pytest.raises(InputError):
            radweave.load(**wrong)  # type: ignore[arg-type]
