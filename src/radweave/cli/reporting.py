"""The verbs demo, methods and train."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import InputError, printable
from radweave.base.study import RESEARCH_ONLY
from radweave.cli.bounds import MAX_SEED, MAX_STUDIES
from radweave.cli.options import Out, Overwrite
from radweave.cli.resuming import resumable


def methods() -> None:
    """List the methods."""
    from radweave.methods import method_names, method_summary

    for name in method_names():
        typer.echo(f"{name:14} {method_summary(name)}")


def demo(
    out: Out = Path("demo"),
    overwrite: Overwrite = False,
    studies: Annotated[int, typer.Option(help="Phantom studies to make.", min=40, max=MAX_STUDIES)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of everything.", min=0, max=MAX_SEED)] = 0,
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value ...", metavar="[key=value ...]")] = None,
) -> None:
    """Make phantom radiographs, train on them, report on unseen ones, and show the result as a page."""
    from radweave.base.cores import usable_cores
    from radweave.cli.progress import bar, console, training_watch
    from radweave.demo import DemoWatch, run_demo

    watch = DemoWatch(bar=bar, training=training_watch, say=console.print)
    page = run_demo(
        out,
        num_studies=studies,
        seed=seed,
        overwrite=overwrite,
        overrides=overrides or [],
        watch=watch,
        jobs=usable_cores(),
    )
    console.print(f"\nReport page: {printable(page)}\n{RESEARCH_ONLY}")


def train(
    method: Annotated[str, typer.Argument(help="A method; see 'radweave methods'.")],
    dataset: Annotated[Path, typer.Argument(help="A dataset folder.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value ...", metavar="[key=value ...]")] = None,
    out: Out = ...,  # type: ignore[assignment]
    preset: Annotated[str, typer.Option(help="tiny, small or paper; a method may have more.")] = "tiny",
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    parallel: Annotated[str, typer.Option(help="Under torchrun: ddp, or fsdp to shard the model.")] = "ddp",
    log: Annotated[str | None, typer.Option(help="Show the training in tensorboard or wandb as well.")] = None,
) -> None:
    """Train a method on a dataset folder and write a run folder."""
    if parallel not in ("ddp", "fsdp"):
        raise InputError("no such way", field="--parallel", got=parallel, expected="ddp or fsdp")
    from radweave.cli.progress import console, training_watch
    from radweave.runs.train import train as train_run
    from radweave.train.board import BOARDS, open_board

    if log is not None and log not in BOARDS:
        raise InputError("no such board", field="--log", got=log, expected=f"one of {', '.join(BOARDS)}")
    is_first = os.environ.get("RANK", "0") == "0"
    board = open_board(log, out) if log is not None and is_first else None
    with resumable("go on with --resume and the same options"), training_watch(board) as watch:
        run = train_run(
            method,
            dataset,
            out,
            preset=preset,
            overrides=overrides or [],
            overwrite=overwrite,
            resume=resume,
            parallel=parallel,  # type: ignore[arg-type]
            watch=watch,
        )
    if os.environ.get("RANK", "0") == "0":
        console.print(f"run folder: {printable(run)}")
