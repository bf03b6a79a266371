"""Experiments at test time: a trained run reports with some of its settings changed, and nothing is trained.

    radweave generate RUN --data DATASET --out OUT.jsonl --at-test pool.size=10 --at-test pairing_seed=3

What may be set is the method's record (``Varied.settings``). The run folder stays as it is, and every report says that
it was not written as the run was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from radweave.base.errors import InputError
from radweave.base.overrides import override
from radweave.base.study import Split
from radweave.contract.model import Varied
from radweave.contract.view import TrainingView
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.examples import refuse_shared_images
from radweave.runs.prepare import prepare
from radweave.runs.restore import Run


def vary(run: Run, dataset: Dataset, assignments: Sequence[str]) -> str:
    """Set the run's model as ``assignments`` (``key=value``) say, for reports on ``dataset``; return what to warn of.

    Raises:
        InputError: if the method has nothing to set, for an unknown setting, or a data set that cannot serve.
    """
    model = run.model
    if not isinstance(model, Varied):
        raise InputError("this method has nothing to set at test time", field="--at-test", got=run.card.method)
    model.vary(override(model.settings, assignments), lambda folder, split: view_of(run, dataset, folder, split))
    return f"not as the run was trained: {' '.join(assignments)}"


def view_of(run: Run, dataset: Dataset, folder: str | None, split: Split) -> TrainingView:
    """A split of the data set that is reported on, or of another one."""
    own = folder is None
    source = (dataset if folder is None else Dataset.open(Path(folder))).aimed(run.experiment.data.target)
    if own and dataset.fingerprint() != run.card.dataset.fingerprint:
        raise InputError(
            "is not the data set that the run was trained on: from which one shall it be?",
            file=dataset.path,
            field="--at-test data",
            expected="data=FOLDER",
        )
    same = source.fingerprint() == dataset.fingerprint()
    if not same:
        refuse_shared_images(dataset, source, split)
    data = run.experiment.data
    cache = build_cache(source, size=data.image_size, ct=data.ct)
    prepared = prepare(source, split, run.experiment, run.tokenizer, cache, need_text=True)
    studies = {study.study_id: study for study in source.studies(split)}
    return TrainingView(
        studies=tuple(studies[example.study_id] for example in prepared.examples),
        examples=tuple(prepared.examples),
        classes=run.card.classes,
        pad_id=int(run.tokenizer.pad_token_id),
        seed=run.experiment.seed,
        origin=None if source.fingerprint() == run.card.dataset.fingerprint else source.card.name,
        open_other=lambda path: view_of(run, dataset, str(path), split),
        split=split,
    )
