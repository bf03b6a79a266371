"""``train --dry-run``: what would be trained, found without reading an image or writing a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from radweave.cli.estimate import print_memory

if TYPE_CHECKING:
    from radweave.runs.started import Started


def show_dry_run(started: Started, to: Path | None, *, overwrite: bool, resume: bool) -> None:
    """Check data set, configuration, every path and the run folder ``to``, then print stages, parameters and memory.

    Raises:
        InputError: as the training would, but for what only images or the numbers of weights tell.
    """
    from radweave.data.dataset import Dataset
    from radweave.estimate import build_on_meta, estimate_of, part_sizes
    from radweave.methods import resolve
    from radweave.runs.place import refuse_place
    from radweave.runs.prepare import refuse_long_reports, refuse_unfit, refuse_untold
    from radweave.runs.resuming import found_by_resume
    from radweave.runs.stages import refuse_impossible_stages
    from radweave.train.sizes import refuse_giant

    experiment = resolve(started.method, started.preset, started.overrides, started.config)
    dataset = Dataset.open(started.dataset, limit=experiment.data.limit).aimed(experiment.data.target)
    if to is not None:
        found = found_by_resume(to, experiment, dataset, overwrite=overwrite) if resume else "other"
        if found != "finished":
            refuse_place(to, overwrite=overwrite, resume=found == "unfinished")
    refuse_unfit(experiment, dataset)
    # One that is learnt from the reports fits the model that is built for it.
    own, words = experiment.language_checkpoint, experiment.data.tokenizer
    brought = own is not None or words.kind == "pretrained"
    texts = (study.report or "" for study in dataset.studies("train"))
    model = build_on_meta(experiment, words.build(texts, own=own) if brought else None)
    if not any(getattr(part, "path", None) for _, part in experiment.model):
        refuse_giant(model)
    refuse_impossible_stages(experiment, model)
    refuse_long_reports(experiment, model)
    refuse_untold(experiment, model)
    studies = {split: sum(1 for _ in dataset.studies(split)) for split in ("train", "val")}
    typer.echo(f"{started.method} on {studies['train']:,} training and {studies['val']:,} validation studies\n")
    for name, stage in experiment.named_stages().items():
        if stage.epochs == 0 or stage.max_steps == 0:
            typer.echo(f"stage {name}: passed over")
            continue
        seen = sum(1 for study in dataset.studies("train") if not stage.mixture or study.origin in stage.mixture)
        steps = stage.epochs * math.ceil(seen / stage.batch_size)
        steps = steps if stage.max_steps is None else min(steps, stage.max_steps)
        sizes = part_sizes(model, stage.finetune)
        trained = [f"{part} {size.trainable:,}" for part, size in sizes.items() if size.trainable]
        frozen = [part for part, size in sizes.items() if not size.trainable]
        typer.echo(f"stage {name}: {stage.epochs} epochs, at most {steps:,} updates of {stage.batch_size} studies")
        typer.echo(f"  trains {', '.join(trained) or 'nothing'}; frozen {', '.join(frozen) or 'nothing'}")
        typer.echo(f"  losses {', '.join(f'{weight:g} {term}' for term, weight in stage.losses.items()) or 'none'}")
    typer.echo("")
    print_memory(estimate_of(experiment))
    typer.echo("\nnothing was read but the manifest, and nothing was written")
