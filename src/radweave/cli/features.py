"""``radweave features``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import printable
from radweave.cli.options import BatchSize, Overwrite, RayWorkers, RunFolder, ShardSize, SplitName, known_split


def features(
    run: RunFolder,
    data: Annotated[Path, typer.Option("--data", help="A dataset folder.")],
    out: Annotated[Path, typer.Option("--out", help="The bank's folder.")],
    split: SplitName = "train",
    batch_size: BatchSize = 32,
    shard_size: ShardSize = 1024,
    ray: RayWorkers = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a bank of image features: one vector per study under a run's vision encoder."""
    whole = known_split(split)
    from radweave.cli.progress import bulk, console
    from radweave.generate.features import build_feature_bank
    from radweave.runs.restore import restore

    with bulk("shards") as (ranks, images, progress):
        bank = build_feature_bank(
            restore(run), data, whole, out, batch_size=batch_size, shard_size=shard_size, overwrite=overwrite,
            ranks=ranks, ray_workers=ray, images=images, progress=progress,
        )  # fmt: skip
    if ranks.is_first:
        console.print(f"{len(bank)} studies, {bank.tensors['features'].shape[1]} values each: {printable(out)}")
