"""``radweave evaluate``, ``compare`` and ``label``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    pairs: Annotated[list[Path], typer.Argument(help="Pairs files (study_id, hyp, ref or refs), one per run.")],
    protocol: Annotated[str, typer.Option(help="Scoring protocol; a wrong name lists them.")] = "full",
    beside: Annotated[str, typer.Option(help="A second protocol to show beside; 'none' for none.")] = "auto",
    ontology: Annotated[
        str, typer.Option(help="Findings for the clinical table: chexpert14, ct18, none.")
    ] = "chexpert14",
    train: Annotated[Path | None, typer.Option(help="Dataset folder whose training reports make baselines.")] = None,
    meteor: Annotated[bool, typer.Option("--meteor/--no-meteor", help="METEOR, if Java is there.")] = True,
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Leave bad lines out and count them.")] = False,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples; 0 for no intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for evaluation.json, tables.md and tables.tex.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
) -> None:
    """Score generated reports against their references."""
    from radweave.evaluation.commands import EvaluateRequest, run_evaluate

    run_evaluate(
        EvaluateRequest(
            pairs=tuple(pairs),
            protocol=protocol,
            beside=beside,
            ontology=ontology,
            train=train,
            meteor=meteor,
            skip_invalid=skip_invalid,
            resamples=resamples,
            seed=seed,
            as_json=as_json,
            out=out,
            overwrite=overwrite,
        )
    )
