"""``radweave inspect``: what the tool reads in a file or folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.base.errors import printable

if TYPE_CHECKING:
    from radweave.data.reading.inspect import Inspection


def inspect(
    paths: Annotated[
        list[Path], typer.Argument(help="PNG, JPEG, DICOM, NIfTI, NRRD or MetaImage files, series, folders.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object for each file.")] = False,
) -> None:
    """Show what is read in images, volumes and DICOM series: kind, shape, geometry, pixel hash, warnings.

    Exit code 2 if a file is refused.
    """
    from radweave.data.reading.inspect import inspect_all

    records = inspect_all(paths)
    if as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=2))
    else:
        for record in records:
            typer.echo("\n".join(lines(record)))
        if len(records) > 1:
            typer.echo(f"{len(records)} entries, {sum(not record.accepted for record in records)} refused")
    if not all(record.accepted for record in records):
        raise typer.Exit(2)


def lines(record: Inspection) -> list[str]:
    """The record for reading: one line of facts, then one each for geometry, values and warnings."""
    if record.accepted:
        text = [f"{printable(record.file)}: {record.kind} ({record.format})"]
    else:
        text = [f"{printable(record.file)}: refused: {record.reason}"]
    if record.shape is not None:
        facts = [
            " x ".join(str(n) for n in record.shape),
            record.dtype,
            record.photometric,
            record.modality,
            record.view,
        ]
        text.append("  " + ", ".join(str(fact) for fact in facts if fact))
    if record.spacing_mm is not None:
        text.append("  spacing " + " x ".join(f"{v:.6g}" for v in record.spacing_mm) + " mm")
    if record.origin is not None and record.direction is not None:
        text.append(f"  origin (LPS) {_numbers(record.origin)}; direction {_numbers(record.direction)}")
    if record.pixel_sha256 is not None:
        text.append(f"  min {record.min:g}, max {record.max:g}, mean {record.mean:.6f}; sha256 {record.pixel_sha256}")
    text += [f"  warning: {warning}" for warning in record.warnings]
    return text


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.6g}" for value in values)
