"""``radweave data``: import a data set, check one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Import data sets and check them.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Import data sets and check them."""


@app.command("import")
def import_verb(
    kind: Annotated[str, typer.Argument(help="iu-xray, folder, ...; a wrong name lists them.")],
    source: Annotated[Path, typer.Argument(help="What you downloaded: a folder or a file.")],
    out: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    target: Annotated[str, typer.Option(help="findings, impression or findings+impression")] = "findings",
    cleaning: Annotated[str, typer.Option(help="Steps joined by '+', for example drop_deid_marks+r2gen_iu")] = "none",
    split: Annotated[str, typer.Option(help="source (r2gen, official), test, train, none, or 7:1:2")] = "source",
    seed: Annotated[int, typer.Option(help="Seed of a ratio split.")] = 0,
    keep: Annotated[str, typer.Option(help="complete, text-only, image-only or all")] = "complete",
    images: Annotated[Path | None, typer.Option(help="Folder of the image files, if not in the source.")] = None,
    annotation: Annotated[Path | None, typer.Option(help="R2Gen annotation file, for its split.")] = None,
    views: Annotated[str, typer.Option(help="Views to take, for example PA,AP; empty for all.")] = "",
    separator: Annotated[str, typer.Option(help="Between several images in one cell.")] = "|",
    link: Annotated[bool, typer.Option("--link", help="Hard links instead of copies of the images.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
) -> None:
    """Build a dataset folder from a downloaded data set."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from radweave.data.importers import import_dataset, options_from

    console = Console(stderr=True)
    options = options_from(
        target=target,
        cleaning=cleaning,
        split=split,
        seed=seed,
        keep=keep,
        images=images,
        annotation=annotation,
        views=tuple(view for view in views.upper().split(",") if view),
        separator=separator,
        link=link,
    )
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("reading")
        dataset = import_dataset(
            kind,
            source,
            out,
            options=options,
            overwrite=overwrite,
            progress=lambda count: bar.update(task, description=f"{count} studies"),
        )
    counts = dataset.card.counts
    splits = ", ".join(f"{counts[f'studies_{s}']} {s}" for s in ("train", "val", "test") if f"studies_{s}" in counts)
    typer.echo(f"{out}: {counts['studies']} studies ({splits or 'no split'}), {counts['images']} images")
    for reason, count in dataset.card.left_out.items():
        typer.echo(f"  left out: {count} x {reason}")
    for note in dataset.card.notes:
        typer.echo(f"  note: {note}")
