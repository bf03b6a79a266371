"""Reports in bulk: over a split of a dataset folder, and over image files grouped into studies."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.base.errors import InputError
from radweave.base.json_files import read_jsonl, write_jsonl
from radweave.base.provenance import code_hash, library_versions
from radweave.base.study import Report, Split
from radweave.contract.experiment import DataConfig
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.generate.draft_file import DRAFTS
from radweave.generate.familiar import is_unlike
from radweave.generate.floors import floor_reports
from radweave.generate.predictor import Predictor
from radweave.generate.shards import Compute, Plan, compute_on_ray, held, open_plan, shards_of, shards_to_compute
from radweave.runs.at_test import vary
from radweave.runs.comparisons import EVIDENCE as COMPARISONS
from radweave.runs.prepare import prepare
from radweave.runs.restore import Run, restore
from radweave.train.distributed import Ranks


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
    at_test: Sequence[str] = (),
) -> BulkResult:
    """Write ``predictions.jsonl``: per study its id, ``hyp``, ``ref`` (null where there is none), evidence, floors.

    ``floors`` holds what systems that look at nothing, or only at pixels, would have said (training split only).
    Shards (``radweave.generate.shards``) lie in ``OUT.shards`` until all are there, so that a job that was stopped goes
    on where it was; they are shared out among ``ranks``, or over ``ray_workers`` workers of Ray. Images unlike those
    the run was trained on are reported on, with a warning, and counted: a score over a split is one over all of it.
    ``at_test`` are settings that are changed for these reports (``radweave.runs.at_test``); the model keeps them.

    Raises:
        InputError: if ``out`` exists or another process writes it, no study can be used, or a setting is none.
    """
    if predictor.refusal is not None:
        raise InputError(predictor.refusal, file=run.folder)
    ranks = ranks or Ranks()
    dataset = Dataset.open(dataset_path).aimed(run.experiment.data.target)
    with held(out, ranks, overwrite=overwrite, ours=DRAFTS):
        data = run.experiment.data
        with ranks.first_goes_first():
            cache = build_cache(dataset, size=data.image_size, ct=data.ct, progress=images)
        prepared = prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False)
        if not prepared.examples:
            raise InputError(f"the data set has no usable study in split '{split}'", file=dataset_path)
        if at_test:
            predictor = _varied(run, predictor, dataset, at_test, ranks)
        study_ids = [example.study_id for example in prepared.examples]
        identity = _identity(run, predictor, dataset, split, batch_size) | {"images": cache.digest}
        with ranks.first_goes_first():
            plan = open_plan(shards_of(out), study_ids, shard_size=shard_size, identity=identity)
        count = _counter(plan, progress if ranks.is_first else None)
        if ray_workers:
            decoding, asked = predictor.decoding.model_dump(mode="json"), tuple(at_test)
            recipe = ReportRecipe(run.folder, dataset_path, split, batch_size, decoding, predictor.warnings, asked)
            compute_on_ray(plan, recipe, workers=ray_workers, finished=lambda number: count(len(plan.shards[number])))
        else:
            rows = Rows(predictor, {example.study_id: example for example in prepared.examples}, batch_size, count)
            for number in shards_to_compute(plan, ranks):
                write_jsonl(plan.path(number), rows.of(plan.shards[number]))
        counts: Counter[str] = Counter()
        if ranks.is_first:
            floors = floor_reports(dataset, cache, prepared.examples)
            write_jsonl(out, _counted(_merged(plan, _facts(data, dataset), prepared.references, floors), counts))
            shutil.rmtree(plan.folder)
        ranks.wait()
    return BulkResult(len(study_ids), prepared.left_out, counts["unlike"], counts["compared"])


def _varied(run: Run, predictor: Predictor, dataset: Dataset, at_test: Sequence[str], ranks: Ranks) -> Predictor:
    """With other settings for these reports, and a warning that says so."""
    with ranks.first_goes_first():
        warning = vary(run, dataset, at_test)
    return dataclasses.replace(predictor, warnings=(*predictor.warnings, warning))


def _facts(data: DataConfig, dataset: Dataset) -> dict[str, str]:
    """What every line of the predictions says of the data set."""
    facts = {"modality": data.modality, "dataset": dataset.card.name}
    if data.target != "as_imported" or dataset.card.target == "both":
        facts["target"] = dataset.card.target
    return facts


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


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a shard's reports, by study id. ``count`` is told of each."""

    predictor: Predictor
    examples: Mapping[str, Example]
    batch_size: int
    count: Callable[[int], None] = lambda more: None

    def of(self, study_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """One row per study, made as it is asked for."""
        examples = [self.examples[study_id] for study_id in study_ids]
        return map(self._row, self.predictor.reports(examples, batch_size=self.batch_size))

    def _row(self, report: Report) -> dict[str, Any]:
        self.count(1)
        evidence, warnings = dict(report.evidence), list(report.warnings)
        return {"study_id": report.study_id, "hyp": report.text, "evidence": evidence, "warnings": warnings}


def _merged(
    plan: Plan, facts: Mapping[str, Any], references: Mapping[str, str], floors: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of all shards in the order of the plan, each study exactly once; ``facts`` hold of all of them.

    Raises:
        InputError: if a shard does not hold the studies it should.
    """
    for number, study_ids in enumerate(plan.shards):
        rows = [row for _, row in read_jsonl(plan.path(number))]
        if [row["study_id"] for row in rows] != list(study_ids):
            raise InputError("the shard does not hold the studies it should; remove it", file=plan.path(number))
        for row in rows:
            study_id = row["study_id"]
            extra = {**facts, "ref": references.get(study_id), "floors": floors.get(study_id, {})}
            order = ("study_id", *facts, "hyp", "ref", "floors", "evidence", "warnings")
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
    """How a worker elsewhere opens a run and a split; see ``radweave.generate.shards``."""

    run: Path
    dataset: Path
    split: Split
    batch_size: int
    decoding: dict[str, Any]
    warnings: tuple[str, ...]
    at_test: tuple[str, ...] = ()

    def open(self) -> Compute:
        run = restore(self.run)
        dataset = Dataset.open(self.dataset).aimed(run.experiment.data.target)
        if self.at_test:
            vary(run, dataset, self.at_test)
        data = run.experiment.data
        cache = build_cache(dataset, size=data.image_size, ct=data.ct)
        prepared = prepare(dataset, self.split, run.experiment, run.tokenizer, cache, need_text=False)
        decoding = type(run.experiment.decoding).model_validate(self.decoding)
        predictor = dataclasses.replace(Predictor.of(run, untrained=True), decoding=decoding, warnings=self.warnings)
        rows = Rows(predictor, {example.study_id: example for example in prepared.examples}, self.batch_size)
        return lambda study_ids, path: write_jsonl(path, rows.of(study_ids))
