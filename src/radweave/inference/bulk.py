"""Reports in bulk: over a split of a dataset folder, and over image files grouped into studies."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError, UnusableModelError, printable
from radweave.core.escaping import csv_line
from radweave.core.json_files import read_jsonl, write_jsonl
from radweave.core.provenance import code_hash, library_versions
from radweave.core.replacing import FileKind
from radweave.core.storage import write_text
from radweave.core.study import RESEARCH_ONLY, Modality, Report, Split, View
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit, no_usable_study
from radweave.data.loader import Example
from radweave.data.targets import NO_CONTEXT
from radweave.engine.distributed import Ranks
from radweave.engine.drafts import COMPARISONS_REMOVED as COMPARISONS
from radweave.engine.expected_utility import training_reports_of
from radweave.engine.place import drafted_boxes, reference_boxes
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore, vary
from radweave.inference.pictures import Picture, read_pictures, views_for
from radweave.inference.predictor import Predictor, is_unlike
from radweave.inference.shards import (
    Compute,
    Plan,
    compute_on_ray,
    locked_output,
    open_plan,
    shards_of,
    shards_to_compute,
)
from radweave.io.dicom import read_header
from radweave.io.images import sniff
from radweave.labels import get_labeler
from radweave.methods.model import Served
from radweave.metrics.priors import prior_reports

# Reports for image files, grouped into studies.


SCAN_SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Images that make one study, with the views that were stated of them, or one file that was refused.

    ``needs_all``: a user said that the files are one study; else a file that cannot be read leaves the others.
    """

    name: str
    images: tuple[Path, ...] = ()
    refused: str | None = None
    views: tuple[View, ...] = ()
    needs_all: bool = False


def group_images(
    paths: Sequence[Path], *, one_study: bool, modality: Modality = "xray", views: Sequence[View] = ()
) -> list[FileGroup]:
    """Group files into studies: DICOM radiographs by patient and study, every other file by itself.

    Headers alone are read here, no pixels. A folder stands for the images in it. With ``one_study`` all files are views
    of one study. A file whose header cannot be read becomes a group of its own with the reason; the others go on. Of CT
    every scan is a study: a file, or the folder of a DICOM series. ``views`` states the view of all files, or one for
    each, folders counted by their files.

    Raises:
        InputError: for a folder without an image, or another number of views.
    """
    files = [file for path in paths for file in (_files(path) if modality == "xray" else _scans(path))]
    views_for(views, len(files))  # refuses another number
    each = (tuple(views),) * len(files) if len(views) < 2 else tuple((view,) for view in views)
    if one_study:
        return [FileGroup(name=_name(files[0]), images=tuple(files), views=tuple(views), needs_all=True)]
    if modality == "ct":
        return [FileGroup(name=_name(file), images=(file,), views=own) for file, own in zip(files, each, strict=True)]
    groups: dict[str, list[int]] = {}
    refused: list[FileGroup] = []
    for index, file in enumerate(files):
        try:
            key = _study_of(file) or str(index)
        except InputError as error:
            refused.append(FileGroup(name=printable(file.name), refused=str(error)))
            continue
        groups.setdefault(key, []).append(index)
    return [
        FileGroup(
            name=_name(files[members[0]]),
            images=tuple(files[index] for index in members),
            views=tuple(view for index in members for view in each[index]),
        )
        for members in groups.values()
    ] + refused


def _study_of(file: Path) -> str | None:
    """Patient and study of a DICOM file, by its header; None where it names no study, and for other files."""
    if sniff(file) != "dicom":
        return None
    header = read_header(file)
    return f"{header.patient_key}/{header.study_key}" if header.study_key else None


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
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise InputError(
            "no image in this folder, whose subfolders are not read", file=path, expected=", ".join(IMAGE_SUFFIXES)
        )
    return files


def generate_files(
    predictor: Predictor,
    groups: Sequence[FileGroup],
    *,
    force: bool = False,
    context: Mapping[str, str | None] = NO_CONTEXT,
) -> Iterator[Report | FileGroup]:
    """Write one report per group, each file read once; a failure has its reason. ``context`` has sections by
    name, which are of one study.

    Of a study that was grouped by headers, the files that can be read are reported on.

    Raises:
        UnusableModelError: if the model fails, which no other group would change.
        InputError: if context is given and there are several groups.
    """
    if predictor.refusal is not None:
        raise InputError(predictor.refusal)
    section = next((name for name, text in context.items() if text), None)
    if section is not None and len(groups) > 1:
        raise InputError(
            "a section is of one study, and there are several", field=section, got=f"{len(groups)} studies",
            expected="the images of one study, or --one-study",
        )  # fmt: skip
    for group in groups:
        if group.refused is not None:
            yield group
            continue
        try:
            readable, pictures, refused = _read(predictor, group)
            yield from refused
            if not readable.images:
                continue
            stated = views_for(readable.views, len(pictures))
            views, warnings = predictor.settle(readable.images, pictures, force=force, stated=stated)
            yield predictor.report_on(views, study_id=group.name, warnings=warnings, force=force, context=context)
        except UnusableModelError:
            raise
        except InputError as error:
            yield FileGroup(name=group.name, images=group.images, refused=str(error))


