"""The verbs demo and methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.cli.options import FIELDS_TO_CHANGE, MAX_SEED, MAX_STUDIES, Out, Overwrite
from radweave.core.errors import InputError, printable
from radweave.core.study import RESEARCH_ONLY


def methods() -> None:
    """List the methods."""
    from radweave.methods import method_names, method_summary

    for name in method_names():
        try:
            typer.echo(f"{name:14} {method_summary(name)}")
        except InputError as error:
            typer.echo(f"{name:14} {error}")


def demo(
    out: Out = Path("demo"),
    overwrite: Overwrite = False,
    studies: Annotated[int, typer.Option(help="Phantom studies to make.", min=40, max=MAX_STUDIES)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of everything.", min=0, max=MAX_SEED)] = 0,
    overrides: Annotated[list[str] | None, typer.Argument(help=FIELDS_TO_CHANGE, metavar="[key=value ...]")] = None,
) -> None:
    """Make phantom radiographs, train on them, report on unseen ones, and show the result as a page."""
    from radweave.cli.demo import DemoWatch, run_demo
    from radweave.cli.options import bar, console, training_watch
    from radweave.core.devices import usable_cores

    watch = DemoWatch(bar=bar, training=training_watch, say=console.print)
    page = run_demo(
        out,
        num_studies=studies,
        seed=seed,
        overwrite=overwrite,
        overrides=overrides or [],
        watch=watch,
        jobs=usable_cores(),
    )
    console.print(f"\nReport page: {printable(page)}\n{RESEARCH_ONLY}")
