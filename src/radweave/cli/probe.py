"""``radweave probe``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.cli.options import MAX_STUDIES, Overwrite, RunFolder, SplitName, known_split
from radweave.core.errors import printable
from radweave.core.study import RESEARCH_ONLY


def probe(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="A dataset folder with reports.")],
    split: SplitName = "test",
    studies: Annotated[int, typer.Option(help="At most so many studies.", min=2, max=MAX_STUDIES)] = 100,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for index.html, probe.json and probe.md.")] = None,
    no_drafts: Annotated[bool, typer.Option("--no-drafts", help="Only likelihoods and losses.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Exchange every input of a run's decoder between studies, and step on every loss: what do reports hang on?"""
    from radweave.cli.options import bar
    from radweave.core.storage import refuse_existing
    from radweave.engine.restore import restore
    from radweave.experiments import probe as probing

    if out is not None:
        refuse_existing(out, overwrite=overwrite)
    chosen = known_split(split)
    with bar("exchanges") as progress:
        result = probing.probe(
            restore(run), data, split=chosen, studies=studies, drafts=not no_drafts, progress=progress
        )
    typer.echo(result.table(), nl=False)
    if result.silent:
        typer.echo(f"silent: {', '.join(result.silent)}")
    if out is not None:
        typer.echo(f"page: {printable(probing.write_page(result, out, overwrite=overwrite))}")
    typer.echo(RESEARCH_ONLY, err=True)
