"""``radweave train``, ``config``, ``methods`` and ``demo``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.cli.options import MAX_SEED, MAX_STUDIES, ConfigFile, Epochs, Out, Overrides, Overwrite, Preset, resumable
from radweave.core.errors import InputError, printable
from radweave.core.study import RESEARCH_ONLY

if TYPE_CHECKING:
    from radweave.engine.run_directory import Started

Limit = Annotated[
    int | None, typer.Option("--limit", help="Studies of each split, for a quick try.", min=1, max=MAX_STUDIES)
]


def train(
    method: Annotated[str, typer.Argument(help="A method; see 'radweave methods'. With --resume, a run folder.")],
    dataset: Annotated[Path | None, typer.Argument(help="A dataset folder.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder to write.")] = None,
    preset: Preset = "tiny",
    config: ConfigFile = None,
    epochs: Epochs = None,
    limit: Limit = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint: 'train --resume RUN', or as it began.")
    ] = False,
    start: Annotated[
        Path | None, typer.Option("--from", help="A run whose weights the parts that fit start from.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say what would be trained, and write nothing.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps; a CUDA device if there is one.")] = None,
    parallel: Annotated[str, typer.Option(help="Under torchrun: ddp, or fsdp to shard the model.")] = "ddp",
    log: Annotated[str | None, typer.Option(help="Show the training in tensorboard or wandb as well.")] = None,
) -> None:
    """Train a method on a dataset folder and write a run folder.

    Try first: --dry-run checks everything and says what trains and what memory it takes, --limit 200 --epochs 1 trains
    for moments. A run that was stopped goes on with 'radweave train --resume RUN'; a finished one gets longer with
    'radweave train --resume RUN stages.report.epochs=20'. Weights of others:
    model.vision_encoder=transformers model.vision_encoder.path=FOLDER.
    """
    from radweave.cli.estimate import show_dry_run
    from radweave.cli.options import console, next_step, training_watch
    from radweave.core.devices import use_device
    from radweave.data.dataset import Dataset
    from radweave.engine.board import open_board
    from radweave.engine.plan import refuse_idle_epochs
    from radweave.engine.run_directory import read_started
    from radweave.engine.train import train as train_run
    from radweave.methods import resolve

    _refuse_unknown_choices(parallel, log)
    if device is not None:
        use_device(device)
    short = () if limit is None else (f"data.limit={limit}",)
    if resume and dataset is not None and "=" in dataset.name and not dataset.exists():
        dataset, overrides = None, [str(dataset), *(overrides or ())]
    if resume and dataset is None:
        if short or epochs or config or out or start:
            raise InputError("goes on with the options it began with; give none but longer stages", field="--resume")
        started = read_started(Path(method))
        started = replace(started, overrides=(*started.overrides, *(overrides or ())))
    else:
        passes = _epochs_of_all_stages(method, preset, epochs) if epochs else ()
        started = _new_run(method, dataset, out, preset, (*passes, *short, *(overrides or ())), config, dry_run)
        started = replace(started, start=start)
        if any(".epochs=" in one for one in overrides or ()):  # typed here: a benchmark's configuration may have them
            refuse_idle_epochs(resolve(method, preset, started.overrides, config))
    if dry_run:
        show_dry_run(started, started.out if dataset is None else out, overwrite=overwrite, resume=resume)
        return
    is_first = os.environ.get("RANK", "0") == "0"
    board = open_board(log, started.out) if log is not None and is_first else None  # type: ignore[arg-type]
    advice = f"go on with 'radweave train --resume {printable(started.out)}'"
    with resumable(advice), training_watch(board) as watch:
        run = train_run(
            started.method, started.dataset, started.out, preset=started.preset, overrides=started.overrides,
            config=started.config, overwrite=overwrite, resume=resume, parallel=parallel, watch=watch,  # type: ignore[arg-type]
            start=started.start,
        )  # fmt: skip
    if is_first:
        console.print(f"run folder: {printable(run)}")
        split = "test" if Dataset.open(started.dataset).card.counts.get("studies_test") else "val"
        next_step("generate", run, "--data", started.dataset, "--split", split, "--out", "drafts.jsonl")
        next_step("serve", run)


def _refuse_unknown_choices(parallel: str, log: str | None) -> None:
    from radweave.engine.board import BOARDS

    if parallel not in ("ddp", "fsdp"):
        raise InputError("no such way", field="--parallel", got=parallel, expected="ddp or fsdp")
    if log is not None and log not in BOARDS:
        raise InputError("no such board", field="--log", got=log, expected=f"one of {', '.join(BOARDS)}")


def _new_run(
    method: str,
    dataset: Path | None,
    out: Path | None,
    preset: str,
    overrides: Sequence[str],
    config: Path | None,
    dry_run: bool,
) -> Started:
    from radweave.engine.run_directory import Started

    if dataset is None:
        raise InputError("which data set? give its folder behind the method", field="DATASET")
    if out is None and not dry_run:
        raise InputError("where to? give a folder", field="--out")
    return Started(method, dataset, out or Path("run"), preset, tuple(overrides), config)


def _epochs_of_all_stages(method: str, preset: str, epochs: int) -> Sequence[str]:
    """Overrides of the epochs of every stage that trains in the preset.

    Raises:
        InputError: if none does.
    """
    from radweave.methods import resolve

    stages = [name for name, stage in resolve(method, preset, ()).named_stages().items() if stage.epochs]
    if not stages:
        raise InputError("no stage of this method trains", field="--epochs", got=epochs)
    return [f"stages.{name}.epochs={epochs}" for name in stages]


def config(
    method: Annotated[str | None, typer.Argument(help="A method; see 'radweave methods'.")] = None,
    overrides: Overrides = None,
    preset: Preset = "tiny",
    file: ConfigFile = None,
    fields: Annotated[
        bool, typer.Option("--reference", help="Print all fields of all methods instead, as Markdown.")
    ] = False,
) -> None:
    """Print the resolved configuration as YAML, with what each component is and each field's default.

    What is printed is a file for 'radweave train --config FILE'.
    """
    from radweave.core.config import explained_yaml, read_yaml
    from radweave.methods import resolve
    from radweave.methods.reference import all_fields

    if fields:
        if method or overrides or file:
            raise InputError("is about all methods; give no other argument", field="--reference")
        typer.echo(all_fields(), nl=False)
        return
    if method is None and file is not None:
        method = read_yaml(file).get("method")
    if method is None:
        raise InputError("which method? see 'radweave methods'", field="METHOD")
    typer.echo(explained_yaml(resolve(method, preset, overrides or (), file)), nl=False)


def methods() -> None:
    """List the methods."""
    from radweave.cli.options import next_step
    from radweave.methods import method_names, method_summary

    for name in method_names():
        try:
            typer.echo(f"{name:14} {method_summary(name)}")
        except InputError as error:  # a package that names no module
            typer.echo(f"{name:14} {error}")
    next_step("train", "METHOD", "DATASET", "--out", "RUN")


def demo(
    out: Out = Path("demo"),
    overwrite: Overwrite = False,
    studies: Annotated[int, typer.Option(help="Phantom studies to make.", min=40, max=MAX_STUDIES)] = 400,
    seed: Annotated[int, typer.Option(help="Seed of everything.", min=0, max=MAX_SEED)] = 0,
    overrides: Overrides = None,
) -> None:
    """Make phantom radiographs, train on them, report on unseen ones, and show the result as a page."""
    from radweave.cli.demo import DemoWatch, run_demo
    from radweave.cli.options import bar, console, next_step, training_watch
    from radweave.core.devices import usable_cores

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
    next_step("serve", page.parent / "run")
