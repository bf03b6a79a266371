"""Options that several verbs take: the same name, the same bounds, the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import InputError
from radweave.base.study import SPLITS, Split
from radweave.cli.bounds import MAX_BATCH, MAX_JOBS, MAX_STUDIES

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
