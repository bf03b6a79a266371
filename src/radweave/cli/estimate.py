"""The verb estimate."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.cli.bounds import MAX_BATCH
from radweave.cli.options import FIELDS_TO_CHANGE

if TYPE_CHECKING:
    from radweave.estimate import Estimate

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
    from radweave.estimate import estimate as estimate_memory

    found = estimate_memory(method, preset, overrides or [], prompt_tokens=prompt_tokens, ranks=ranks)
    if as_json:
        totals = {name: getattr(found, name) for name in ("parameters", "trainable", *NAMES)}
        typer.echo(json.dumps({**dataclasses.asdict(found), **totals}, indent=2))
        return
    print_memory(found)


def print_memory(found: Estimate) -> None:
    """Parameters by part, what training them takes, and the memory of the last stage."""
    for name, part in found.parts.items():
        typer.echo(
            f"{name:18} {part.parameters:>15,} parameters, {part.trainable:>13,} train, GB: "
            f"{part.weight_bytes / 1e9:.2f} weights, {(part.gradients + part.optimizer) / 1e9:.2f} gradients and "
            f"optimizer, {found.kept.get(name, 0) / 1e9:.2f} activations"
        )
    typer.echo(f"{'all':18} {found.parameters:>15,} parameters, {found.trainable:>13,} train")
    over = f" over {found.ranks} ranks; on each," if found.ranks > 1 else ";"
    typer.echo(f"\nbatch of {found.batch_size}, {found.tokens} tokens each{over} GB:")
    for name in NAMES:
        note = "  (vision encoder and language model)" if name == "activations" else ""
        typer.echo(f"{name.replace('_', ' '):18} {getattr(found, name) / 1e9:>15.2f}{note}")
