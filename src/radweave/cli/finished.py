"""``radweave generate`` where it writes one report as another system reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from radweave.base.errors import InputError
from radweave.base.study import RESEARCH_ONLY, View

if TYPE_CHECKING:
    from radweave.generate.predictor import Predictor
    from radweave.hospital.formats import Format
    from radweave.runs.restore import Run


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
    told: Mapping[str, str | None],
) -> None:
    """Report on one study and write the report; nothing is written where anything is refused.

    Raises:
        InputError: for more than one study, a file that cannot be read, or a report that the format cannot hold.
    """
    from radweave.generate.files import group_images
    from radweave.hospital.formats import write_report
    from radweave.hospital.make import finished_report

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
    seen, warnings = predictor.read_views(group.images, force=force, stated=group.views)
    report = predictor.report_on(seen, study_id=group.name, warnings=warnings, force=force, told=told)
    finished = finished_report(run, predictor, report, seen)
    write_report(finished, chosen, out)
    for warning in finished.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"1 report ({chosen.name}): {out}", err=True)
    typer.echo(RESEARCH_ONLY, err=True)
