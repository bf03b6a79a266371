"""Feature banks in bulk: one vector per study, the mean of its patch tokens under a run's vision encoder.

Made in shards like reports (see ``radweave.inference.shards``): kept when stopped, each study once, on one machine or
many.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from radweave.core.errors import InputError
from radweave.core.provenance import code_hash, library_versions
from radweave.core.study import Split
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.engine.distributed import Ranks
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.inference.shards import Compute, compute_on_ray, locked_output, open_plan, shards_of, shards_to_compute
from radweave.methods.model import device_of
from radweave.nn.connector import encode_views
from radweave.nn.memory.bank import BANK, Bank, load_bank, patient_code, save_bank


def build_feature_bank(
    run: Run,
    dataset_path: Path,
    split: Split,
    out: Path,
    *,
    batch_size: int = 32,
    shard_size: int = 1024,
    overwrite: bool = False,
    ranks: Ranks | None = None,
    ray_workers: int = 0,
    images: Callable[[int, int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Bank:
    """Write a bank with the tensor ``features`` (N, D) for a split of a data set; return it.

    Raises:
        InputError: if ``out`` exists or another process writes it, or the split holds no study that can be used.
    """
    ranks = ranks or Ranks()
    recipe = FeatureRecipe(run.folder, dataset_path, split, batch_size)
    with locked_output(out, ranks, overwrite=overwrite, kind=BANK):
        with ranks.first_goes_first():
            examples, pixels, compute = recipe.prepare(run, images)
            if not examples:
                raise InputError(f"the data set has no usable study in split '{split}'", file=dataset_path)
            identity = {
                "run": run.card.files,
                "dataset": Dataset.open(dataset_path).fingerprint(),
                "images": pixels,
                "split": split,
                "code": code_hash(),
                "libraries": library_versions(),
            }
            study_ids = [example.study_id for example in examples]
            plan = open_plan(shards_of(out), study_ids, shard_size=shard_size, identity=identity)
        done = len(plan.shards) - len(plan.missing())

        def finished(number: int) -> None:
            nonlocal done
            done += 1
            if progress is not None and ranks.is_first:
                progress(done, len(plan.shards))

        if ray_workers:
            compute_on_ray(plan, recipe, workers=ray_workers, finished=finished)
        else:
            for number in shards_to_compute(plan, ranks):
                compute(plan.shards[number], plan.path(number))
                finished(number)
        if ranks.is_first:
            shards = [load_bank(plan.path(number)) for number in range(len(plan.shards))]
            rows = tuple(row for shard in shards for row in shard.rows)
            if [row["study_id"] for row in rows] != study_ids:
                raise InputError("the shards do not hold the studies they should; remove them", file=plan.folder)
            save_bank(Bank({"features": torch.cat([shard.tensors["features"] for shard in shards])}, rows), out)
            shutil.rmtree(plan.folder)
        ranks.wait()
    return load_bank(out)


@dataclass(frozen=True, slots=True)
class FeatureRecipe:
    """Recipe by which a worker opens a run and a split; see ``radweave.inference.shards``."""

    run: Path
    dataset: Path
    split: Split
    batch_size: int

    def open(self) -> Compute:
        return self.prepare(restore(self.run), None)[2]

    def prepare(self, run: Run, images: Callable[[int, int], None] | None) -> tuple[Sequence[Example], str, Compute]:
        """The studies of the split, the hash of all pixels, and what computes the features."""
        dataset = Dataset.open(self.dataset)
        data = run.experiment.data
        cache = build_cache(dataset, size=data.image_size, ct=data.ct, progress=images)
        prepared = prepare(dataset, self.split, run.experiment, run.tokenizer, cache, need_text=False)
        return prepared.examples, cache.digest, _writer(run.model.encoder, prepared.examples, self.batch_size)


def _writer(encoder: nn.Module, examples: Sequence[Example], batch_size: int) -> Compute:
    known = {example.study_id: example for example in examples}
    device = device_of(encoder)

    def compute(study_ids: Sequence[str], path: Path) -> None:
        chosen = [known[study_id] for study_id in study_ids]
        vectors = []
        with torch.inference_mode():
            for start in range(0, len(chosen), batch_size):
                batch = collate(chosen[start : start + batch_size], pad_id=0).to(device)
                vectors.append(encode_views(encoder, batch).mean().float().cpu())
        rows = tuple({"study_id": one.study_id, "patient": patient_code(one.patient_id)} for one in chosen)
        save_bank(Bank({"features": torch.cat(vectors)}, rows), path)

    return compute
