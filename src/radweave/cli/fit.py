"""``radweave fit``: from a folder of images and reports to an evaluated model, one command after another.

OUT/data            the dataset folder                 OUT/run          the trained, calibrated run
OUT/drafts.jsonl    drafts of the test split           OUT/own.jsonl    the same by the method's own decoder
OUT/evaluation/     scores of both                     OUT/page/        one draft beside its evidence
OUT/fit.json        what was asked for
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radweave.cli.options import (
    MAX_SEED,
    Epochs,
    Overrides,
    Preset,
    console,
    next_step,
    shell_line,
    without_next_steps,
)
from radweave.core.errors import InputError, printable
from radweave.core.evidence import BY_UTILITY
from radweave.core.study import SPLITS

if TYPE_CHECKING:
    from radweave.data.dataset import Dataset

RECORD = "fit.json"
BY_PATIENT = "7:1:2"
SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of ``radweave`` and the file or folder that it finishes with."""

    command: tuple[str, ...]
    makes: Path


def fit(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="Images with reports.csv, its table, or a dataset folder.")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for data, run, drafts, scores and page.")] = ...,  # type: ignore[assignment]
    kind: Annotated[str, typer.Option(help="Kind of the source, as 'data import' has them.")] = "folder",
    split: Annotated[
        str | None, typer.Option(help="As 'data import' has it. Default: the source's own, else 7:1:2 of the patients.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Sections of the reports to learn. Default: findings.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of the image files, if not in the source.")] = None,
    method: Annotated[
        str | None, typer.Option(help="See 'radweave methods'. Default: kernels; baseline for CT.")
    ] = None,
    preset: Preset = "tiny",
    epochs: Epochs = None,
    seed: Annotated[int, typer.Option(help="Seed of split and training.", min=0, max=MAX_SEED)] = 0,
) -> None:
    """Import images and reports, split by patient, check, train, calibrate, draft the test split, and evaluate.

    Each step is printed as the command that repeats it. The same command goes on where it stopped.
    """
    from radweave.core.json_files import read_json, write_json
    from radweave.core.storage import refuse_existing
    from radweave.data.dataset import Dataset

    perform = partial(_run, context.find_root().command)
    options: dict[str, Any] = {
        "source": str(source.resolve()), "kind": kind, "split": split, "method": method, "preset": preset,
        "epochs": epochs, "seed": seed, "overrides": list(overrides or ()), "target": target,
        "images": None if images is None else str(images.resolve()),
    }  # fmt: skip
    # A dataset folder is used where it lies.
    is_dataset = all((source / name).is_file() for name in ("dataset.json", "manifest.jsonl"))
    record, data = out / RECORD, source if is_dataset else out / "data"
    if record.is_file():
        before = read_json(record)
        for name, value in options.items():
            if before.get(name) != value:
                raise InputError(
                    "holds what was made with other options; give another --out", file=out, field=name, got=value,
                    expected=before.get(name),
                )  # fmt: skip
    else:
        refuse_existing(out, overwrite=False, advice="no fit began there; give another --out")
        if not source.exists():
            raise InputError("no such file or folder", file=source)
        if is_dataset:
            for name in ("split", "target", "images"):
                if options[name] is not None:
                    raise InputError(f"a dataset folder has its own {name}", field=f"--{name}", got=options[name])
            _refuse_missing_splits(Dataset.open(data))
        out.mkdir(parents=True, exist_ok=True)
        write_json(record, options)
    if not data.is_dir():
        try:
            reading: dict[str, Any] = {} if target is None else {"target": target}
            if images is not None:
                reading["images"] = images
            words = ("--split", split or _split_of(kind, source, reading), "--seed", str(seed))
            further = (f"--{name}={value}" for name, value in reading.items())
            perform(Step(("data", "import", kind, str(source), *words, *further, "--out", str(data)), data))
            _refuse_missing_splits(Dataset.open(data))
        except (InputError, typer.Exit):
            _remove(out, record, data)
            raise
    dataset, run = Dataset.open(data), out / "run"
    if not run.is_dir():  # a run that began is of data that was checked
        perform(Step(("data", "check", str(data)), run))
    _train(perform, dataset, run, method, preset, epochs, [f"seed={seed}", *(overrides or ())])
    drafts, own = out / "drafts.jsonl", out / "own.jsonl"
    generate = ("generate", str(run), "--data", str(data), "--split", "test")
    perform(Step((*generate, "--out", str(drafts)), drafts))
    scored = [drafts]
    if _first(drafts)["evidence"]["decoder"]["kind"] == BY_UTILITY:
        perform(Step((*generate, "--own-decoder", "--out", str(own)), own))
        scored.append(own)
    scores = out / "evaluation"
    perform(Step(("evaluate", *map(str, scored), "--train", str(data), "--out", str(scores)), scores))
    page = out / "page"
    study = f"--study={_first(drafts)['study_id']}"
    perform(Step(("explain", str(run), "--data", str(data), study, "--force", "--out", str(page)), page))
    console.print(f"model: {printable(run)}   scores: {printable(scores / 'tables.md')}")
    next_step("generate", run, "IMAGE")
    next_step("serve", run)