def _read(predictor: Predictor, group: FileGroup) -> tuple[FileGroup, list[Picture], list[FileGroup]]:
    """The group of the files that can be read, their pictures, and each other file with its reason.

    Raises:
        InputError: if one cannot be read and the group needs all.
    """
    if group.needs_all:
        return group, read_pictures(group.images, predictor.ct), []
    each = views_for(group.views, len(group.images))
    readable, pictures, refused = [], [], []
    for path, view in zip(group.images, each, strict=True):
        try:
            pictures += read_pictures([path], predictor.ct)
            readable.append((path, view))
        except InputError as error:
            refused.append(FileGroup(name=printable(path.name), images=(path,), refused=str(error)))
    views = tuple(view for _, view in readable if view is not None)
    return replace(group, images=tuple(path for path, _ in readable), views=views), pictures, refused


# Drafts of image files as one file: JSON lines with the evidence, text to read, or CSV, by the file's suffix.


SUFFIXES = (".jsonl", ".txt", ".csv")
_ROWS = ({"study_id", "report", "warnings", "notice"}, {"study_id", "refused"}, {"study_id", "hyp"})
_ROWS_LOOKED_AT = 100
_COLUMNS = ("study_id", "report", "warnings", "refused", "notice")


def refuse_other_kind(path: Path) -> None:
    """Refuse a suffix that says no kind of file.

    Raises:
        InputError: naming those that do.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            "unknown kind of file", file=path, field="--out", got=path.suffix or "no suffix",
            expected=f"a name that ends in {', '.join(SUFFIXES)}, or of one study in .dcm, .pdf, .json, .hl7",
        )  # fmt: skip


def _is_drafts(path: Path) -> bool:
    """Tell by content if ``generate`` wrote a file; the rows of a split are drafts too."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        if first == csv_line(_COLUMNS):
            return True
        rows = [set(row) for _, row in islice(read_jsonl(path), _ROWS_LOOKED_AT)]
        return bool(rows) and all(any(kind <= row for kind in _ROWS) for row in rows)
    except InputError:
        return path.read_text(encoding="utf-8").endswith(f"\n\n{RESEARCH_ONLY}\n")
    except ValueError:  # no text
        return False


DRAFTS = FileKind("a file of drafts", _is_drafts)


def draft_row(result: Report | FileGroup) -> dict[str, Any]:
    """A draft, or a study that was refused with the reason, as JSON values."""
    if isinstance(result, FileGroup):
        return {"study_id": result.name, "refused": result.refused}
    return {
        "study_id": result.study_id,
        "report": result.text,
        "evidence": dict(result.evidence),
        "warnings": list(result.warnings),
        "notice": result.notice,
    }


