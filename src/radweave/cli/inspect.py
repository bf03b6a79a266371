"""``radweave inspect``: what the tool reads in a file or folder, and what a run says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.base.errors import printable

if TYPE_CHECKING:
    from radweave.data.reading.inspect import Inspection
    from radweave.runs.folder import RunCard


def inspect(
    paths: Annotated[
        list[Path], typer.Argument(help="PNG, JPEG, DICOM, NIfTI, NRRD or MetaImage files, series, folders, runs.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object for each file.")] = False,
) -> None:
    """Show what is read in images, volumes and DICOM series: kind, shape, geometry, pixel hash, warnings; of the folder
    of a run what made it, and what each of its sources of evidence adds.

    Exit code 2 if a file is refused.
    """
    from radweave.data.reading.inspect import inspect_all
    from radweave.runs.folder import read_card

    runs = [path for path in paths if (path / "run.json").is_file()]
    cards = {path: read_card(path) for path in runs}
    records = inspect_all([path for path in paths if path not in cards])
    if as_json:
        found = [{"file": str(path), "kind": "run", **card.model_dump(mode="json")} for path, card in cards.items()]
        typer.echo(json.dumps([*found, *(record.model_dump(mode="json") for record in records)], indent=2))
    else:
        for path, card in cards.items():
            typer.echo("\n".join(run_lines(path, card)))
        for record in records:
            typer.echo("\n".join(lines(record)))
        if len(records) > 1:
            typer.echo(f"{len(records)} entries, {sum(not record.accepted for record in records)} refused")
    if not all(record.accepted for record in records):
        raise typer.Exit(2)


def run_lines(path: Path, card: RunCard) -> list[str]:
    """A run for reading: what made it, how far it was trained, what it was known for, what its sources add."""
    from radweave.explain.sources import added_text

    name = printable(path.name)
    steps = ", ".join(f"{stage} {count}" for stage, count in card.trained_steps.items())
    text = [f"{name}: run ({card.method}, {card.preset}, seed {card.seed})"]
    text += [f"  trained on {printable(card.dataset.name)}; updates: {steps}"]
    text += [f"  memory {bank}: {rows} rows" for bank, rows in card.memories.items()]
    text += [f"  source {source}: {added_text(figures) or 'not known'}" for source, figures in card.sources.items()]
    if card.sources:
        text.append("  (what out-of-fold average precision falls by without the source: all findings together, mean)")
    return [*text, *(f"  caution: {caution}" for caution in card.cautions)]


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