def _run(command: Any, step: Step) -> None:
    """Print a step of the command ``radweave``, and run it unless what it makes is there.

    Raises:
        typer.Exit: with the exit code of a command that fails.
    """
    made = step.makes.exists()
    console.print(f"{'done: ' if made else ''}{shell_line(step.command)}", style="bold", soft_wrap=True)
    if made:
        return
    with without_next_steps():
        code = command.main(list(step.command), standalone_mode=False)
    if code:
        raise typer.Exit(code)


def _split_of(kind: str, source: Path, options: Mapping[str, Any]) -> str:
    """The source's own split where it has one, else shares of the patients."""
    from importlib import import_module

    from radweave.data.importers import KINDS, options_from

    if kind not in KINDS:
        raise InputError("no such kind of data set", field="--kind", got=kind, expected=", ".join(KINDS))
    opened = import_module(f"radweave.data.importers.{KINDS[kind]}").open_source(source, options_from(**options))
    return BY_PATIENT if opened.split_provenance == "none" else SOURCE


def _refuse_missing_splits(dataset: Dataset) -> None:
    """Refuse data without studies to train on, to validate with or to test on.

    Raises:
        InputError: naming the split.
    """
    for name in SPLITS:
        if not dataset.card.counts.get(f"studies_{name}"):
            raise InputError(
                f"no usable study in split '{name}'", field="--split", got=dataset.card.split_provenance,
                expected=f"{BY_PATIENT}, or valid-as-test for data without a test split",
            )  # fmt: skip


def _remove(out: Path, record: Path, data: Path) -> None:
    """Remove what an import that failed leaves, so that the folder can be used again."""
    if data.is_dir():
        shutil.rmtree(data)
    record.unlink()
    with contextlib.suppress(OSError):  # somebody else's file is in it
        out.rmdir()


def _train(
    perform: Callable[[Step], None],
    dataset: Dataset,
    run: Path,
    method: str | None,
    preset: str,
    epochs: int | None,
    overrides: Sequence[str],
) -> None:
    """Train and calibrate the run, or finish it."""
    from radweave.engine.run_directory import is_finished
    from radweave.experiments.bench_suite import preset_for
    from radweave.methods import resolve

    modality = dataset.card.modality
    method = method or ("kernels" if modality == "xray" else "baseline")
    named = preset_for(method, preset, modality, overrides)
    if named is None:
        raise InputError(f"no preset '{preset}' of it reads {modality}", field="--method", got=method)
    trains = any(stage.epochs for stage in resolve(method, named, ()).named_stages().values())
    passes = ("--epochs", str(epochs)) if epochs is not None and trains else ()
    command = ("train", method, str(dataset.path), "--out", str(run), "--preset", named, *passes, *overrides)
    if run.is_dir() and not is_finished(run):
        command = ("train", "--resume", str(run))
    perform(Step(command, run / "run.json"))


def _first(drafts: Path) -> dict[str, Any]:
    """The first draft of a file."""
    from radweave.core.json_files import read_jsonl

    _, row = next(iter(read_jsonl(drafts)))
    return row
