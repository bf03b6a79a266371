"""Reports in bulk: over a split of a dataset folder, and over image files grouped into studies."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.bulk import Compute, Plan, compute_here, compute_on_ray, held, open_plan, shards_of
from radweave.data.cache import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.data.reading.images import read_radiograph
from radweave.errors import InputError, UnusableModelError, printable
from radweave.provenance import code_hash, library_versions
from radweave.runs import Run, prepare, restore
from radweave.serve.comparisons import EVIDENCE as COMPARISONS
from radweave.serve.familiar import is_unlike
from radweave.serve.predictor import Predictor
from radweave.serve.views import views_for
from radweave.storage import read_jsonl, write_jsonl
from radweave.train.distributed import Ranks
from radweave.training_floors import floor_reports
from radweave.types import Modality, Report, Split, View

SCAN_SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")


@dataclass(frozen=True, slots=True)
class BulkResult:
    """How many reports were written, and the studies left out with the reason.

    ``unlike`` counts reports on images that are refused where files are given: unlike those the run was trained on.
    ``compared`` counts sentences that compared with an earlier study which was not given.
    """

    written: int
    left_out: dict[str, str]
    unlike: int = 0
    compared: int = 0


def generate_split(
    run: Run,
    predictor: Predictor,
    dataset_path: Path,
    split: Split,
    out: Path,
    *,
    batch_size: int = 16,
    overwrite: bool = False,
    images: Callable[[int, int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    shard_size: int = 256,
    ranks: Ranks | None = None,
    ray_workers: int = 0,
) -> BulkResult:
    """Write ``predictions.jsonl``: per study its id, ``hyp``, ``ref`` (null where there is none), evidence and floors.

    ``floors`` holds what systems that look at nothing, or only at pixels, would have said (training split only).

    The work is done in shards (see ``radweave.bulk``) that lie in ``OUT.shards`` until all are there, so that a job
    that was stopped goes on where it was. It is shared out among ``ranks``, or over ``ray_workers`` workers of Ray.

    Images unlike those the run was trained on are reported on, with a warning, and counted: a score over a split is
    one over all of it.

    Raises:
        InputError: if ``out`` exists or another process writes it, or the split holds no study that can be used.
    """
    if predictor.refusal is not None:
        raise InputError(predictor.refusal, file=run.folder)
    ranks = ranks or Ranks()
    dataset = Dataset.open(dataset_path)
    with held(out, ranks, overwrite=overwrite):
        data = run.experiment.data
        with ranks.first_goes_first():
            cache = build_cache(dataset, size=data.image_size, ct=data.ct, progress=images)
        prepared = prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False)
        if not prepared.examples:
            raise InputError(f"the data set has no usable study in split '{split}'", file=dataset_path)
        study_ids = [example.study_id for example in prepared.examples]
        identity = _identity(run, predictor, dataset, split, batch_size) | {"images": cache.digest}
        with ranks.first_goes_first():
            plan = open_plan(shards_of(out), study_ids, shard_size=shard_size, identity=identity)
        counts: Counter[str] = Counter()
        done = len(study_ids) - sum(len(plan.shards[number]) for number in plan.missing())

        def count(more: int) -> None:
            nonlocal done
            done += more
            if progress is not None and ranks.is_first:
                progress(done, len(study_ids))

        if ray_workers:
            decoding = predictor.decoding.model_dump(mode="json")
            recipe = ReportRecipe(run.folder, dataset_path, split, batch_size, decoding, predictor.warnings)
            compute_on_ray(plan, recipe, workers=ray_workers, finished=lambda number: count(len(plan.shards[number])))
        else:
            compute_here(plan, _writer(predictor, prepared.examples, batch_size, count), ranks)
        if ranks.is_first:
            floors = floor_reports(dataset, cache, prepared.examples)
            rows = _merged(plan, data.modality, prepared.references, floors)
            write_jsonl(out, _counted(rows, counts))
            shutil.rmtree(plan.folder)
        ranks.wait()
    return BulkResult(
        written=len(study_ids), left_out=prepared.left_out, unlike=counts["unlike"], compared=counts["compared"]
    )


def _identity(run: Run, predictor: Predictor, dataset: Dataset, split: Split, batch_size: int) -> dict[str, Any]:
    """What decides the text: finished shards are kept as long as none of it changes."""
    return {
        "run": run.card.model_dump(mode="json"),
        "dataset": dataset.fingerprint(),
        "split": split,
        "decoding": predictor.decoding.model_dump(mode="json"),
        "warnings": list(predictor.warnings),
        "batch_size": batch_size,
        "code": code_hash(),
        "libraries": library_versions(),
    }


def _writer(
    predictor: Predictor, examples: Sequence[Example], batch_size: int, count: Callable[[int], None] | None = None
) -> Compute:
    """Writes the reports of a shard as JSON lines; tells ``count`` how many more there are."""
    known = {example.study_id: example for example in examples}

    def rows(study_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for report in predictor.reports([known[study_id] for study_id in study_ids], batch_size=batch_size):
            evidence, warnings = dict(report.evidence), list(report.warnings)
            yield {"study_id": report.study_id, "hyp": report.text, "evidence": evidence, "warnings": warnings}
            if count is not None:
                count(1)

    return lambda study_ids, path: write_jsonl(path, rows(study_ids))


def _merged(
    plan: Plan, modality: Modality, references: Mapping[str, str], floors: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of all shards in the order of the plan, each study exactly once.

    Raises:
        InputError: if a shard does not hold the studies it should.
    """
    for number, study_ids in enumerate(plan.shards):
        rows = [row for _, row in read_jsonl(plan.path(number))]
        if [row["study_id"] for row in rows] != list(study_ids):
            raise InputError("the shard does not hold the studies it should; remove it", file=plan.path(number))
        for row in rows:
            study_id = row["study_id"]
            extra = {"modality": modality, "ref": references.get(study_id), "floors": floors.get(study_id, {})}
            order = ("study_id", "modality", "hyp", "ref", "floors", "evidence", "warnings")
            whole = {**row, **extra}
            yield {key: whole[key] for key in order}


