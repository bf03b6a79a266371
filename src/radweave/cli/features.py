"""The verb features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import InputError, printable
from radweave.base.study import SPLITS
from radweave.cli.bounds import MAX_BATCH, MAX_JOBS, MAX_STUDIES
from radweave.cli.resuming import resumable


def features(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[Path, typer.Option("--data", help="A dataset folder.")],
    out: Annotated[Path, typer.Option("--out", help="The bank's folder.")],
    split: Annotated[str, typer.Option(help="Split of the dataset.")] = "train",
    batch_size: Annotated[int, typer.Option(help="Studies per batch.", min=1, max=MAX_BATCH)] = 32,
    shard_size: Annotated[
        int, typer.Option(help="Studies per shard; finished shards are kept.", min=1, max=MAX_STUDIES)
    ] = 1024,
    ray: Annotated[int, typer.Option(help="Workers of a Ray cluster (extra 'ray').", min=0, max=MAX_JOBS)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write a bank of image features: one vector per study under a run's vision encoder."""
    if split not in SPLITS:
        raise InputError("no such split", field="--split", got=split, expected=f"one of {', '.join(SPLITS)}")
    from radweave.cli.progress import bar, console
    from radweave.generate.features import build_feature_bank
    from radweave.runs.restore import restore
    from radweave.train.distributed import joined_ranks

    with (
        resumable("the same command goes on, finished shards are kept"),
        joined_ranks() as ranks,
        bar("reading images") as images,
        bar("shards") as progress,
    ):
        bank = build_feature_bank(
            restore(run),
            data,
            split,
            out,
            batch_size=batch_size,
            shard_size=shard_size,
            overwrite=overwrite,
            ranks=ranks,
            ray_workers=ray,
            images=images if ranks.is_first else None,
            progress=progress,
        )
    if ranks.is_first:
        console.print(f"{len(bank)} studies, {bank.tensors['features'].shape[1]} values each: {printable(out)}")
