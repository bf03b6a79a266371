"""Options of several verbs, resumable work, and progress output."""

from __future__ import annotations

import gc
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from radweave.core.errors import InputError, printable
from radweave.core.escaping import plain_console
from radweave.core.stopping import StoppedError
from radweave.core.study import SPLITS, Split

if TYPE_CHECKING:
    from radweave.engine.board import Board
    from radweave.engine.distributed import Ranks
    from radweave.engine.loop import Watch
    from radweave.engine.stages import TrainingWatch

# Bounds of numeric options. A test checks that each number has bounds.
MAX_SEED: Final = 2**32 - 1
"""The largest seed of all random generators."""
MAX_RESAMPLES: Final = 100_000
"""At this number intervals and p-values vary in the fourth digit; a resample of 600 studies takes milliseconds."""
MAX_STUDIES: Final = 10_000_000
MAX_BATCH: Final = 65_536
MAX_JOBS: Final = 1024
MAX_SEEDS: Final = 1000
MAX_EPOCHS: Final = 1_000_000

FIELDS_TO_CHANGE = "Fields to change, as seed=3 or model.vision_encoder=swin; 'radweave config' shows them all."
Overrides = Annotated[list[str] | None, typer.Argument(help=FIELDS_TO_CHANGE, metavar="[key=value ...]")]
Preset = Annotated[str, typer.Option(help="tiny, small or paper; a method may have more.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="YAML of what differs from the preset; a run's config.yaml will do.")
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", help="Passes of every stage that trains.", min=1, max=MAX_EPOCHS)
]
RunFolder = Annotated[Path, typer.Argument(help="A run folder.")]
Out = Annotated[Path, typer.Option("--out", help="Where to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
AllowRemote = Annotated[
    bool, typer.Option("--allow-remote", help="Let the endpoint be on another machine, so that reports leave this one.")
]
DataInstead = Annotated[Path | None, typer.Option("--data", help="A dataset folder instead of images.")]
SplitName = Annotated[str, typer.Option("--split", help="Split of the dataset.")]
Force = Annotated[bool, typer.Option("--force", help="Report on a doubtful image, or one of another kind.")]
Untrained = Annotated[bool, typer.Option("--untrained", help="Let an untrained run report.")]
Decoding = Annotated[list[str] | None, typer.Option("--set", help="Decoding option, key=value.")]
OwnDecoder = Annotated[
    bool,
    typer.Option("--own-decoder", help="Draft by the method's own decoder. Default: expected utility, if calibrated."),
]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Studies per batch.", min=1, max=MAX_BATCH)]
ShardSize = Annotated[
    int, typer.Option("--shard-size", help="Studies per shard; finished shards are kept.", min=1, max=MAX_STUDIES)
]
RayWorkers = Annotated[
    int, typer.Option("--ray", help="Workers of a Ray cluster, for a dataset (extra 'ray').", min=0, max=MAX_JOBS)
]


def known_split(name: str) -> Split:
    """The split of this name, by any of the words of data sets.

    Raises:
        InputError: naming the splits.
    """
    from radweave.data.importers.source import split_of

    split = split_of(name)
    if split is None:
        raise InputError("no such split", field="--split", got=name, expected=f"one of {', '.join(SPLITS)}")
    return split


def one_folder(folder: Path | None, out: Path | None) -> Path:
    """The folder to write, given as an argument or by ``--out``.

    Raises:
        InputError: for none, or both.
    """
    if (folder is None) == (out is None):
        raise InputError("where to? give one folder", field="--out", got="none" if out is None else "two")
    place = out or folder
    assert place is not None
    return place


def comma_separated(text: str | None) -> tuple[str, ...]:
    """The names in an option that takes several."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


@contextmanager
def without_collection() -> Iterator[None]:
    """Imports and a restored model without garbage collection, which takes a fifth of their time and finds little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def resumable(advice: str) -> Iterator[None]:
    """Turn a signal into one line with ``advice`` on stderr (of the first rank), and exit code 143 (SIGTERM) or 130."""
    try:
        yield
    except StoppedError as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"{stop}; {advice}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None


console = plain_console(stderr=True)
"""Console of progress and messages; stdout is for results."""
_next_steps_shown: ContextVar[bool] = ContextVar("next_steps_shown", default=True)


def shell_line(words: Iterable[object]) -> str:
    """A command of ``radweave`` as a shell reads it."""
    return printable(shlex.join(("radweave", *map(str, words))))


def next_step(*words: object) -> None:
    """Name a command that goes on from what was made, unless another command goes on by itself."""
    if _next_steps_shown.get():
        console.print(f"next: {shell_line(words)}", soft_wrap=True)


@contextmanager
def without_next_steps() -> Iterator[None]:
    """No ``next_step`` of the commands that run here is shown."""
    token = _next_steps_shown.set(False)
    try:
        yield
    finally:
        _next_steps_shown.reset(token)


LINE_EVERY_S = 30.0
"""Seconds between two lines about one task without a terminal."""


class Bars:
    """Progress bars, drawn at the first update, so that an early error has its own line.

    Without a terminal each task prints a line at its beginning, at intervals and at its end.
    """

    def __init__(self) -> None:
        self._printed: dict[str, tuple[float, int]] = {}
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
        """Show or advance a task."""
        if not console.is_terminal:
            self._print_line(description, done, total, figures)
            return
        if description not in self._tasks:
            self._progress.start()
            self._tasks[description] = self._progress.add_task(description, total=total, figures=figures)
        self._progress.update(self._tasks[description], completed=done, total=total, figures=figures)

    def _print_line(self, description: str, done: int, total: int | None, figures: str) -> None:
        now = time.monotonic()
        if description in self._printed:
            last, before = self._printed[description]
            if done == before or (now - last < LINE_EVERY_S and done != total):
                return
        self._printed[description] = now, done
        text = f"{description}: {done}" + (f" of {total} ({100 * done // total} %)" if total else "")
        console.print(f"{text}  {figures}".rstrip())

    def stop(self) -> None:
        if self._tasks:
            self._progress.stop()


@contextmanager
def bar(description: str) -> Iterator[Callable[[int, int | None], None]]:
    """One bar, shown at its first ``(done, total)``; the total may be unknown."""
    bars = Bars()
    try:
        yield lambda done, total: bars.update(description, done, total)
    finally:
        bars.stop()


@contextmanager
def bulk(unit: str) -> Iterator[tuple[Ranks, Callable[[int, int], None] | None, Callable[[int, int], None]]]:
    """Resumable bulk work: its ranks, a bar for reading images and one for the output."""
    from radweave.engine.distributed import joined_ranks

    advice = "the same command goes on, finished shards are kept"
    with resumable(advice), joined_ranks() as ranks, bar("reading images") as images, bar(unit) as progress:
        yield ranks, images if ranks.is_first else None, progress


@contextmanager
def training_watch(board: Board | None = None) -> Iterator[TrainingWatch]:
    """Bars of the stages with loss and studies per second, and a line per epoch; ``board`` gets the same figures."""
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
            console.print(f"stage {name}, epoch {number + 1} of {length['epochs']}: validation {text}")

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