def _counted(rows: Iterator[dict[str, Any]], counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """The same rows, counting what a user is told at the end."""
    for row in rows:
        counts["unlike"] += is_unlike(row["evidence"])
        counts["compared"] += len(row["evidence"].get(COMPARISONS, ()))
        yield row


@dataclass(frozen=True, slots=True)
class ReportRecipe:
    """How a worker elsewhere opens a run and a split; see ``radweave.bulk``."""

    run: Path
    dataset: Path
    split: Split
    batch_size: int
    decoding: dict[str, Any]
    warnings: tuple[str, ...]

    def open(self) -> Compute:
        run = restore(self.run)
        dataset = Dataset.open(self.dataset)
        data = run.experiment.data
        cache = build_cache(dataset, size=data.image_size, ct=data.ct)
        prepared = prepare(dataset, self.split, run.experiment, run.tokenizer, cache, need_text=False)
        decoding = type(run.experiment.decoding).model_validate(self.decoding)
        predictor = dataclasses.replace(run.predictor(untrained=True), decoding=decoding, warnings=self.warnings)
        return _writer(predictor, prepared.examples, self.batch_size)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Images that make one study, with the views that were stated of them, or one file that was refused."""

    name: str
    images: tuple[Path, ...] = ()
    refused: str | None = None
    views: tuple[View, ...] = ()


def group_images(
    paths: Sequence[Path], *, one_study: bool, modality: Modality = "xray", views: Sequence[View] = ()
) -> list[FileGroup]:
    """Group files into studies: DICOM radiographs by patient and study, every other file by itself.

    A folder stands for the images in it. With ``one_study`` all files are views of one study. A file that cannot be
    read becomes a group of its own with the reason; the others go on. Of CT every scan is a study: a file, or the
    folder of a DICOM series. ``views`` states the view of all files, or one for each, folders counted by their files.

    Raises:
        InputError: for a folder without an image, or another number of views.
    """
    files = [file for path in paths for file in (_files(path) if modality == "xray" else _scans(path))]
    views_for(views, len(files))  # refuses another number
    each = (tuple(views),) * len(files) if len(views) < 2 else tuple((view,) for view in views)
    if one_study:
        return [FileGroup(name=_name(files[0]), images=tuple(files), views=tuple(views))]
    if modality == "ct":
        return [FileGroup(name=_name(file), images=(file,), views=own) for file, own in zip(files, each, strict=True)]
    groups: dict[str, list[int]] = {}
    refused: list[FileGroup] = []
    for index, file in enumerate(files):
        try:
            radiograph = read_radiograph(file)
        except InputError as error:
            refused.append(FileGroup(name=printable(file.name), refused=str(error)))
            continue
        key = f"{radiograph.patient_key}/{radiograph.study_key}" if radiograph.study_key else str(index)
        groups.setdefault(key, []).append(index)
    return [
        FileGroup(
            name=_name(files[members[0]]),
            images=tuple(files[index] for index in members),
            views=tuple(view for index in members for view in each[index]),
        )
        for members in groups.values()
    ] + refused


def _name(file: Path) -> str:
    return printable(file.name if file.is_dir() else Path(file.name.removesuffix(".gz")).stem)


def _scans(path: Path) -> list[Path]:
    """The scans of a folder: its volumes, or the folder itself as a DICOM series; a file stands for itself."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise InputError(
            "no scan in this folder", file=path, expected="NIfTI, NRRD or MetaImage files, or a DICOM series"
        )
    return [file for file in files if file.name.lower().endswith(SCAN_SUFFIXES)] or [path]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise InputError("no image in this folder", file=path, expected=", ".join(IMAGE_SUFFIXES))
    return found


def generate_files(
    predictor: Predictor, groups: Sequence[FileGroup], *, force: bool = False
) -> Iterator[Report | FileGroup]:
    """Write one report per group; a group that fails comes back with its reason.

    Raises:
        UnusableModelError: if the model fails, which no other group would change.
    """
    if predictor.refusal is not None:
        raise InputError(predictor.refusal)
    for group in groups:
        if group.refused is not None:
            yield group
            continue
        try:
            yield predictor.report(group.images, study_id=group.name, force=force, views=group.views)
        except UnusableModelError:
            raise
        except InputError as error:
            yield FileGroup(name=group.name, images=group.images, refused=str(error))
