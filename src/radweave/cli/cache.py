"""``radweave data cache``: decode the images of a data set as a training will want them, in parts if need be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import printable
from radweave.cli.options import FIELDS_TO_CHANGE
from radweave.cli.resuming import resumable


def cache(
    method: Annotated[str, typer.Argument(help="A method; see 'radweave methods'.")],
    dataset: Annotated[Path, typer.Argument(help="A dataset folder.")],
    overrides: Annotated[list[str] | None, typer.Argument(help=FIELDS_TO_CHANGE, metavar="[key=value ...]")] = None,
    preset: Annotated[str, typer.Option(help="tiny, small or paper; a method may have more.")] = "tiny",
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML of what differs from the preset; a run's config.yaml will do.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only this part, for N processes or machines that share a disk.")
    ] = None,
) -> None:
    """Decode into the data set's cache the images that the training with the same options would.

    A job that was stopped goes on. With --part 1/8 to 8/8, eight processes on any machines make a part each; the same
    line without --part then puts them together.
    """
    from radweave.cli.progress import bar, console
    from radweave.data.cache.images import build_cache, build_part
    from radweave.data.cache.parts import Part
    from radweave.data.dataset import Dataset
    from radweave.methods import resolve

    chosen = None if part is None else Part.of(part)
    data = resolve(method, preset, overrides or (), config).data
    # As ``radweave.runs.train`` opens it: the limit is part of the cache's key.
    opened = Dataset.open(dataset, limit=data.limit).aimed(data.target)
    advice = "the same command goes on where it was"
    with resumable(advice), bar("reading images") as progress:
        if chosen is None:
            made = build_cache(opened, size=data.image_size, ct=data.ct, progress=progress, note=console.print)
            images, unreadable = len(made.rows) + len(made.unreadable), made.unreadable
        else:
            own = build_part(opened, chosen, size=data.image_size, ct=data.ct, progress=progress)
            images, unreadable = own.images, own.unreadable
            if not own.is_needed:
                typer.echo(f"{printable(dataset)}: the cache is whole already")
                return
    typer.echo(f"{printable(dataset)}: {images} images" + (f" in part {part}" if part else " in the cache"))
    reasons = list(unreadable.values())
    for reason in dict.fromkeys(reasons):
        typer.echo(f"  cannot be read: {reasons.count(reason)} x {printable(reason)}")
