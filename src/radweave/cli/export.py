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
        bool, typer.Option("--no-bank", help="Leave out the training reports that the run drafts from.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write a trained run as one self-contained folder that opens on a machine without the data."""
    from radweave.cli.progress import console
    from radweave.export import export as export_run
    from radweave.export import training_reports

    folder = export_run(run, out, overwrite=overwrite, bank=not no_bank)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    console.print(f"exported {size / 1e6:.1f} MB: {printable(folder)}")
    if no_bank:
        console.print("without its bank it drafts with the method's own decoder only, not by expected utility")
    elif rows := training_reports(folder):
        console.print(f"it holds {rows} training reports: somebody's data; --no-bank leaves them out", style="yellow")
    console.print(f"read {printable(folder / 'LICENSES.md')} before you pass it on", style="yellow")
