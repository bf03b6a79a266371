"""``radweave ablate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radweave.cli.options import MAX_JOBS, MAX_SEEDS, comma_separated, resumable
from radweave.core.errors import InputError

if TYPE_CHECKING:
    from radweave.metrics.tables import TextTable

Jobs = Annotated[int, typer.Option(help="Runs side by side; cores and GPUs are shared out.", min=1, max=MAX_JOBS)]
Meteor = Annotated[bool, typer.Option("--meteor", help="METEOR too, if Java is there.")]
Reuse = Annotated[
    list[Path] | None, typer.Option(help="Take over finished runs found in here, if they are the same. Repeatable.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value for all rows, METHOD:key=value for one method's", metavar="[key=value ...]"),
]
HeadlineSeeds = Annotated[int | None, typer.Option(help="Runs of headline rows, if more.", min=1, max=MAX_SEEDS)]
Runs = Annotated[Path | None, typer.Option(help="Where run folders lie, if not in --out; tables may share it.")]
Probe = Annotated[
    bool,
    typer.Option("--probe", help="Exchange probe of the first seed of each row with weights or settings of its own."),
]
ListOnly = Annotated[
    bool, typer.Option("--list", help="List the tables of METHOD, or of all, and which rows are run; train nothing.")
]


def ablate(
    method: Annotated[str, typer.Argument(help="A method; see 'radweave methods'.")] = "",
    dataset: Annotated[Path | None, typer.Argument(help="A dataset folder.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the table and its runs.")] = None,
    table: Annotated[str, typer.Option(help="The method's table; a wrong name lists them.")] = "",
    preset: Annotated[str, typer.Option(help="tiny, small or paper.")] = "tiny",
    seeds: Annotated[int, typer.Option(help="Runs of each row.", min=1, max=MAX_SEEDS)] = 3,
    headline_seeds: HeadlineSeeds = None,
    rows: Annotated[str, typer.Option(help="Only these rows, with commas between.")] = "",
    jobs: Jobs = 1,
    protocol: Annotated[str, typer.Option(help="Scoring protocol; a wrong name lists them.")] = "full",
    meteor: Meteor = False,
    runs: Runs = None,
    reuse: Reuse = None,
    probe: Probe = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    list_only: ListOnly = False,
) -> None:
    """Train and score the rows of a method's ablation table over seeds. It takes hours: rows x seeds trainings.

    A tiny row takes minutes on one core. --rows, --seeds 1 and --jobs make it shorter, --list only lists. The same
    command goes on where it stopped.
    """
    from radweave.cli.options import console, training_watch
    from radweave.experiments.ablate import (
        AblationRequest,
        AblationWatch,
        all_methods,
        list_tables,
        listing_tables,
        run_ablation,
    )

    if list_only:
        record = list_tables([method] if method else all_methods(), table)
        _print(record, listing_tables(record, rows_too=bool(table)), as_json=as_json)
        return
    if dataset is None or out is None:
        missing = "DATASET" if dataset is None else "--out"
        raise InputError("is missing", field=missing, expected="METHOD DATASET --table NAME --out DIR, or --list")

    request = AblationRequest(
        method=method,
        dataset=dataset,
        table=table,
        out=out,
        preset=preset,
        seeds=seeds,
        headline_seeds=headline_seeds,
        rows=comma_separated(rows),
        jobs=jobs,
        overrides=tuple(overrides or ()),
        protocol=protocol,
        meteor=meteor,
        runs=runs,
        reuse=tuple(reuse or ()),
        probe=probe,
    )

    with resumable(f"the same command goes on (its runs as with --resume), the table so far is in {out}"):
        result = run_ablation(request, AblationWatch(say=console.print, training=training_watch))
    _print(result.record, result.tables, as_json=as_json)
    if result.failed:
        console.print(f"{result.failed} runs or rows failed; the reasons are in {out / 'table.md'}")
        raise typer.Exit(1)


def _print(record: Any, tables: Sequence[TextTable], *, as_json: bool) -> None:
    from radweave.metrics.tables import print_tables

    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        print_tables(tables)
