"""Boards: the figures and texts that TensorBoard and wandb get."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from radweave.cli.options import training_watch
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.board import TensorBoard, WandbBoard, open_board, watched
from radweave.engine.loop import Watch
from radweave.engine.train import train
from tests.toys import TOY_OVERRIDES, TOY_SIZES


def events(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return accumulator.EventAccumulator(str(folder)).Reload()


def test_a_training_run_shows_its_figures_and_drafts(toy_dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run, overrides = tmp_path / "run", [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2"]
    with training_watch(open_board("tensorboard", run)) as watch:
        train("baseline", toy_dataset.path, run, overrides=overrides, watch=watch)
    logged = events(run / "tensorboard" / "report")
    losses = logged.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, 7))
    assert all(event.value > 0 for event in losses)
    assert [event.step for event in logged.Scalars("validation loss")] == [3, 6]
    texts = logged.Tensors("sample 1/text_summary")
    assert len(texts) == 2
    (image,) = logged.Images("image 1")
    assert (image.height, image.width) == (32, 32)
    words = texts[0].tensor_proto.string_val[0].decode()
    assert "**draft**" in words
    assert any((study.report or "-") in words for study in toy_dataset.studies("val"))
    assert not any(study.patient_id in words.split() for study in toy_dataset.studies())


def test_steps_repeated_by_a_resumed_run_replace_older_ones(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for first, last in ((1, 6), (4, 8)):
        board = TensorBoard(tmp_path)
        for step in range(first, last + 1):
            board.figures("report", step, {"loss": float(first), "none": None})
        board.close()
    logged = {event.step: event.value for event in events(tmp_path / "report").Scalars("loss")}
    assert logged == {1: 1.0, 2: 1.0, 3: 1.0, 4: 4.0, 5: 4.0, 6: 4.0, 7: 4.0, 8: 4.0}


def test_wandb_gets_figures_and_no_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, float]] = []
    finished: list[bool] = []
    run = SimpleNamespace(log=logged.append, finish=lambda: finished.append(True))
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(__spec__=ModuleSpec("wandb", None), init=lambda **options: run)
    )  # type: ignore[arg-type]
    board = WandbBoard(tmp_path)
    steps: list[int] = []
    watch = watched(Watch(step=lambda step, total, figures: steps.append(step)), board, "report")
    watch.step(1, 10, {"loss": 2.0})
    watch.epoch(0, {"loss": 1.5, "CIDEr": None})
    board.reports("report", 1, [("No effusion.", "Effusion.")])
    board.close()
    assert steps == [1]
    assert logged == [{"report/step": 1, "report/loss": 2.0}, {"report/step": 1, "report/validation loss": 1.5}]
    assert finished == [True]


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_before_anything_is_written(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"{kind}, which is not installed: pip install 'radweave\[{kind}\]'"):
        open_board(kind, tmp_path / "run")
    assert not (tmp_path / "run").exists()
