"""``radweave data``, ``phantom`` and ``inspect``: data sets and images."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radweave.cli.options import (
    MAX_JOBS,
    MAX_SEED,
    MAX_STUDIES,
    AllowRemote,
    ConfigFile,
    Out,
    Overrides,
    Overwrite,
    resumable,
)
from radweave.core.errors import InputError, printable
from radweave.core.study import SPLITS

if TYPE_CHECKING:
    from radweave.data.check import CheckReport, Fault
    from radweave.engine.run_folder import RunCard
    from radweave.io.inspect import Inspection


def cache(
    method: Annotated[str, typer.Argument(help="A method; see 'radweave methods'.")],
    dataset: Annotated[Path, typer.Argument(help="A dataset folder.")],
    overrides: Overrides = None,
    preset: Annotated[str, typer.Option(help="tiny, small or paper; a method may have more.")] = "tiny",
    config: ConfigFile = None,
    part: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only this part, for N processes or machines that share a disk.")
    ] = None,
) -> None:
    """Decode images into the data set's cache, as a training with the same options needs them.

    A stopped job continues. With --part 1/8 to 8/8, eight processes on any machines decode one part each; the same
    command without --part then merges them.
    """
    from radweave.cli.options import bar, console
    from radweave.data.cache.images import build_cache, build_part
    from radweave.data.cache.parts import Part
    from radweave.data.dataset import Dataset
    from radweave.methods import resolve

    chosen = None if part is None else Part.of(part)
    data = resolve(method, preset, overrides or (), config).data
    # As in ``radweave.engine.train``: the limit is part of the cache's key.
    opened = Dataset.open(dataset, limit=data.limit).aimed(data.target)
    advice = "the same command goes on where it was"
    with resumable(advice), bar("reading images") as progress:
        if chosen is None:
            made = build_cache(opened, size=data.image_size, ct=data.ct, progress=progress, note=console.print)
            images, unreadable = len(made.rows) + len(made.unreadable), made.unreadable
        else:
            own = build_part(opened, chosen, size=data.image_size, ct=data.ct, progress=progress)
            images, unreadable = own.images, own.unreadable
            if not own.is_needed:
                typer.echo(f"{printable(dataset)}: the cache is whole already")
                return
    typer.echo(f"{printable(dataset)}: {images} images" + (f" in part {part}" if part else " in the cache"))
    reasons = list(unreadable.values())
    for reason in dict.fromkeys(reasons):
        typer.echo(f"  cannot be read: {reasons.count(reason)} x {printable(reason)}")


_SHOWN = 20
CORRECTIONS = "corrections"


def deidentify(
    source: Annotated[Path, typer.Argument(help="A DICOM image, or a folder of them.")],
    out: Out,
    key: Annotated[Path, typer.Option("--key", help="File with the secret, which its owner alone may read.")],
    new_key: Annotated[bool, typer.Option("--new-key", help="Make the key first; it must not be there.")] = False,
    burned_in: Annotated[
        bool, typer.Option("--allow-burned-in", help="Take images that may bear text; nothing is done to pixels.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """De-identify DICOM images by DICOM's basic profile; dates of a patient move together, pixels stay."""
    from radweave.cli.options import bar
    from radweave.data.deidentify.folder import deidentify_folder
    from radweave.data.deidentify.key import read_key, write_key

    if new_key:
        write_key(key)
    elif not key.exists():
        raise InputError("no such file; --new-key makes one", file=key, field="--key")
    secret = read_key(key)
    with bar("images") as progress:
        done = deidentify_folder(source, out, secret, burned_in=burned_in, overwrite=overwrite, progress=progress)
    typer.echo(
        f"{printable(out)}: {done.images} images, {len(done.studies)} studies, {len(done.patients)} patients"
        + (f", {done.duplicates} files were there twice" if done.duplicates else "")
    )
    typer.echo("Pixels are unchanged: check them for text before you share them.", err=True)
    for path, _, reason in done.refused[:_SHOWN]:
        print(f"refused {printable(path)}: {printable(reason)}", file=sys.stderr)
    if done.refused:
        print(f"{len(done.refused)} files were refused; all others are written", file=sys.stderr)
        raise typer.Exit(2)


app = typer.Typer(help="Import, check, cache and mix data sets; de-identify images.", no_args_is_help=True)
app.command("deidentify")(deidentify)
app.command("cache")(cache)


