"""``radweave explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import InputError, printable
from radweave.base.study import RESEARCH_ONLY
from radweave.cli.options import DataInstead, Decoding, Force, Overwrite, RunFolder, Untrained


def explain(
    run: RunFolder,
    images: Annotated[
        list[Path] | None,
        typer.Argument(help="The views of one study or its scan, or a folder of them.", metavar="[IMAGE ...]"),
    ] = None,
    data: DataInstead = None,
    study: Annotated[str | None, typer.Option("--study", help="Which study of the dataset.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for index.html, PNGs and evidence.json.")] = ...,  # type: ignore[assignment]
    threshold: Annotated[
        float | None,
        typer.Option(help="Probability from which a finding counts; without, the run's own.", min=0.01, max=0.99),
    ] = None,
    force: Force = False,
    untrained: Untrained = False,
    decoding: Decoding = None,
    overwrite: Overwrite = False,
) -> None:
    """Show on one page why a draft says what it says: maps, probabilities, recalled cases, each sentence's support."""
    if (data is None) == (not images):
        raise InputError("give the image files of one study, or --data with a dataset folder")
    if (data is None) != (study is None):
        raise InputError("--data and --study go together", field="--data" if data is None else "--study")
    from radweave.explain import explain_files, explain_study
    from radweave.generate.predictor import Predictor
    from radweave.runs.restore import restore

    restored = restore(run)
    predictor = Predictor.of(restored, untrained=untrained, decoding=decoding or [])
    if data is not None and study is not None:
        page = explain_study(
            restored, predictor, data, study, out, threshold=threshold, force=force, overwrite=overwrite
        )
    else:
        page = explain_files(
            restored, predictor, images or [], out, threshold=threshold, force=force, overwrite=overwrite
        )
    typer.echo(f"page: {printable(page)}")
    typer.echo(RESEARCH_ONLY, err=True)
