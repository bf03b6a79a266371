"""The verbs demo, methods, train and generate."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from radweave.base.errors import InputError, printable
from radweave.base.json_files import json_text
from radweave.base.places import refuse_existing
from radweave.base.study import RESEARCH_ONLY, SPLITS
from radweave.cli.bounds import MAX_BATCH, MAX_JOBS, MAX_SEED, MAX_STUDIES
from radweave.cli.resuming import resumable

Out = Annotated[Path, typer.Option("--out", help="Where to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


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


def generate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    images: Annotated[list[Path] | None, typer.Argument(help="Image files or folders.", metavar="[IMAGE ...]")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="A dataset folder instead of images.")] = None,
    split: Annotated[str, typer.Option(help="Split of the dataset.")] = "test",
    out: Annotated[
        Path | None, typer.Option("--out", help="predictions.jsonl of a dataset; .jsonl, .txt or .csv for images.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with evidence.")] = False,
    one_study: Annotated[bool, typer.Option("--one-study", help="All images are views of one study.")] = False,
    view: Annotated[
        list[str] | None,
        typer.Option("--view", help="frontal, lateral, pa or ap: once for all images, or once for each, in order."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Report on a doubtful image, or one of another kind.")] = False,
    untrained: Annotated[bool, typer.Option("--untrained", help="Let an untrained run report.")] = False,
    batch_size: Annotated[int, typer.Option(help="Studies per batch.", min=1, max=MAX_BATCH)] = 16,
    shard_size: Annotated[
        int, typer.Option(help="Studies per shard; finished shards are kept.", min=1, max=MAX_STUDIES)
    ] = 256,
    ray: Annotated[
        int, typer.Option(help="Workers of a Ray cluster, for a dataset (extra 'ray').", min=0, max=MAX_JOBS)
    ] = 0,
    decoding: Annotated[list[str] | None, typer.Option("--set", help="Decoding option, key=value.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write reports: for image files, or for a split of a dataset folder."""
    if (data is None) == (not images):
        raise InputError("give image files, or --data with a dataset folder")
    if data is not None and out is None:
        raise InputError("--data needs --out for the predictions", field="--out")
    if split not in SPLITS:
        raise InputError("no such split", field="--split", got=split, expected=f"one of {', '.join(SPLITS)}")
    if out is not None and out.exists():
        from radweave.generate.draft_file import DRAFTS

        refuse_existing(out, overwrite=overwrite, ours=DRAFTS)
    if data is not None and view:
        raise InputError("a dataset states the views of its images", field="--view")
    if images and out is not None:
        from radweave.generate.draft_file import refuse_other_kind

        refuse_other_kind(out)
    from radweave.generate.predictor import Predictor
    from radweave.generate.views import stated_view
    from radweave.runs.restore import restore

    views = [stated_view(text) for text in view or []]
    restored = restore(run)
    predictor = Predictor.of(restored, untrained=untrained, decoding=decoding or [])
    if data is not None and out is not None:
        sizes = {"batch_size": batch_size, "shard_size": shard_size, "ray_workers": ray}
        _generate_split(restored, predictor, data, split, out, sizes, overwrite)
    else:
        from radweave.generate.draft_file import DRAFTS
        from radweave.generate.files import group_images
        from radweave.generate.shards import held
        from radweave.train.distributed import Ranks

        groups = group_images(images or [], one_study=one_study, modality=predictor.modality, views=views)
        with held(out, Ranks(), overwrite=overwrite, ours=DRAFTS) if out is not None else nullcontext():
            _generate_files(predictor, groups, out, as_json=as_json, force=force)


def _generate_split(
    run: Any, predictor: Any, data: Path, split: str, out: Path, sizes: dict[str, int], overwrite: bool
) -> None:
    from radweave.cli.progress import bar, console
    from radweave.generate.split import generate_split
    from radweave.train.distributed import joined_ranks

    with (
        resumable("the same command goes on, finished shards are kept"),
        joined_ranks() as ranks,
        bar("reading images") as images,
        bar("reports") as progress,
    ):
        result = generate_split(
            run,
            predictor,
            data,
            split,  # type: ignore[arg-type]
            out,
            **sizes,
            overwrite=overwrite,
            images=images if ranks.is_first else None,
            progress=progress,
            ranks=ranks,
        )
    if not ranks.is_first:
        return
    console.print(f"{result.written} reports: {printable(out)}")
    for study_id, reason in result.left_out.items():
        console.print(f"left out {printable(study_id)}: {printable(reason)}", style="yellow")
    if result.left_out:
        console.print(f"{len(result.left_out)} studies left out", style="yellow")
    if result.unlike:
        console.print(f"{result.unlike} studies do not look like those the run was trained on", style="yellow")
    if result.compared:
        console.print(
            f"{result.compared} sentences compared with a study that was not given: taken out", style="yellow"
        )


def _generate_files(predictor: Any, groups: Sequence[Any], out: Path | None, *, as_json: bool, force: bool) -> None:
    from radweave.generate.draft_file import draft_row, write_drafts
    from radweave.generate.files import FileGroup, generate_files

    refused = 0
    rows: list[dict[str, Any]] = []
    for result in generate_files(predictor, groups, force=force):
        rows.append(draft_row(result))
        if isinstance(result, FileGroup):
            refused += 1
            print(f"error: {result.refused}", file=sys.stderr)
            continue
        if not as_json:
            if out is None:
                typer.echo(f"{result.study_id}\n{result.text}\n")
            for warning in result.warnings:
                typer.echo(f"warning: {warning}", err=True)
    if out is not None and refused < len(rows):
        write_drafts(out, rows)
        typer.echo(f"{len(rows) - refused} reports: {out}", err=True)
    if as_json:
        typer.echo(json_text(rows), nl=False)
    elif refused < len(rows):
        typer.echo(RESEARCH_ONLY, err=True)
    if refused:
        if len(rows) > 1:
            print(f"{refused} of {len(rows)} studies were refused", file=sys.stderr)
        raise typer.Exit(2)
