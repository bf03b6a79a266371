"""``radweave estimate``, and ``radweave train --dry-run``."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.cli.options import FIELDS_TO_CHANGE, MAX_BATCH

if TYPE_CHECKING:
    from radweave.engine.estimate import Estimate
    from radweave.engine.run_directory import Started

NAMES = ("weights", "gradients", "optimizer", "activations", "training", "kv_cache", "generation")


def estimate(
    method: Annotated[str, typer.Argument(help="A method; see 'radweave methods'.")],
    overrides: Annotated[list[str] | None, typer.Argument(help=FIELDS_TO_CHANGE, metavar="[key=value ...]")] = None,
    preset: Annotated[str, typer.Option(help="tiny, small or paper; a method may have more.")] = "tiny",
    prompt_tokens: Annotated[
        int, typer.Option(help="Tokens before the report, image included.", min=1, max=MAX_BATCH)
    ] = 128,
    ranks: Annotated[int, typer.Option(help="Processes over which fsdp shards the model.", min=1, max=MAX_BATCH)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: bytes and counts.")] = False,
) -> None:
    """Say how many parameters a method has and how much memory its last stage needs, without building it."""
    from radweave.engine.estimate import estimate as estimate_memory

    memory = estimate_memory(method, preset, overrides or [], prompt_tokens=prompt_tokens, ranks=ranks)
    if as_json:
        totals = {name: getattr(memory, name) for name in ("parameters", "trainable", *NAMES)}
        typer.echo(json.dumps({**dataclasses.asdict(memory), **totals}, indent=2))
        return
    print_memory(memory)


def print_memory(memory: Estimate) -> None:
    """Print parameters by part, memory of their training, and memory of the last stage."""
    for name, part in memory.parts.items():
        typer.echo(
            f"{name:18} {part.parameters:>15,} parameters, {part.trainable:>13,} train, GB: "
            f"{part.weight_bytes / 1e9:.2f} weights, {(part.gradients + part.optimizer) / 1e9:.2f} gradients and "
            f"optimizer, {memory.kept.get(name, 0) / 1e9:.2f} activations"
        )
    typer.echo(f"{'all':18} {memory.parameters:>15,} parameters, {memory.trainable:>13,} train")
    over = f" over {memory.ranks} ranks; on each," if memory.ranks > 1 else ";"
    typer.echo(f"\nbatch of {memory.batch_size}, {memory.tokens} tokens each{over} GB:")
    for name in NAMES:
        note = "  (vision encoder and language model)" if name == "activations" else ""
        typer.echo(f"{name.replace('_', ' '):18} {getattr(memory, name) / 1e9:>15.2f}{note}")


def show_dry_run(started: Started, to: Path | None, *, overwrite: bool, resume: bool) -> None:
    """Check data set, configuration, every path and the run folder ``to``, then print stages, parameters and memory.

    Raises:
        InputError: as in training, except for errors that only images or weights show.
    """
    from radweave.data.dataset import Dataset
    from radweave.engine.estimate import build_on_meta, estimate_of, part_sizes
    from radweave.engine.prepare import refuse_long_reports, refuse_unfit, refuse_untold
    from radweave.engine.run_directory import found_by_resume, refuse_place
    from radweave.engine.sizes import refuse_giant
    from radweave.engine.stages import refuse_impossible_stages
    from radweave.methods import resolve

    experiment = resolve(started.method, started.preset, started.overrides, started.config)
    dataset = Dataset.open(started.dataset, limit=experiment.data.limit).aimed(experiment.data.target)
    if to is not None:
        state = found_by_resume(to, experiment, dataset, overwrite=overwrite) if resume else "other"
        if state != "finished":
            refuse_place(to, overwrite=overwrite, resume=state == "unfinished")
    refuse_unfit(experiment, dataset)
    # A tokenizer learnt from the reports fits the model, which is built for it.
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
        count = sum(1 for study in dataset.studies("train") if not stage.mixture or study.origin in stage.mixture)
        steps = stage.epochs * math.ceil(count / stage.batch_size)
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