def write_drafts(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what ``draft_row`` gave, whole or not at all; an old file of that name is replaced.

    Raises:
        InputError: if the file cannot be written.
    """
    refuse_other_kind(path)
    lines = {".jsonl": _jsonl, ".txt": _text, ".csv": _csv}[path.suffix.lower()](rows)
    write_text(path, "".join(lines))


def _jsonl(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _text(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        text = f"refused: {row['refused']}" if "refused" in row else row["report"]
        warnings = [f"warning: {warning}" for warning in row.get("warnings", ())]
        yield "\n".join([row["study_id"], text, *warnings]) + "\n\n"
    yield f"{RESEARCH_ONLY}\n"


def _csv(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield csv_line(_COLUMNS)
    for row in rows:
        whole = {**row, "warnings": "; ".join(row.get("warnings", ()))}
        yield csv_line([str(whole.get(name, "")) for name in _COLUMNS])


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Number of reports written, and the studies left out with the reason.

    A study without an answer of an endpoint is left out too, and ``failed`` counts those: the others are kept, and with
    ``--overwrite`` only these are asked for again. ``unlike`` counts reports on images that are refused where files are
    given: unlike those the run was trained on. ``compared`` counts sentences that compared with an earlier study which
    was not given.
    """

    written: int
    left_out: dict[str, str]
    unlike: int = 0
    compared: int = 0
    failed: int = 0


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
    at_test: Sequence[str] = (),
) -> BulkResult:
    """Write ``predictions.jsonl``: per study its id, ``hyp``, ``ref`` (null where there is none), evidence, floors.

    ``prior_report`` is the report of the patient's prior study, null where there is none. ``boxes`` and ``ref_boxes``
    mark findings on the first image, where the run has the part ``place`` and the data set boxes. ``floors`` holds
    what systems that look at nothing, or only at pixels, would have said (training split only).
    Shards (``radweave.inference.shards``) lie in ``OUT.shards`` until all are there, so that a stopped job goes
    on where it was; they are shared out among ``ranks``, or over ``ray_workers`` workers of Ray. Images unlike those
    the run was trained on are reported on, with a warning, and counted: a score over a split is one over all of it.
    ``at_test`` are settings that are changed for these reports (``radweave.engine.restore``); the model keeps them.
    Answers of an endpoint are kept in ``OUT.answers``, each as it comes, until every study has one.

    Raises:
        InputError: if ``out`` exists or another process writes it, no study can be used, or a setting is none.
    """
    if predictor.refusal is not None:
        raise InputError(predictor.refusal, file=run.folder)
    ranks = ranks or Ranks()
    dataset = Dataset.open(dataset_path).aimed(run.experiment.data.target)
    with locked_output(out, ranks, overwrite=overwrite, kind=DRAFTS):
        data = run.experiment.data
        if next(iter(dataset.studies(split)), None) is None:
            raise no_usable_study(dataset, split)
        with ranks.first_goes_first():
            cache = build_cache(dataset, size=data.image_size, ct=data.ct, progress=images)
        prepared = prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False)
        if not prepared.examples:
            raise no_usable_study(dataset, split)
        if at_test:
            with ranks.first_goes_first():
                warning = vary(run, dataset, at_test)
            predictor = replace(predictor, warnings=(*predictor.warnings, warning))
        study_ids = [example.study_id for example in prepared.examples]
        identity = _identity(run, predictor, dataset, split, batch_size) | {"images": cache.digest}
        with ranks.first_goes_first():
            plan = open_plan(shards_of(out), study_ids, shard_size=shard_size, identity=identity)
        count = _counter(plan, progress if ranks.is_first else None)
        answers = answers_of(out) if isinstance(run.model, Served) else None
        if isinstance(run.model, Served) and not ray_workers:
            run.model.keep_answers(answers_of(out), ranks.size)
        if ray_workers:
            decoding, settings = predictor.decoding.model_dump(mode="json"), tuple(at_test)
            recipe = ReportRecipe(
                run.folder,
                dataset_path,
                split,
                batch_size,
                decoding,
                predictor.warnings,
                settings,
                answers,
                ray_workers,
                predictor.options,
                predictor.own_because,
            )

            def finished(number: int) -> None:
                count(len(plan.shards[number]))

            compute_on_ray(plan, recipe, workers=ray_workers, finished=finished, on_gpus=answers is None)
        else:
            rows = replace(Rows.of_split(predictor, prepared, batch_size), count=count)
            for number in shards_to_compute(plan, ranks):
                write_jsonl(plan.path(number), rows.of(plan.shards[number]))
        counts: Counter[str] = Counter()
        failed: dict[str, str] = {}
        if ranks.is_first:
            from radweave.inference.floors import floor_reports

            by_study: dict[str, Mapping[str, Any]] = {
                "ref": prepared.references,
                "prior_report": prior_reports(dataset.studies(split)),
                "floors": floor_reports(dataset, cache, prepared.examples, partial(training_reports_of, run.folder)),
            }
            if predictor.place is not None:
                labeler = get_labeler(data.label_set)
                marked = reference_boxes(dataset.studies(split), prepared, cache, labeler)
                by_study |= {"ref_boxes": marked} if marked else {}
            facts = {
                "modality": data.modality, "dataset": dataset.card.name, "target": dataset.card.target,
                "as_written": predictor.decoding.is_as_written,
            }  # fmt: skip
            write_jsonl(out, _counted(_merged(plan, facts, by_study, failed), counts))
            shutil.rmtree(plan.folder)
            if answers is not None and not failed:
                shutil.rmtree(answers, ignore_errors=True)
        ranks.wait()
    left_out = {**prepared.left_out, **failed}
    return BulkResult(len(study_ids) - len(failed), left_out, counts["unlike"], counts["compared"], len(failed))


def answers_of(out: Path) -> Path:
    """Folder of the answers of an endpoint for an output."""
    return out.with_name(f"{out.name}.answers")


def _counter(plan: Plan, progress: Callable[[int, int], None] | None) -> Callable[[int], None]:
    """Tell ``progress`` how many studies of the plan are done, more by more; those of finished shards are."""
    total = sum(map(len, plan.shards))
    done = total - sum(len(plan.shards[number]) for number in plan.missing())

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    return count