@app.command("import")
def import_verb(
    kind: Annotated[
        str,
        typer.Argument(
            help="iu-xray, mimic-cxr, chexpert-plus, rexrank, rexgradient, padchest-gr, ms-cxr, chest-imagenome, "
            "vindr-cxr, ct-rate, radgenome-chestct, ctrg-chest, folder or corrections."
        ),
    ],
    source: Annotated[Path, typer.Argument(help="What you downloaded, or a workstation's folder: RUN.workstation.")],
    out: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    target: Annotated[
        str,
        typer.Option(
            help="findings, impression, findings+impression (one text), both (under headings) or regions (of CT)"
        ),
    ] = "findings",
    cleaning: Annotated[str, typer.Option(help="Steps joined by '+', for example drop_deid_marks+r2gen_iu")] = "none",
    split: Annotated[
        str, typer.Option(help="source (or r2gen, official), 7:1:2, test, train, none, valid-as-test; mambaxray, dast")
    ] = "source",
    seed: Annotated[int, typer.Option(help="Seed of a ratio split.", min=0, max=MAX_SEED)] = 0,
    keep: Annotated[str, typer.Option(help="complete, text-only, image-only or all")] = "complete",
    images: Annotated[Path | None, typer.Option(help="Folder of the image files, if not in the source.")] = None,
    annotation: Annotated[
        Path | None, typer.Option(help="Lists of a published split; texts by region for ctrg-chest.")
    ] = None,
    views: Annotated[str, typer.Option(help="Views to take, for example PA,AP; empty for all.")] = "",
    separator: Annotated[str, typer.Option(help="Between several images in one cell.")] = "|",
    labeler: Annotated[str, typer.Option(help="Whose labels become chexpert14, if a source has several.")] = "chexpert",
    verify: Annotated[
        bool | None, typer.Option(help="Decode every image and leave out unreadable ones [default: folder only].")
    ] = None,
    extra_train: Annotated[
        bool, typer.Option("--extra-train", help="Studies outside the lists of the source's split join train.")
    ] = False,
    labels: Annotated[
        str, typer.Option(help="given: the source's label states; read: from the target text, by rules.")
    ] = "given",
    link: Annotated[bool, typer.Option("--link", help="Hard links instead of copies of the images.")] = False,
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Take names, ids, dates and long numbers out of the texts.")
    ] = False,
    scrub_names: Annotated[
        Path | None, typer.Option(help="Names to take out too, one a line; asks for --scrub by itself.")
    ] = None,
    database: Annotated[
        str | None, typer.Option("--database", help="Of corrections: URL of the workstation's database.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
) -> None:
    """Build a dataset folder from a downloaded data set, or from what readers signed in a workstation."""
    arguments = dict(locals())
    no_options = ("kind", "source", "out", "database", "overwrite")
    options = {name: arguments[name] for name in arguments if name not in no_options}
    from radweave.cli.options import bar, next_step
    from radweave.data.check import NOT_ENGLISH, not_english
    from radweave.data.importers import KINDS, import_dataset, options_from

    options["views"] = tuple(view for view in views.upper().split(",") if view)
    options["scrub"] = scrub or scrub_names is not None
    if kind not in (*KINDS, CORRECTIONS):
        expected = ", ".join((*KINDS, CORRECTIONS))
        raise InputError("no such kind of data set", field="kind", got=kind, expected=expected)
    if database is not None and kind != CORRECTIONS:
        raise InputError("belongs to corrections", field="--database", got=kind)
    open_source = None
    if kind == CORRECTIONS:
        from radweave.workstation import correction_importer

        open_source = correction_importer(database)
    with bar("reading studies") as progress:
        dataset = import_dataset(
            kind, source, out, options=options_from(**options), overwrite=overwrite, progress=progress,
            open_source=open_source,
        )  # fmt: skip
    counts = dataset.card.counts
    splits = ", ".join(f"{counts[f'studies_{s}']} {s}" for s in ("train", "val", "test") if f"studies_{s}" in counts)
    typer.echo(f"{printable(out)}: {counts['studies']} studies ({splits or 'no split'}), {counts['images']} images")
    if "scrubbed" in counts:
        typer.echo(f"  scrubbed: {counts['scrubbed']} names, ids, dates and numbers of the texts; others may remain")
    for reason, count in dataset.card.left_out.items():
        typer.echo(f"  left out: {count} x {printable(reason)}")
    for note in dataset.card.notes:
        typer.echo(f"  note: {note}")
    if others := not_english(study.report for study in dataset.studies()):
        typer.echo(f"  warning: {others} x {NOT_ENGLISH}", err=True)
    next_step("data", "check", out)
    if all(counts.get(f"studies_{split}") for split in SPLITS):
        next_step("fit", out, "--out", "FOLDER")


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
    """Mix data sets, for stages that train on several; leaks between them are refused."""
    from radweave.data.mixing import mix_datasets, shares_of

    mixed = mix_datasets(datasets, out, same_patients=same_patients, link=link, overwrite=overwrite)
    counts = mixed.card.counts
    for name, share in shares_of(mixed).items():
        training = counts.get(f"training_studies_of_{name}", 0)
        typer.echo(
            f"{printable(name)}: {counts.get(f'studies_of_{name}', 0)} studies, {training} for training,"
            f" share {share:.4f} of an epoch"
        )
    typer.echo(f"{printable(out)}: {counts['studies']} studies, {counts['images']} images")


@app.command("regions")
def regions_verb(
    dataset: Annotated[Path, typer.Argument(help="A dataset folder of CT, with reports.")],
    out: Annotated[Path, typer.Option(help="The JSON file to write or to continue, for 'import ctrg-chest'.")],
    endpoint: Annotated[str, typer.Option(help="OpenAI-compatible endpoint; it gets the reports.")],
    model: Annotated[str, typer.Option(help="The endpoint's model.")],
    allow_remote: AllowRemote = False,
    attempts: Annotated[int, typer.Option(help="Answers asked for about a study, at most.", min=1, max=20)] = 3,
    overwrite: Overwrite = False,
) -> None:
    """Have a chat model sort the sentences of CT reports by region, for --annotation of CTRG-Chest.

    A stopped job continues. Exit code 2 if no study has texts.
    """
    from radweave.cli.options import bar
    from radweave.core.chat import ENDPOINT_KEY, HttpChat, key_of, refuse_address
    from radweave.data.regions import write_regions

    refuse_address(endpoint, field="--endpoint", allow_remote=allow_remote, option="--allow-remote")
    chat = HttpChat(endpoint, model, key_of(ENDPOINT_KEY), allow_remote=allow_remote)
    with resumable("the same command goes on where it was"), bar("sorting reports") as progress:
        done = write_regions(dataset, out, chat, attempts=attempts, overwrite=overwrite, progress=progress)
    typer.echo(f"{printable(out)}: {len(done.texts)} of {done.reports} studies have texts by region")
    typer.echo(f"  in no region: {done.in_no_region} of {done.sentences} sentences")
    for reason, count in done.failed.items():
        print(f"failed: {count} x {printable(reason)}", file=sys.stderr)
    if not done.texts:
        raise typer.Exit(2)


@app.command("check")
def check_verb(
    dataset: Annotated[Path, typer.Argument(help="A dataset folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    read_images: Annotated[bool, typer.Option(help="Hash and decode the images, or only look for the files.")] = True,
) -> None:
    """Look for faults and for leaks between splits. Exit code 1 for a leak, 2 for an error."""
    from radweave.cli.options import bar
    from radweave.data.check import check_dataset

    with bar("checking studies") as progress:
        report = check_dataset(dataset, read_images=read_images, progress=progress)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _print(report: CheckReport) -> None:
    from radweave.core.escaping import plain_console
    from radweave.data.check import LENGTH_BINS
    from radweave.metrics.tables import TextTable, print_tables

    splits = [split for split in ("train", "val", "test", "none") if report.studies[split]]
    starts = [start for start in LENGTH_BINS if start <= max(map(max, report.lengths.values()), default=0)]
    rows = [
        (f"{start} to {end - 1}" if end else f"{start} or more", *(str(report.lengths[each][start]) for each in splits))
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
    rows.append(("all", *(str(report.studies[split]) for split in splits)))
    views = ", ".join(f"{count} {view}" for view, count in sorted(report.views.items()))
    note = f"{report.patients} patients, {report.images} images ({views or 'no views'})"
    states = ("positive", "negative", "uncertain", "blank")
    labels = [
        TextTable(
            f"Labels: {printable(name)}",
            ("finding", *states),
            tuple(
                (printable(finding), *(str(counts[state]) for state in states)) for finding, counts in classes.items()
            ),
        )
        for name, classes in sorted(report.labels.items())
    ]
    marked = tuple((printable(label), str(count)) for label, count in sorted(report.boxes.items()))
    boxes = [TextTable("Boxes", ("label", "number"), marked)] if marked else []
    print_tables([TextTable("Studies", ("report length in words", *splits), tuple(rows), (note,)), *labels, *boxes])
    console = plain_console()
    for word, colour, faults in (
        ("leak", "red", report.leaks),
        ("error", "red", report.errors),
        ("warning", "yellow", report.warnings),
    ):
        for fault in faults:
            console.print(word, style=colour, end="")
            console.print(f": {fault.count} x {printable(fault.kind)}{_manifest_lines(fault)}")
    if not (report.leaks or report.errors):
        console.print("no leak, no error")


def _manifest_lines(fault: Fault) -> str:
    """The first manifest lines of a fault."""
    rows = [" and ".join(str(line) for line in lines) for lines in fault.lines if lines][:5]
    return f" (manifest line {'; '.join(rows)}{'; ...' if fault.count > len(rows) else ''})" if rows else ""


class ModalityName(StrEnum):
    """Modality of phantoms."""

    xray = "xray"
    ct = "ct"


class PrevalenceName(StrEnum):
    """Prevalence of diseases."""

    long_tail = "long-tail"
    balanced = "balanced"
    normal = "normal"


class TurnoverName(StrEnum):
    """Change between the studies of a patient."""

    none = "none"
    low = "low"
    real = "real"


def phantom(
    folder: Annotated[Path | None, typer.Argument(help="The same as --out.", metavar="[OUT]")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Dataset folder to write.")] = None,
    modality: Annotated[ModalityName, typer.Option(help="Radiographs or CT volumes.")] = ModalityName.xray,
    studies: Annotated[int, typer.Option(min=1, max=MAX_STUDIES, help="Number of studies.")] = 200,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="The same seed gives the same files.")] = 0,
    prevalence: Annotated[PrevalenceName, typer.Option(help="How often diseases occur.")] = PrevalenceName.long_tail,
    turnover: Annotated[
        TurnoverName, typer.Option(help="How much changes between a patient's studies; real: as follow-ups report it.")
    ] = TurnoverName.low,
    image_size: Annotated[int, typer.Option(min=32, max=2048, help="Edge of a radiograph in pixels.")] = 256,
    volume_size: Annotated[int, typer.Option(min=16, max=512, help="Edge of a CT slice in voxels.")] = 96,
    slices: Annotated[int, typer.Option(min=8, max=512, help="Slices of a CT volume.")] = 48,
    masks: Annotated[bool, typer.Option("--masks", help="Write finding masks and finding-free twins too.")] = False,
    boxes: Annotated[bool, typer.Option("--boxes", help="Mark each finding on the images by boxes.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=MAX_JOBS, help="Processes that draw; as many as cores if not given.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
) -> None:
    """Write a synthetic chest data set with reports, labels and ground truth."""
    from radweave.cli.options import bar, one_folder
    from radweave.core.devices import usable_cores
    from radweave.phantom.study import PhantomOptions, write_phantom_dataset

    target = one_folder(folder, out)
    options = PhantomOptions(
        prevalence=prevalence.value,
        turnover=turnover.value,
        image_size=image_size,
        volume_size=volume_size,
        slices=slices,
        masks=masks,
        boxes=boxes,
    )
    with bar("drawing studies") as progress:
        dataset = write_phantom_dataset(
            target,
            modality=modality.value,
            num_studies=studies,
            seed=seed,
            options=options,
            overwrite=overwrite,
            progress=progress,
            jobs=jobs or usable_cores(),
        )
    counts = ", ".join(f"{name.removeprefix('studies_')} {n}" for name, n in sorted(dataset.card.counts.items()))
    typer.echo(f"{printable(target)}: {counts}")


def inspect(
    paths: Annotated[
        list[Path], typer.Argument(help="PNG, JPEG, DICOM, NIfTI, NRRD or MetaImage files, series, folders, runs.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object for each file.")] = False,
) -> None:
    """Show the content of images, volumes and DICOM series: kind, shape, geometry, pixel hash, warnings; of run folders
    their origin and the gain of each source of evidence.

    Exit code 2 if a file is refused.
    """
    from radweave.engine.run_folder import read_card
    from radweave.io.inspect import inspect_all

    runs = [path for path in paths if (path / "run.json").is_file()]
    cards = {path: read_card(path) for path in runs}
    records = inspect_all([path for path in paths if path not in cards])
    if as_json:
        rows = [{"file": str(path), "kind": "run", **card.model_dump(mode="json")} for path, card in cards.items()]
        typer.echo(json.dumps([*rows, *(record.model_dump(mode="json") for record in records)], indent=2))
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
    """A run as text: origin, training, memories, sources of evidence, cautions."""
    from radweave.engine.reward_page import REWARD_PAGE
    from radweave.inference.explain.support import added_text

    name = printable(path.name)
    steps = ", ".join(f"{stage} {count}" for stage, count in card.trained_steps.items())
    text = [f"{name}: run ({card.method}, {card.preset}, seed {card.seed})"]
    text += [f"  trained on {printable(card.dataset.name)}; updates: {steps}"]
    text += [f"  memory {bank}: {rows} rows" for bank, rows in card.memories.items()]
    text += [f"  source {source}: {added_text(figures) or 'not known'}" for source, figures in card.sources.items()]
    if card.sources:
        text.append("  (what out-of-fold average precision falls by without the source: all findings together, mean)")
    if (path / REWARD_PAGE).is_file():
        text.append(f"  course of the rewards: {printable(path / REWARD_PAGE)}")
    return [*text, *(f"  caution: {caution}" for caution in card.cautions)]


def lines(record: Inspection) -> list[str]:
    """The record as text: a line of facts, then one each for geometry, values and warnings."""
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
