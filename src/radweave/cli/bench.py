"""``radweave bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.cli.ablate import Jobs, Meteor, Reuse
from radweave.cli.options import MAX_SEEDS, MAX_STUDIES, comma_separated, resumable
from radweave.core.errors import InputError, printable

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="key=value, METHOD:key=value, SET:key=value or SET:METHOD:key=value", metavar="[key=value ...]"
    ),
]
HeadlineSeeds = Annotated[int | None, typer.Option(help="Runs on the headline sets, if more.", min=1, max=MAX_SEEDS)]
HeadlineMethods = Annotated[
    str, typer.Option(help="Methods with more seeds there, with commas between; all if not given.")
]
Precision = Annotated[
    str | None, typer.Option(help="float32 or bfloat16 in every stage; the presets' own if not given.")
]
PhantomStudies = Annotated[int | None, typer.Option(help="Phantom radiographs to draw.", min=10, max=MAX_STUDIES)]
Drafts = Annotated[
    list[str] | None,
    typer.Option("--drafts", help="Drafts of another program as a row, [SET:]NAME=FILE: JSONL, CSV, ReXrank's JSON."),
]
NoUtility = Annotated[
    bool, typer.Option("--no-utility", help="Only the methods' own decoding, without drafts by expected utility.")
]
Prior = Annotated[
    str,
    typer.Option(
        help="Rows told of the patient's prior study: report, image or both, with commas between.", metavar="TOLD"
    ),
]
Ensemble = Annotated[
    int,
    typer.Option(
        help="Rows that average so many encoders of the baseline, and it with kernels; 0 for none.",
        min=0,
        max=MAX_SEEDS,
    ),
]
NoProbe = Annotated[bool, typer.Option("--no-probe", help="No exchange probe of each method's first seed.")]
NoPace = Annotated[bool, typer.Option("--no-pace", help="No short runs for costs that runs taken over leave open.")]


def bench(
    out: Annotated[Path, typer.Argument(help="Folder of drawn data, runs and pages.")],
    overrides: Overrides = None,
    xray: Annotated[Path | None, typer.Option(help="Dataset folder of radiographs instead of phantoms.")] = None,
    ct: Annotated[Path | None, typer.Option(help="Dataset folder of CT instead of phantoms.")] = None,
    iu: Annotated[Path | None, typer.Option(help="Dataset folder of IU X-Ray; it is run if given.")] = None,
    sets: Annotated[str, typer.Option(help="Only these of xray, ct, iu, with commas between.")] = "",
    methods: Annotated[str, typer.Option(help="Only these, with commas between; the baseline always runs.")] = "",
    preset: Annotated[str, typer.Option(help="tiny, small or paper.")] = "tiny",
    seeds: Annotated[int, typer.Option(help="Runs of each method.", min=1, max=MAX_SEEDS)] = 3,
    headline_seeds: HeadlineSeeds = None,
    headline_sets: Annotated[str, typer.Option(help="Sets with more seeds, with commas between.")] = "xray",
    headline_methods: HeadlineMethods = "",
    precision: Precision = None,
    jobs: Jobs = 1,
    phantom_studies: PhantomStudies = None,
    ct_studies: Annotated[int | None, typer.Option(help="Phantom CT volumes to draw.", min=10, max=MAX_STUDIES)] = None,
    reuse: Reuse = None,
    drafts: Drafts = None,
    pages: Annotated[Path | None, typer.Option(help="Also write the summary page and its pictures here.")] = None,
    meteor: Meteor = False,
    no_utility: NoUtility = False,
    prior: Prior = "",
    ensemble: Ensemble = 0,
    no_pace: NoPace = False,
    no_probe: NoProbe = False,
    no_train: Annotated[bool, typer.Option("--no-train", help="Only write the pages of what is finished.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Train one finished run of OUT again, drawn at random, and compare scores.")
    ] = False,
    cell: Annotated[
        str | None, typer.Option("--cell", help="The run that --verify takes: SET/ROW/seed-N.", metavar="CELL")
    ] = None,
) -> None:
    """Train and compare all methods on the same data: scores, tests, floors, evidence, costs, as pages. It takes hours.

    --sets, --methods, --seeds 1 and fewer phantoms make it shorter, --jobs shares the cores. The same command goes on
    where it stopped. --verify writes nothing; exit code 1 if a score differs.
    """
    from radweave.cli.options import console

    if cell is not None and not verify:
        raise InputError("belongs to --verify", field="--cell", got=cell)
    if verify:
        _verify(out, cell)
        return
    from radweave.experiments.bench import BenchRequest, run_bench
    from radweave.experiments.bench_tables import short_table
    from radweave.metrics.tables import print_tables

    data = {name: path for name, path in (("xray", xray), ("ct", ct), ("iu", iu)) if path is not None}
    studies = {name: count for name, count in (("xray", phantom_studies), ("ct", ct_studies)) if count is not None}
    request = BenchRequest(
        out=out,
        data=data,
        sets=comma_separated(sets) or ("xray", "ct", *(("iu",) if iu is not None else ())),
        methods=comma_separated(methods),
        preset=preset,
        seeds=seeds,
        headline_seeds=headline_seeds,
        headline_sets=comma_separated(headline_sets),
        headline_methods=comma_separated(headline_methods),
        jobs=jobs,
        overrides=tuple(overrides or ()),
        precision=precision,
        studies=studies,
        reuse=tuple(reuse or ()),
        pages=pages,
        meteor=meteor,
        train=not no_train,
        utility=not no_utility,
        prior=comma_separated(prior),
        ensemble=ensemble,
        pace=not no_pace,
        probe=not no_probe,
        drafts=tuple(drafts or ()),
    )
    with resumable(f"the same command goes on (its runs as with --resume), what is known so far is in {out}"):
        result = run_bench(request, console.print)
    print_tables([short_table(each) for each in result.sets.values() if each.full])
    console.print(f"pages: {result.page}")
    if result.failed:
        console.print(f"{result.failed} runs or methods failed; the pages name them")
        raise typer.Exit(1)


def _verify(out: Path, cell: str | None) -> None:
    """Train a run again and print its scores beside those of the table.

    Raises:
        typer.Exit: with code 1 if they differ.
    """
    from radweave.cli.options import console
    from radweave.experiments.verify import TOLERANCE, verify
    from radweave.metrics.tables import TextTable, number, print_tables

    with resumable("nothing was written"):
        result = verify(out, cell, lambda text: console.print(printable(text)))
    different = result.differences()
    rows = [
        (name, number(value), number(result.repeated.get(name)), "different" if name in different else "equal")
        for name, value in result.cell.scores.items()
        if value is not None or name in different
    ]
    notes = (f"equal: within {TOLERANCE:g}", f"code of the table {result.cell.code or 'unknown'}, now {result.code}")
    print_tables([TextTable(result.cell.name, ("score", "table", "again", ""), tuple(rows), notes)])
    if different:
        typer.echo(f"{len(different)} of {len(rows)} scores differ", err=True)
        raise typer.Exit(1)