def _identity(run: Run, predictor: Predictor, dataset: Dataset, split: Split, batch_size: int) -> dict[str, Any]:
    """Everything that decides the text: finished shards are reused while it is the same."""
    return {
        "run": run.card.model_dump(mode="json"),
        "dataset": dataset.fingerprint(),
        "split": split,
        "decoding": predictor.decoding.model_dump(mode="json"),
        "decoder": predictor.decoder,
        "warnings": list(predictor.warnings),
        "batch_size": batch_size,
        "code": code_hash(),
        "libraries": library_versions(),
    }


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a shard's reports, by study id. ``count`` is called with each."""

    predictor: Predictor
    examples: Mapping[str, Example]
    batch_size: int
    count: Callable[[int], None] = lambda more: None

    @classmethod
    def of_split(cls, predictor: Predictor, prepared: PreparedSplit, batch_size: int) -> Rows:
        """Of the studies of a split, with their priors where a draft reads them."""
        examples = prepared.examples_with_priors if predictor.decoding.asks_prior else prepared.examples
        return cls(predictor, {example.study_id: example for example in examples}, batch_size)

    def of(self, study_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """One row per study, made as it is asked for."""
        examples = [self.examples[study_id] for study_id in study_ids]
        return map(self._row, self.predictor.reports(examples, batch_size=self.batch_size))

    def _row(self, report: Report) -> dict[str, Any]:
        self.count(1)
        if (reason := report.evidence.get("served", {}).get("failed")) is not None:
            return {"study_id": report.study_id, "refused": reason}
        evidence, warnings = dict(report.evidence), list(report.warnings)
        return {"study_id": report.study_id, "hyp": report.text, "evidence": evidence, "warnings": warnings}


def _merged(
    plan: Plan, facts: Mapping[str, Any], by_study: Mapping[str, Mapping[str, Any]], failed: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """The rows of all shards in the order of the plan, each study exactly once.

    ``facts`` hold of all of them; ``by_study`` has further fields, each by study id, null (floors: none) where
    one lacks. ``failed`` gets the studies without a draft, with the reason.

    Raises:
        InputError: if a shard does not hold the studies it should.
    """
    for number, study_ids in enumerate(plan.shards):
        rows = [row for _, row in read_jsonl(plan.path(number))]
        if [row["study_id"] for row in rows] != list(study_ids):
            raise InputError("the shard does not hold the studies it should; remove it", file=plan.path(number))
        for row in rows:
            if "refused" in row:
                failed[row["study_id"]] = row["refused"]
                continue
            extra = {**facts, **{name: values.get(row["study_id"]) for name, values in by_study.items()}}
            extra["floors"] = extra["floors"] or {}
            order = ("study_id", *facts, "hyp", *by_study, "evidence", "warnings")
            whole = {**row, **extra}
            if extra.get("ref_boxes") is not None:
                whole, order = {**whole, "boxes": drafted_boxes(row["evidence"])}, (*order, "boxes")
            yield {key: whole[key] for key in order}


def _counted(rows: Iterator[dict[str, Any]], counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """The same rows, counting for the summary."""
    for row in rows:
        counts["unlike"] += is_unlike(row["evidence"])
        counts["compared"] += len(row["evidence"].get(COMPARISONS, ()))
        yield row


@dataclass(frozen=True, slots=True)
class ReportRecipe:
    """Recipe by which a worker opens a run and a split; see ``radweave.inference.shards``."""

    run: Path
    dataset: Path
    split: Split
    batch_size: int
    decoding: dict[str, Any]
    warnings: tuple[str, ...]
    at_test: tuple[str, ...] = ()
    answers: Path | None = None
    workers: int = 1
    options: tuple[str, ...] = ()
    own_because: str = ""

    def open(self) -> Compute:
        run = restore(self.run)
        dataset = Dataset.open(self.dataset).aimed(run.experiment.data.target)
        if self.at_test:
            vary(run, dataset, self.at_test)
        if self.answers is not None and isinstance(run.model, Served):
            run.model.keep_answers(self.answers, self.workers)
        data = run.experiment.data
        cache = build_cache(dataset, size=data.image_size, ct=data.ct)
        prepared = prepare(dataset, self.split, run.experiment, run.tokenizer, cache, need_text=False)
        decoding = type(run.experiment.decoding).model_validate(self.decoding)
        predictor = replace(
            Predictor.of(run, untrained=True),
            decoding=decoding,
            warnings=self.warnings,
            options=self.options,
            own_because=self.own_because,
        )
        rows = Rows.of_split(predictor, prepared, self.batch_size)
        return lambda study_ids, path: write_jsonl(path, rows.of(study_ids))
