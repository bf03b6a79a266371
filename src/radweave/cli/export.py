"""The verb export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import printable


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write a trained run as one self-contained folder that opens on a machine without the data."""
    from radweave.cli.progress import console
    from radweave.export import export as export_run

    folder = export_run(run, out, overwrite=overwrite)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    console.print(f"exported {size / 1e6:.1f} MB: {printable(folder)}")
    console.print(f"read {printable(folder / 'LICENSES.md')} before you pass it on", style="yellow")
