"""One study of a data set, read as in training and in bulk, without reading the others' images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from radweave.base.errors import InputError
from radweave.base.study import ImageRef, Study
from radweave.data.cache.images import PixelCache, refuse_other
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.data.reading.images import read_radiograph
from radweave.generate.pictures import Picture, model_input, read_scan, refuse_doubtful
from radweave.runs.prepare import prepare
from radweave.runs.restore import Run


@dataclass(frozen=True, slots=True)
class DatasetStudy:
    """A study, the views that the model sees in its order, what the model gets, and the readers' warnings."""

    study: Study
    views: tuple[tuple[ImageRef, Picture], ...]
    example: Example
    warnings: tuple[str, ...]


def read_dataset_study(run: Run, dataset: Dataset, study_id: str, *, force: bool = False) -> DatasetStudy:
    """Find a study and read its images, and those of the study before it where the run looks at priors.

    Raises:
        InputError: if it is not there, the run reads another modality, none of its images can be read, or one is
            doubtful and not ``force``.
    """
    modality = run.experiment.data.modality
    refuse_other(dataset, modality)
    study = next((study for study in dataset.studies() if study.study_id == study_id), None)
    if study is None:
        raise InputError("no such study in the data set", file=dataset.path, field="--study", got=study_id)
    wanted = [study]
    if run.experiment.data.priors and study.prior is not None:
        wanted += [other for other in dataset.studies(study.split) if other.study_id == study.prior]
    read, unreadable = _read(dataset, (ref for one in wanted for ref in one.images if ref.modality == modality))
    warnings = [(ref, text) for ref in study.images if ref.path in read for text in read[ref.path].warnings]
    if not force:
        own = [ref.path for ref in study.images if ref.path in read]
        refuse_doubtful([read[path] for path in own], [dataset.path / path for path in own])
    lost = [(ref, f"left out, {unreadable[ref.path]}") for ref in study.images if ref.path in unreadable]
    example = _example(run, dataset, study, read, unreadable)
    by_row = dict(enumerate(read))
    refs = {ref.path: ref for ref in study.images}
    return DatasetStudy(
        study=study,
        views=tuple((refs[by_row[row]], read[by_row[row]]) for row in example.rows),
        example=example,
        warnings=tuple(f"{Path(ref.path).name}: {text}" for ref, text in (*warnings, *lost)),
    )


def _read(dataset: Dataset, refs: Iterable[ImageRef]) -> tuple[dict[str, Picture], dict[str, str]]:
    """Path -> radiograph or scan, and path -> the reason why it cannot be read."""
    read: dict[str, Picture] = {}
    unreadable: dict[str, str] = {}
    for ref in refs:
        try:
            path = dataset.image_path(ref.path)
            if ref.modality == "ct":
                read[ref.path] = read_scan(path)
            else:
                read[ref.path] = read_radiograph(path, original_size_wh=ref.original_size_wh)
        except InputError as error:
            unreadable[ref.path] = error.reason
    return read, unreadable


def _example(run: Run, dataset: Dataset, study: Study, read: dict[str, Picture], unreadable: dict[str, str]) -> Example:
    """What the model gets: the study with its patient, so that no memory answers with that one, and without its report.

    Raises:
        InputError: if no image can be read.
    """
    data = run.experiment.data
    none = np.zeros((0, data.image_size, data.image_size), np.uint8)
    cache = PixelCache(
        pixels=model_input(list(read.values()), image_size=data.image_size, ct=data.ct) if read else none,
        rows={path: row for row, path in enumerate(read)},
        unreadable=unreadable,
    )
    prepared = prepare(dataset, study.split, run.experiment, run.tokenizer, cache, need_text=False)
    example = next((example for example in prepared.examples if example.study_id == study.study_id), None)
    if example is None:
        raise InputError(
            f"the study cannot be used: {prepared.left_out.get(study.study_id, 'no image')}",
            file=dataset.path,
            field="--study",
            got=study.study_id,
        )
    return replace(example, token_ids=None, class_states=None, report=None)
