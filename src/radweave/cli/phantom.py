"""``radweave phantom``: write a synthetic data set with known truth."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import InputError, printable
from radweave.cli.bounds import MAX_JOBS, MAX_SEED, MAX_STUDIES


class ModalityName(StrEnum):
    """Kind of image to draw."""

    xray = "xray"
    ct = "ct"


class PrevalenceName(StrEnum):
    """How often each disease occurs."""

    long_tail = "long-tail"
    balanced = "balanced"
    normal = "normal"


def phantom(
    folder: Annotated[Path | None, typer.Argument(help="The same as --out.", metavar="[OUT]")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Dataset folder to write.")] = None,
    modality: Annotated[ModalityName, typer.Option(help="Radiographs or CT volumes.")] = ModalityName.xray,
    studies: Annotated[int, typer.Option(min=1, max=MAX_STUDIES, help="Number of studies.")] = 200,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="The same seed gives the same files.")] = 0,
    prevalence: Annotated[PrevalenceName, typer.Option(help="How often diseases occur.")] = PrevalenceName.long_tail,
    image_size: Annotated[int, typer.Option(min=32, max=2048, help="Edge of a radiograph in pixels.")] = 256,
    volume_size: Annotated[int, typer.Option(min=16, max=512, help="Edge of a CT slice in voxels.")] = 96,
    slices: Annotated[int, typer.Option(min=8, max=512, help="Slices of a CT volume.")] = 48,
    masks: Annotated[bool, typer.Option("--masks", help="Write finding masks and finding-free twins too.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=MAX_JOBS, help="Processes that draw; as many as cores if not given.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
) -> None:
    """Write a synthetic chest data set with reports, labels and the truth behind them."""
    from radweave.base.cores import usable_cores
    from radweave.cli.progress import bar
    from radweave.phantom.dataset import write_phantom_dataset
    from radweave.phantom.study import PhantomOptions

    if (folder is None) == (out is None):
        raise InputError("where to? give one folder", field="--out", got="none" if out is None else "two")
    place = out or folder
    assert place is not None
    options = PhantomOptions.model_validate(
        {
            "prevalence": prevalence.value,
            "image_size": image_size,
            "volume_size": volume_size,
            "slices": slices,
            "masks": masks,
        }
    )
    with bar("drawing studies") as progress:
        dataset = write_phantom_dataset(
            place,
            modality=modality.value,
            num_studies=studies,
            seed=seed,
            options=options,
            overwrite=overwrite,
            progress=progress,
            jobs=jobs or usable_cores(),
        )
    counts = ", ".join(f"{name.removeprefix('studies_')} {n}" for name, n in sorted(dataset.card.counts.items()))
    typer.echo(f"{printable(place)}: {counts}")
