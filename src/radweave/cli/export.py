"""The verb export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import printable


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    no_bank: Annotated[
        bool, typer.Option("--no-bank", help="Leave out all that is made of single training studies.")
    ] = False,
    scores: Annotated[
        Path | None, typer.Option(help="evaluation.json of its test predictions, for the model card.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write a trained run as one self-contained folder that opens on a machine without the data."""
    from radweave.cli.progress import console
    from radweave.export import export as export_run
    from radweave.export import held

    folder = export_run(run, out, overwrite=overwrite, bank=not no_bank, scores=scores)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    console.print(f"exported {size / 1e6:.1f} MB: {printable(folder)}")
    holds = held(folder)
    console.print(holds.sentence, style="yellow" if holds.studies else None)
    if holds.studies and not no_bank:
        console.print("--no-bank leaves them out, where the method can do without")
    if no_bank:
        console.print("without them it drafts with the method's own decoder only, not by expected utility")
    for lost in holds.without:
        console.print(f"lost: {printable(lost)}", style="yellow")
    console.print(f"read {printable(folder / 'LICENSES.md')} before you pass it on", style="yellow")
