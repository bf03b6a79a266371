"""Progress bars and what is printed while training. All of it goes to stderr: stdout is for results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from radweave.runs import TrainingWatch
from radweave.train.loop import Watch

console = Console(stderr=True, highlight=False)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=console,
        transient=False,
    )


@contextmanager
def bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that appears with its first ``(done, total)``."""
    progress = _progress()
    started = False

    def update(done: int, total: int) -> None:
        nonlocal started
        if not started:
            progress.start()
            progress.add_task(description, total=total, figures="")
            started = True
        progress.update(progress.task_ids[0], completed=done, total=total)

    try:
        yield update
    finally:
        if started:
            progress.stop()


@contextmanager
def training_watch() -> Iterator[TrainingWatch]:
    """Bars for the stages with loss and studies per second, a line per epoch."""
    with _progress() as progress, bar_in(progress, "reading images") as images:

        def stage(name: str) -> Watch:
            task = progress.add_task(f"stage {name}", total=None, figures="")

            def step(number: int, total: int, figures: dict[str, float]) -> None:
                text = f"loss {figures['loss']:.3f}  {figures['studies_per_s']:.0f} studies/s"
                progress.update(task, completed=number, total=total, figures=text)

            def epoch(number: int, figures: dict[str, float | None]) -> None:
                text = "  ".join(f"{key} {'-' if value is None else f'{value:.4f}'}" for key, value in figures.items())
                console.print(f"epoch {number + 1}: validation {text}")

            return Watch(step=step, epoch=epoch)

        yield TrainingWatch(images=images, stage=stage, note=lambda text: console.print(text, style="yellow"))


@contextmanager
def bar_in(progress: Progress, description: str) -> Iterator[Callable[[int, int], None]]:
    """A task of a bar that is already shown; it appears with its first update."""
    task = progress.add_task(description, total=None, figures="", visible=False)
    yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)
