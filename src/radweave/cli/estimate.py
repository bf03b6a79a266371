"""``radweave estimate``, and ``radweave train --dry-run``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.cli.options import MAX_BATCH, Overrides, Preset

if TYPE_CHECKING:
    from radweave.engine.estimate import Estimate
    from radweave.engine.run_directory import Started

NAMES = ("weights", "gradients", "optimizer", "activations", "training", "kv_cache", "generation")


def estimate(
    method: Annotated[str, typer.Argument(help="A method; see 'radweave methods'.")],
    overrides: Overrides = None,
    preset: Preset = "tiny",
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens before the report, image included; else those of the longest.", min=1, max=MAX_BATCH),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Processes over which fsdp shards the model.", min=1, max=MAX_BATCH)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: bytes and counts.")] = False,
) -> None:
    """Say how many parameters a method has and how much memory its last stage needs, without building it."""
    from radweave.engine.estimate import estimate as estimate_memory

    memory = estimate_memory(method, preset, overrides or [], prompt_tokens=prompt_tokens, ranks=ranks)
    if as_json:
        totals = {name: getattr(memory, name) for name in ("parameters", "trainable", *NAMES)}
        values = dataclasses.asdict(memory)
        typer.echo(json.dumps({**values, "kept": values.pop("saved"), **totals}, indent=2))
        return
    print_memory(memory)


def print_memory(memory: Estimate) -> None:
    """Print parameters by part, memory of their training, and memory of the last stage."""
    if not memory.parameters:
        typer.echo("no network: nothing trains; time and memory grow with the training studies in use")
        return
    for name, part in memory.parts.items():
        typer.echo(
            f"{name:18} {part.parameters:>15,} parameters, {part.trainable:>13,} train, GB: "
            f"{part.weight_bytes / 1e9:.2f} weights, {(part.gradients + part.optimizer) / 1e9:.2f} gradients and "
            f"optimizer, {memory.saved.get(name, 0) / 1e9:.2f} activations"
        )
    typer.echo(f"{'all':18} {memory.parameters:>15,} parameters, {memory.trainable:>13,} train")
    over = f" over {memory.ranks} ranks; on each," if memory.ranks > 1 else ";"
    typer.echo(f"\nbatch of {memory.batch_size}, {memory.tokens} tokens each{over} GB:")
    for name in NAMES:
        note = "  (vision encoder and language model)" if name == "activations" else ""
        typer.echo(f"{name.replace('_', ' '):18} {getattr(memory, name) / 1e9:>15.2f}{note}")
    typer.echo("beside it: Python and torch, and the images of a batch")


def show_dry_run(started: Started, to: Path | None, *, overwrite: bool, resume: bool) -> None:
    """Check data set, configuration, every path and the run folder ``to``, then print stages, parameters and memory.

    Raises:
        InputError: as in training, except for errors that only images or weights show.
    """
    from radweave.data.dataset import Dataset
    from radweave.engine.plan import plan_training
    from radweave.engine.run_directory import ResumedRun, refuse_place, state_to_resume
    from radweave.engine.warm_start import StartRun
    from radweave.methods import resolve
    from radweave.methods.stage import RewardStageConfig

    experiment = resolve(started.method, started.preset, started.overrides, started.config)
    dataset = Dataset.open(started.dataset, limit=experiment.data.limit).aimed(experiment.data.target)
    if to is not None:
        resumed = state_to_resume(to, experiment, dataset, overwrite=overwrite) if resume else ResumedRun("other")
        if resumed.state != "finished":
            replaces = overwrite or resumed.longer is not None or resumed.state == "placed"
            refuse_place(to, overwrite=replaces, resume=resumed.state == "unfinished")
    if started.start is not None:
        StartRun.open(started.start).refuse_leak(dataset)
    plan = plan_training(experiment, dataset, learn_tokenizer=False)
    studies = {split: sum(1 for _ in dataset.studies(split)) for split in ("train", "val")}
    typer.echo(f"{started.method} on {studies['train']:,} training and {studies['val']:,} validation studies\n")
    for stage in plan.stages():
        config = stage.config
        if config.epochs == 0 or config.max_steps == 0:
            typer.echo(f"stage {stage.name}: passed over")
            continue
        trained = [f"{part} {size.trainable:,}" for part, size in stage.parts.items() if size.trainable]
        frozen = [part for part, size in stage.parts.items() if not size.trainable]
        size = f"at most {stage.updates:,} updates of {config.batch_size} studies"
        typer.echo(f"stage {stage.name}: {config.epochs} epochs, {size}")
        typer.echo(f"  trains {', '.join(trained) or 'nothing'}; frozen {', '.join(frozen) or 'nothing'}")
        typer.echo(f"  losses {_weighed(config.losses)}")
        if isinstance(config, RewardStageConfig):
            typer.echo(f"  rewards {_weighed(config.rewards)}; {config.algorithm}, {config.samples} samples a study")
    place = experiment.stages.place
    if place.is_on:
        typer.echo(f"stage place: {place.epochs} epochs of {place.batch_size} studies, on the frozen encoder")
    typer.echo("")
    print_memory(plan.memory())
    typer.echo("\nnothing was read but the manifest, and nothing was written")


def _weighed(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{weight:g} {name}" for name, weight in weights.items()) or "none"
