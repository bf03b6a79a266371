"""Few functions of ours stand between the shell and a model: a reader follows them on one screen."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import radweave as package
from radweave.data.dataset import Dataset
from radweave.engine import drafts
from radweave.methods.baseline.model import BaselineModel
from tests.command_line import radweave
from tests.toys import TOY_OVERRIDES, TOY_SIZES

SOURCE = Path(package.__file__).parent


class ReachedError(Exception):
    """The model was asked; nothing after that matters here."""


def path_to(monkeypatch: pytest.MonkeyPatch, where: Any, last_call: str, *command: str | Path) -> list[str]:
    """Our functions from the command's on, up to what calls ``where.asked``."""
    path: list[str] = []

    def stop(*arguments: Any) -> None:
        for frame in inspect.stack(context=0)[1:]:
            if Path(frame.filename).is_relative_to(SOURCE):
                path.insert(0, f"{Path(frame.filename).relative_to(SOURCE)}:{frame.function}")
        raise ReachedError

    monkeypatch.setattr(where, last_call, stop)
    with pytest.raises(ReachedError):
        radweave(*command)
    assert path[0] == "cli/__init__.py:main"
    return path[1:]


def test_training_is_five_calls_away(monkeypatch: pytest.MonkeyPatch, toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = (*TOY_OVERRIDES, *TOY_SIZES["baseline"])
    training = ("train", "baseline", toy_dataset.path, "--out", tmp_path / "run", *overrides)
    path = path_to(monkeypatch, BaselineModel, "loss", *training)
    assert len(path) <= 5, path


def test_a_report_is_five_calls_away(
    monkeypatch: pytest.MonkeyPatch, toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    """Up to the seam that batches stream through to the model: several are under way at once there."""
    for arguments in (
        (toy_dataset.image_path("images/1_0.png"),),
        ("--data", toy_dataset.path, "--out", tmp_path / "predictions.jsonl"),
    ):
        path = path_to(monkeypatch, drafts, "generations", "generate", toy_run, "--own-decoder", *arguments)
        assert len(path) <= 5, path
