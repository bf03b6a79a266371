"""Boards for training runs: figures, sample reports and their images in TensorBoard, figures in Weights & Biases.

Both packages are optional extras.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from radweave.core.extras import refuse_without
from radweave.engine.loop import Watch

if TYPE_CHECKING:
    from radweave.engine.stages import Sample

BoardKind = Literal["tensorboard", "wandb"]
BOARDS: tuple[BoardKind, ...] = ("tensorboard", "wandb")


class Board(Protocol):
    """A receiver of figures and sample reports."""

    def figures(self, stage: str, step: int, figures: Mapping[str, float | None]) -> None:
        """Add the numbers of one update or validation; None is skipped."""
        ...

    def reports(self, stage: str, step: int, samples: Sequence[Sample]) -> None:
        """Add drafts with their reference reports and images."""
        ...

    def write_below(self, folder: Path) -> None:
        """Set the folder to write below, before the first figure."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


def open_board(kind: BoardKind, folder: Path) -> Board:
    """A board that writes below the run folder.

    Raises:
        InputError: if its package is not installed.
    """
    return TensorBoard(folder / "tensorboard") if kind == "tensorboard" else WandbBoard(folder)


class TensorBoard:
    """Event files in ``folder``, one run per stage, opened with the first figure; repeated steps replace older ones."""

    def __init__(self, folder: Path) -> None:
        _needed("tensorboard")
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._shown: set[str] = set()
        """Stages whose images were added: they stay the same."""

    def write_below(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"

    def figures(self, stage: str, step: int, figures: Mapping[str, float | None]) -> None:
        for name, value in figures.items():
            if value is not None:
                self._writer(stage, step).add_scalar(name, value, step)

    def reports(self, stage: str, step: int, samples: Sequence[Sample]) -> None:
        writer = self._writer(stage, step)
        for number, sample in enumerate(samples, start=1):
            writer.add_text(f"sample {number}", f"**draft**\n\n{sample.draft}\n\n**report**\n\n{sample.report}", step)
            if stage not in self._shown:
                writer.add_image(f"image {number}", sample.image, step, dataformats="HW")
        self._shown.add(stage)
        writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, stage: str, step: int) -> Any:
        if stage not in self._writers:
            module = import_module("torch.utils.tensorboard")
            self._writers[stage] = module.SummaryWriter(str(self._folder / stage), purge_step=step)
        return self._writers[stage]


class WandbBoard:
    """A Weights & Biases run, opened with the first figure. Figures only: texts and images stay on this machine."""

    def __init__(self, folder: Path) -> None:
        self._wandb = _needed("wandb")
        self._name, self._folder = folder.name, folder
        self._run: Any = None

    def write_below(self, folder: Path) -> None:
        self._folder = folder

    def figures(self, stage: str, step: int, figures: Mapping[str, float | None]) -> None:
        if self._run is None:
            self._run = self._wandb.init(project="radweave", name=self._name, dir=str(self._folder))
        known = {f"{stage}/{name}": value for name, value in figures.items() if value is not None}
        # Each stage counts from 1, and a wandb run must not go back: the step is a figure of its own.
        self._run.log({f"{stage}/step": step, **known})

    def reports(self, stage: str, step: int, samples: Sequence[Sample]) -> None:
        pass

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


def watched(watch: Watch, board: Board, stage: str) -> Watch:
    """The watch, with figures to the board as well."""
    last = [0]

    def step(number: int, total: int, figures: dict[str, float]) -> None:
        last[0] = number
        board.figures(stage, number, figures)
        watch.step(number, total, figures)

    def epoch(number: int, figures: dict[str, float | None]) -> None:
        board.figures(stage, last[0], {f"validation {name}": value for name, value in figures.items()})
        watch.epoch(number, figures)

    return replace(watch, step=step, epoch=epoch)


def _needed(package: BoardKind) -> Any:
    refuse_without(package, f"the board {package}", field="--log", got=package)
    return import_module(package)
