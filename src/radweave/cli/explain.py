"""``radweave explain``, ``radweave export`` and ``radweave push``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from radweave.cli.options import (
    DataInstead,
    Decoding,
    Force,
    Overwrite,
    OwnDecoder,
    RunFolder,
    Untrained,
    without_collection,
)
from radweave.core.errors import InputError, printable
from radweave.core.study import RESEARCH_ONLY

Scores = Annotated[Path | None, typer.Option(help="evaluation.json of its test predictions, for the model card.")]

MOST_WARNINGS = 10


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
    own_decoder: OwnDecoder = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a page with the evidence of a draft: maps, probabilities, recalled cases, support of each sentence."""
    if (data is None) == (not images):
        raise InputError("give the image files of one study, or --data with a dataset folder")
    if (data is None) != (study is None):
        raise InputError("--data and --study go together", field="--data" if data is None else "--study")
    with without_collection():
        from radweave.core.json_files import read_json
        from radweave.engine.restore import restore
        from radweave.inference.explain import explain_files, explain_study
        from radweave.inference.predictor import Predictor
        from radweave.nn.decoding import chosen_options

        options = chosen_options(decoding or (), own_decoder=own_decoder)
        restored = restore(run)
    predictor = Predictor.of(restored, untrained=untrained, decoding=options)
    if data is not None and study is not None:
        page = explain_study(
            restored, predictor, data, study, out, threshold=threshold, force=force, overwrite=overwrite
        )
    else:
        page = explain_files(
            restored, predictor, images or [], out, threshold=threshold, force=force, overwrite=overwrite
        )
    typer.echo(f"page: {printable(page)}")
    warnings = read_json(page.parent / "evidence.json")["warnings"]
    for warning in warnings[:MOST_WARNINGS]:
        typer.echo(f"warning: {printable(warning)}", err=True)
    if len(warnings) > MOST_WARNINGS:
        typer.echo(f"and {len(warnings) - MOST_WARNINGS} more, on the page", err=True)
    typer.echo(printable(predictor.drafts), err=True)
    typer.echo(RESEARCH_ONLY, err=True)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    folder: Annotated[Path | None, typer.Argument(help="The same as --out.", metavar="[OUT]")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write.")] = None,
    no_bank: Annotated[bool, typer.Option("--no-bank", help="Leave out all data of single training studies.")] = False,
    scores: Scores = None,
    form: Annotated[
        Literal["run", "merged", "adapters"],
        typer.Option(
            "--as",
            help="run: for radweave. Of a generator also merged, a whole checkpoint for transformers and vLLM, or "
            "adapters, for peft.",
        ),
    ] = "run",
    decoding: Decoding = None,
    own_decoder: OwnDecoder = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a trained run as one self-contained folder that opens on a machine without the data."""
    from radweave.cli.options import console, one_folder
    from radweave.inference.export import export as export_run
    from radweave.inference.export import export_checkpoint, training_content
    from radweave.nn.decoding import chosen_options

    options = chosen_options(decoding or (), own_decoder=own_decoder)
    place = one_folder(folder, out)
    if form == "run":
        written = export_run(run, place, overwrite=overwrite, bank=not no_bank, scores=scores, decoding=options)
    elif options:
        raise InputError("is for --as run: other programs have decoding options of their own", field="--set")
    else:
        written = export_checkpoint(run, place, form, overwrite=overwrite, scores=scores)
    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    console.print(f"exported {size / 1e6:.1f} MB: {printable(written)}")
    if form == "run":
        content = training_content(written)
        console.print(content.sentence, style="yellow" if content.studies else None)
        if content.studies and not no_bank:
            console.print("--no-bank leaves them out, where the method can do without")
        if no_bank:
            console.print("without them it drafts with the method's own decoder only, not by expected utility")
        for lost in content.without:
            console.print(f"lost: {printable(lost)}", style="yellow")
    console.print(f"read {printable(written / 'LICENSES.md')} before you pass it on", style="yellow")


def push(
    run: RunFolder,
    name: Annotated[str, typer.Argument(help="The repository: owner/name.", metavar="OWNER/NAME")],
    bank: Annotated[bool, typer.Option("--bank", help="Also training reports and memories, as 'export' has.")] = False,
    public: Annotated[bool, typer.Option("--public", help="A public repository; private if not given.")] = False,
    scores: Scores = None,
) -> None:
    """Export a run to the Hugging Face hub, from where radweave.load("owner/name") opens it."""
    from radweave.cli.options import console
    from radweave.inference.hub import push as push_run

    pushed = push_run(run, name, bank=bank, public=public, scores=scores, say=console.print)
    console.print(pushed.content.sentence, style="yellow" if pushed.content.studies else None)
    for lost in pushed.content.without:
        console.print(f"lost: {printable(lost)}", style="yellow")
    console.print(f'radweave.load("{pushed.name}", revision="{pushed.commit}")')
