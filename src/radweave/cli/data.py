"""``radweave data``: import a data set, check one, decode its images, de-identify images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.base.errors import printable
from radweave.cli.bounds import MAX_SEED
from radweave.cli.cache import cache
from radweave.cli.deidentify import deidentify

if TYPE_CHECKING:
    from radweave.data.check import CheckReport, Fault

app = typer.Typer(help="Import data sets, check them, decode them; take patients out of images.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Import data sets, check them, decode them; take patients out of images."""


app.command("deidentify")(deidentify)
app.command("cache")(cache)


@app.command("import")
def import_verb(
    kind: Annotated[
        str,
        typer.Argument(
            help="iu-xray, mimic-cxr, chexpert-plus, rexrank, ct-rate, radgenome-chestct, ctrg-chest or folder."
        ),
    ],
    source: Annotated[Path, typer.Argument(help="What you downloaded: a folder or a file.")],
    out: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    target: Annotated[
        str, typer.Option(help="findings, impression, findings+impression (one text) or both (under headings)")
    ] = "findings",
    cleaning: Annotated[str, typer.Option(help="Steps joined by '+', for example drop_deid_marks+r2gen_iu")] = "none",
    split: Annotated[
        str, typer.Option(help="source (or r2gen, official), 7:1:2, test, train, none, valid-as-test")
    ] = "source",
    seed: Annotated[int, typer.Option(help="Seed of a ratio split.", min=0, max=MAX_SEED)] = 0,
    keep: Annotated[str, typer.Option(help="complete, text-only, image-only or all")] = "complete",
    images: Annotated[Path | None, typer.Option(help="Folder of the image files, if not in the source.")] = None,
    annotation: Annotated[Path | None, typer.Option(help="R2Gen annotation file, for its split.")] = None,
    views: Annotated[str, typer.Option(help="Views to take, for example PA,AP; empty for all.")] = "",
    separator: Annotated[str, typer.Option(help="Between several images in one cell.")] = "|",
    labeler: Annotated[str, typer.Option(help="Whose labels become chexpert14, if a source has several.")] = "chexpert",
    verify: Annotated[
        bool | None, typer.Option(help="Decode every image and leave out unreadable ones [default: folder only].")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Hard links instead of copies of the images.")] = False,
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Take names, ids, dates and long numbers out of the texts.")
    ] = False,
    scrub_names: Annotated[
        Path | None, typer.Option(help="Names to take out too, one a line; asks for --scrub by itself.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
) -> None:
    """Build a dataset folder from a downloaded data set."""
    given = dict(locals())
    options = {name: given[name] for name in given if name not in ("kind", "source", "out", "overwrite")}
    from radweave.cli.progress import bar
    from radweave.data.importers import import_dataset, options_from

    chosen = options_from(
        **options
        | {
            "views": tuple(view for view in views.upper().split(",") if view),
            "scrub": scrub or scrub_names is not None,
        }
    )
    with bar("reading studies") as progress:
        dataset = import_dataset(kind, source, out, options=chosen, overwrite=overwrite, progress=progress)
    counts = dataset.card.counts
    splits = ", ".join(f"{counts[f'studies_{s}']} {s}" for s in ("train", "val", "test") if f"studies_{s}" in counts)
    typer.echo(f"{printable(out)}: {counts['studies']} studies ({splits or 'no split'}), {counts['images']} images")
    if "scrubbed" in counts:
        typer.echo(f"  scrubbed: {counts['scrubbed']} names, ids, dates and numbers of the texts; others may remain")
    for reason, count in dataset.card.left_out.items():
        typer.echo(f"  left out: {count} x {printable(reason)}")
    for note in dataset.card.notes:
        typer.echo(f"  note: {note}")


@app.command("mix")
def mix_verb(
    datasets: Annotated[list[Path], typer.Argument(help="Two dataset folders or more.")],
    out: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    same_patients: Annotated[
        bool, typer.Option("--same-patients", help="A patient id means the same person in all of them.")
    ] = False,
    link: Annotated[bool, typer.Option("--link", help="Hard links instead of copies of the images.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
) -> None:
    """Put data sets together, for stages that train on several. Refused where one leaks into another."""
    from radweave.data.mixing import mix_datasets

    mixed = mix_datasets(datasets, out, same_patients=same_patients, link=link, overwrite=overwrite)
    counts = mixed.card.counts
    for name in mixed.card.options["mixed"]:
        typer.echo(f"{printable(name)}: {counts.get(f'studies_of_{name}', 0)} studies")
    typer.echo(f"{printable(out)}: {counts['studies']} studies, {counts['images']} images")


@app.command("check")
def check_verb(
    dataset: Annotated[Path, typer.Argument(help="A dataset folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    read_images: Annotated[bool, typer.Option(help="Hash and decode the images, or only look for the files.")] = True,
) -> None:
    """Look for faults and for leaks between splits. Exit code 1 for a leak, 2 for an error."""
    import json

    from radweave.cli.progress import bar
    from radweave.data.check import check_dataset

    with bar("checking studies") as progress:
        report = check_dataset(dataset, read_images=read_images, progress=progress)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _print(report: CheckReport) -> None:
    from rich.table import Table

    from radweave.base.terminal import plain_console
    from radweave.data.check import LENGTH_BINS

    console = plain_console()
    splits = [split for split in ("train", "val", "test", "none") if report.studies[split]]
    table = Table("report length in words", *splits, title="Studies")
    starts = [start for start in LENGTH_BINS if start <= max(map(max, report.lengths.values()), default=0)]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        table.add_row(
            f"{start} to {end - 1}" if end else f"{start} or more",
            *(str(report.lengths[split][start]) for split in splits),
        )
    table.add_row("all", *(str(report.studies[split]) for split in splits), style="bold")
    console.print(table)
    views = ", ".join(f"{count} {view}" for view, count in sorted(report.views.items()))
    console.print(f"{report.patients} patients, {report.images} images ({views or 'no views'})")
    for name, classes in sorted(report.labels.items()):
        states = ("positive", "negative", "uncertain", "blank")
        labels = Table(printable(name), *states)
        for finding, counts in classes.items():
            labels.add_row(printable(finding), *(str(counts[state]) for state in states))
        console.print(labels)
    for word, colour, faults in (
        ("leak", "red", report.leaks),
        ("error", "red", report.errors),
        ("warning", "yellow", report.warnings),
    ):
        for fault in faults:
            console.print(f"{word}", style=colour, end="")
            console.print(f": {fault.count} x ", end="")
            console.print(f"{printable(fault.kind)}{_lines(fault)}", highlight=False)
    if not (report.leaks or report.errors):
        console.print("no leak, no error")


def _lines(fault: Fault) -> str:
    """The first places of a fault, as manifest lines."""
    places = [" and ".join(str(line) for line in lines) for lines in fault.lines if lines][:5]
    return f" (manifest line {'; '.join(places)}{'; ...' if fault.count > len(places) else ''})" if places else ""
