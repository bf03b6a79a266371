"""``radweave generate`` and ``radweave features``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radweave.cli.options import (
    BatchSize,
    DataInstead,
    Decoding,
    Force,
    Overwrite,
    OwnDecoder,
    RayWorkers,
    RunFolder,
    ShardSize,
    SplitName,
    Untrained,
    bulk,
    known_split,
    without_collection,
)
from radweave.core.errors import InputError, printable
from radweave.core.json_files import json_text
from radweave.core.storage import refuse_existing
from radweave.core.study import RESEARCH_ONLY, Report, View

if TYPE_CHECKING:
    from radweave.engine.restore import Run
    from radweave.inference.bulk import BulkResult, FileGroup
    from radweave.inference.predictor import Predictor
    from radweave.workstation.formats import Format

Images = Annotated[list[Path] | None, typer.Argument(help="Image files or folders.", metavar="[IMAGE ...]")]
Drafts = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="predictions.jsonl of a dataset; .jsonl, .txt, .csv for images; .dcm, .pdf, .json, .hl7 for one study.",
    ),
]
ReportFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="What --out is, for one study: sr-basic, sr-tid1500, pdf-dicom, map-dicom, box-dicom, pdf, fhir, fhir-r5,"
        " hl7, text.",
    ),
]
AtTest = Annotated[
    list[str] | None,
    typer.Option("--at-test", help="Setting of a trained run, key=value: diffvp's references. For a dataset."),
]
ViewOption = Annotated[
    list[str] | None,
    typer.Option("--view", help="frontal, lateral, pa or ap: once for all images, or once for each, in order."),
]
Indication = Annotated[
    str | None, typer.Option(help="Reason for the study, for a run that was trained with it; names are removed.")
]
Technique = Annotated[str | None, typer.Option(help="Technique of the study, for a run that was trained with it.")]
Findings = Annotated[str | None, typer.Option(help="Findings section, for a run that writes the impression from it.")]


def generate(
    run: RunFolder,
    images: Images = None,
    data: DataInstead = None,
    split: SplitName = "test",
    out: Drafts = None,
    report_format: ReportFormat = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with evidence.")] = False,
    one_study: Annotated[bool, typer.Option("--one-study", help="All images are views of one study.")] = False,
    view: ViewOption = None,
    indication: Indication = None,
    technique: Technique = None,
    findings: Findings = None,
    force: Force = False,
    untrained: Untrained = False,
    batch_size: BatchSize = 16,
    shard_size: ShardSize = 256,
    ray: RayWorkers = 0,
    decoding: Decoding = None,
    own_decoder: OwnDecoder = False,
    at_test: AtTest = None,
    overwrite: Overwrite = False,
) -> None:
    """Write reports: for image files, or for a split of a dataset folder."""
    split_name = known_split(split)
    chosen = _chosen_format(data, out, report_format, as_json=as_json)
    context = {"indication": indication, "technique": technique, "findings": findings}
    _refuse_contradictions(images or [], data, out, view or [], chosen, context, at_test or (), overwrite=overwrite)
    with without_collection():
        from radweave.engine.distributed import Ranks
        from radweave.engine.restore import restore
        from radweave.inference.bulk import DRAFTS, draft_row, generate_files, generate_split, group_images
        from radweave.inference.pictures import stated_view
        from radweave.inference.predictor import Predictor
        from radweave.inference.shards import locked_output
        from radweave.nn.decoding import chosen_options

        views = [stated_view(text) for text in view or []]
        options = chosen_options(decoding or (), own_decoder=own_decoder)
        restored = restore(run)
    predictor = Predictor.of(restored, untrained=untrained, decoding=options)
    if data is not None and out is not None:
        with bulk("reports") as (ranks, reading, progress):
            done = generate_split(
                restored, predictor, data, split_name, out, batch_size=batch_size, overwrite=overwrite, images=reading,
                progress=progress, shard_size=shard_size, ranks=ranks, ray_workers=ray, at_test=at_test or (),
            )  # fmt: skip
        if ranks.is_first:
            _print_summary(done, out, predictor)
        if done.failed:
            raise typer.Exit(2)
        return
    if chosen is not None and out is not None:
        write_finished(
            restored,
            predictor,
            images or [],
            out,
            chosen,
            one_study=one_study,
            views=views,
            force=force,
            context=context,
        )
        return
    groups = group_images(images or [], one_study=one_study, modality=predictor.modality, views=views)
    rows, refusals = [], Counter[str]()
    with locked_output(out, Ranks(), overwrite=overwrite, kind=DRAFTS) if out is not None else nullcontext():
        for result in generate_files(predictor, groups, force=force, context=context):
            rows.append(draft_row(result))
            _print_result(result, refusals, text=out is None and not as_json, warnings=not as_json)
        for reason, count in refusals.items():
            if count > ALIKE_SHOWN:
                print(f"error: {count - ALIKE_SHOWN} more files: {reason}", file=sys.stderr)
        _finish(rows, out, predictor, as_json=as_json)


def _chosen_format(data: Path | None, out: Path | None, named: str | None, *, as_json: bool) -> Format | None:
    """The format of a single report; None for drafts."""
    if named is not None and (data is not None or out is None):
        raise InputError("--format is for the images of one study and --out", field="--format", got=named)
    if data is not None or out is None:
        return None
    from radweave.workstation.formats import format_for

    chosen = format_for(out, named)
    if chosen is not None and as_json:
        raise InputError("--json prints drafts; a report goes into --out alone", field="--json")
    return chosen


def _refuse_contradictions(
    images: list[Path],
    data: Path | None,
    out: Path | None,
    view: list[str],
    chosen: Format | None,
    context: Mapping[str, str | None],
    at_test: Sequence[str],
    *,
    overwrite: bool,
) -> None:
    """Refuse contradictory options and an existing output before reading anything."""
    if data is None and at_test:
        raise InputError("settings at test time are for a dataset", field="--at-test", expected="--data DATASET")
    if (data is None) == (not images):
        raise InputError("give image files, or --data with a dataset folder")
    if data is not None and out is None:
        raise InputError("--data needs --out for the predictions", field="--out")
    if data is not None and view:
        raise InputError("a dataset states the views of its images", field="--view")
    section = next((name for name, text in context.items() if text is not None), None)
    if data is not None and section is not None:
        raise InputError("a dataset has the sections of its studies", field=f"--{section}")
    if out is None:
        return
    from radweave.inference.bulk import DRAFTS, refuse_other_kind

    kind = DRAFTS
    if chosen is not None:
        from radweave.workstation.formats import kind_of

        kind = kind_of(chosen)
    refuse_existing(out, overwrite=overwrite, kind=kind)
    if images and chosen is None:
        refuse_other_kind(out)


def _print_summary(result: BulkResult, out: Path, predictor: Predictor) -> None:
    """Print the result of a split, what drafted, and the warnings of its run."""
    from radweave.cli.options import console, next_step

    console.print(f"{result.written} reports: {printable(out)}")
    console.print(printable(predictor.drafts))
    for warning in predictor.warnings:
        console.print(f"mind: {printable(warning)}", style="yellow")
    for study_id, reason in result.left_out.items():
        console.print(f"left out {printable(study_id)}: {printable(reason)}", style="yellow")
    if result.left_out:
        console.print(f"{len(result.left_out)} studies left out", style="yellow")
    if result.failed:
        console.print(f"{result.failed} of them without an answer; the same with --overwrite asks for them alone")
    if result.unlike:
        console.print(f"{result.unlike} studies do not look like those the run was trained on", style="yellow")
    if result.compared:
        console.print(
            f"{result.compared} sentences compared with a study that was not given: taken out", style="yellow"
        )
    next_step("evaluate", out)


ALIKE_SHOWN = 5


def _print_result(result: Report | FileGroup, refusals: Counter[str], *, text: bool, warnings: bool) -> None:
    """Print one draft, or the reason of its refusal; of those refused for one reason the first are printed."""
    if not isinstance(result, Report):
        reason = str(result.refused).partition(": ")[2] or str(result.refused)
        refusals[reason] += 1
        if refusals[reason] <= ALIKE_SHOWN:
            print(f"error: {result.refused}", file=sys.stderr)
        return
    if text:
        typer.echo(f"{result.study_id}\n{result.text}\n")
    for warning in result.warnings if warnings else ():
        typer.echo(f"warning: {warning}", err=True)


def _finish(rows: list[dict[str, Any]], out: Path | None, predictor: Predictor, *, as_json: bool) -> None:
    """Write and print all drafts; exit code 2 if a study was refused."""
    from radweave.inference.bulk import write_drafts

    refused = sum("refused" in row for row in rows)
    if out is not None and refused < len(rows):
        write_drafts(out, rows)
        typer.echo(f"{len(rows) - refused} reports: {out}", err=True)
    if as_json:
        typer.echo(json_text(rows), nl=False)
    elif refused < len(rows):
        typer.echo(printable(predictor.drafts), err=True)
        typer.echo(RESEARCH_ONLY, err=True)
    if refused:
        if len(rows) > 1:
            print(f"{refused} of {len(rows)} studies were refused", file=sys.stderr)
        raise typer.Exit(2)


def write_finished(
    run: Run,
    predictor: Predictor,
    images: Sequence[Path],
    out: Path,
    chosen: Format,
    *,
    one_study: bool,
    views: Sequence[View],
    force: bool,
    context: Mapping[str, str | None],
) -> None:
    """Report on one study and write the report in an exchange format.

    Raises:
        InputError: for more than one study, an unreadable file, or a report that the format cannot hold.
    """
    from radweave.inference.bulk import group_images
    from radweave.workstation.draft_report import finished_report
    from radweave.workstation.formats import write_report

    groups = group_images(images, one_study=one_study, modality=predictor.modality, views=views)
    for group in groups:
        if group.refused is not None:
            raise InputError(group.refused)
    if len(groups) > 1:
        raise InputError(
            f"the images are {len(groups)} studies, and a {chosen.name} file holds one report; give those of one study,"
            " or --one-study",
            field="--out",
        )
    (group,) = groups
    pictures, warnings = predictor.read_views(group.images, force=force, stated=group.views)
    report = predictor.report_on(pictures, study_id=group.name, warnings=warnings, force=force, context=context)
    finished = finished_report(run, predictor, report, pictures)
    write_report(finished, chosen, out)
    for warning in finished.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"1 report ({chosen.name}): {out}", err=True)
    typer.echo(printable(predictor.drafts), err=True)
    typer.echo(RESEARCH_ONLY, err=True)


def features(
    run: RunFolder,
    data: Annotated[Path, typer.Option("--data", help="A dataset folder.")],
    out: Annotated[Path, typer.Option("--out", help="The bank's folder.")],
    split: SplitName = "train",
    batch_size: BatchSize = 32,
    shard_size: ShardSize = 1024,
    ray: RayWorkers = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a bank of image features: one vector per study under a run's vision encoder."""
    split_name = known_split(split)
    from radweave.cli.options import bulk, console
    from radweave.engine.restore import restore
    from radweave.inference.features import build_feature_bank

    with bulk("shards") as (ranks, images, progress):
        bank = build_feature_bank(
            restore(run), data, split_name, out, batch_size=batch_size, shard_size=shard_size, overwrite=overwrite,
            ranks=ranks, ray_workers=ray, images=images, progress=progress,
        )  # fmt: skip
    if ranks.is_first:
        console.print(f"{len(bank)} studies, {bank.tensors['features'].shape[1]} values each: {printable(out)}")
