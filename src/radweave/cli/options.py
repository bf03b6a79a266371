"""Options that several verbs take: the same name, the same bounds, the same words."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from radweave.core.errors import InputError
from radweave.core.escaping import plain_console
from radweave.core.stopping import StoppedError
from radweave.core.study import SPLITS, Split

if TYPE_CHECKING:
    from radweave.engine.board import Board
    from radweave.engine.distributed import Ranks
    from radweave.engine.loop import Watch
    from radweave.engine.stages import TrainingWatch

# The largest numbers that options take. A test holds that each number has bounds.


MAX_SEED: Final = 2**32 - 1
"""The largest that all generators of random numbers take."""
MAX_RESAMPLES: Final = 100_000
"""Intervals and p-values change in the fourth digit by then; a resample of 600 studies takes some milliseconds."""
MAX_STUDIES: Final = 10_000_000
MAX_BATCH: Final = 65_536
MAX_JOBS: Final = 1024
MAX_SEEDS: Final = 1000
MAX_EPOCHS: Final = 1_000_000


FIELDS_TO_CHANGE = "Fields to change, as seed=3 or model.vision_encoder=swin; 'radweave config' shows them all."
RunFolder = Annotated[Path, typer.Argument(help="A run folder.")]
Out = Annotated[Path, typer.Option("--out", help="Where to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
DataInstead = Annotated[Path | None, typer.Option("--data", help="A dataset folder instead of images.")]
SplitName = Annotated[str, typer.Option("--split", help="Split of the dataset.")]
Force = Annotated[bool, typer.Option("--force", help="Report on a doubtful image, or one of another kind.")]
Untrained = Annotated[bool, typer.Option("--untrained", help="Let an untrained run report.")]
Decoding = Annotated[list[str] | None, typer.Option("--set", help="Decoding option, key=value.")]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Studies per batch.", min=1, max=MAX_BATCH)]
ShardSize = Annotated[
    int,
    typer.Option("--shard-size", help="Studies per shard; finished shards are kept.", min=1, max=MAX_STUDIES),
]
RayWorkers = Annotated[
    int, typer.Option("--ray", help="Workers of a Ray cluster, for a dataset (extra 'ray').", min=0, max=MAX_JOBS)
]


def known_split(name: str) -> Split:
    """The split of this name.

    Raises:
        InputError: naming those that there are.
    """
    if name not in SPLITS:
        raise InputError("no such split", field="--split", got=name, expected=f"one of {', '.join(SPLITS)}")
    return name


# Verbs that can go on where they were stopped say how, and end with the signal's exit code.


@contextmanager
def resumable(advice: str) -> Iterator[None]:
    """Turn a stop into one line with ``advice`` on stderr, and into exit code 143 (SIGTERM) or 130 (SIGINT).

    Whatever stands behind ``&&`` in a shell is then not done. Of several ranks the first one speaks.
    """
    try:
        yield
    except StoppedError as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"{stop}; {advice}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None


# Progress and what is printed while training: bars on a terminal, else lines. All on stderr: stdout is for results.


# Names from files are printed with it: square brackets mean themselves.
console = plain_console(stderr=True)


LINE_EVERY_S = 30.0
"""Between two lines about one task where there is no terminal: a log of hours stays one that is read."""


class Bars:
    """Bars that are drawn once there is something to show: an early error then stands alone on its line.

    Where there is no terminal, a line each at the beginning, now and then, and at the end of a task.
    """

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def update(self, description: str, done: int, total: int | None, figures: str = "") -> None:
        """Show the task, or move it."""
        if not console.is_terminal:
            self._say(description, done, total, figures)
            return
        if description not in self._tasks:
            self._progress.start()
            self._tasks[description] = self._progress.add_task(description, total=total, figures=figures)
        self._progress.update(self._tasks[description], completed=done, total=total, figures=figures)

    def _say(self, description: str, done: int, total: int | None, figures: str) -> None:
        now = time.monotonic()
        if description in self._said:
            last, before = self._said[description]
            if done == before or (now - last < LINE_EVERY_S and done != total):
                return
        self._said[description] = now, done
        text = f"{description}: {done}" + (f" of {total} ({100 * done // total} %)" if total else "")
        console.print(f"{text}  {figures}".rstrip())

    def stop(self) -> None:
        if self._tasks:
            self._progress.stop()


@contextmanager
def bar(description: str) -> Iterator[Callable[[int, int | None], None]]:
    """One bar that appears with its first ``(done, total)``; the total may be unknown."""
    bars = Bars()
    try:
        yield lambda done, total: bars.update(description, done, total)
    finally:
        bars.stop()


@contextmanager
def bulk(of: str) -> Iterator[tuple[Ranks, Callable[[int, int], None] | None, Callable[[int, int], None]]]:
    """Bulk work that can be stopped: the processes that share it, a bar for reading images and one for what is made."""
    from radweave.engine.distributed import joined_ranks

    advice = "the same command goes on, finished shards are kept"
    with resumable(advice), joined_ranks() as ranks, bar("reading images") as images, bar(of) as progress:
        yield ranks, images if ranks.is_first else None, progress


@contextmanager
def training_watch(board: Board | None = None) -> Iterator[TrainingWatch]:
    """Bars for the stages with loss and studies per second, a line per epoch; a board is told the same."""
    from radweave.engine.board import watched
    from radweave.engine.loop import Watch
    from radweave.engine.stages import TrainingWatch

    bars = Bars()

    def stage(name: str) -> Watch:
        length = {"epochs": 0, "updates": 1}

        def began(epochs: int, updates: int) -> None:
            length.update(epochs=epochs, updates=updates)

        def step(number: int, total: int, figures: dict[str, float]) -> None:
            epoch = -(-number // length["updates"])
            text = f"epoch {epoch} of {length['epochs']}  loss {figures['loss']:.3f}"
            bars.update(f"stage {name}", number, total, f"{text}  {figures['studies_per_s']:.0f} studies/s")

        def epoch(number: int, figures: dict[str, float | None]) -> None:
            text = "  ".join(f"{key} {'-' if value is None else f'{value:.4f}'}" for key, value in figures.items())
            place = f"stage {name}, epoch {number + 1} of {length['epochs']}"
            console.print(f"{place}: validation {text}")

        watch = Watch(began=began, step=step, epoch=epoch)
        return watch if board is None else watched(watch, board, name)

    try:
        yield TrainingWatch(
            images=lambda done, total: bars.update("reading images", done, total),
            features=lambda done, total: bars.update("features of the frozen encoder", done, total),
            stage=stage,
            note=lambda text: console.print(text, style="yellow"),
            began=lambda folder: None if board is None else board.write_below(folder),
            samples=None if board is None else board.reports,
        )
    finally:
        bars.stop()
        if board is not None:
            board.close()
