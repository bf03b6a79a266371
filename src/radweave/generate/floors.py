"""Floors: what a system would score that looks at nothing, or at raw pixels only. Training split only.

``constant``: one training report for everybody, chosen for its score on the validation split.
``constant_findings``, ``constant_wording``: the same, chosen for one score alone on the training split
(``evaluation.constants``).
``nearest_neighbour``: the report of the training study whose frontal image is nearest in 32 x 32 grey values, or whose
scan is nearest in 8 x 16 x 16 of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.base.study import Study
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, ordered_views
from radweave.evaluation.constants import best_constants, training_reports
from radweave.evaluation.protocols import get_protocol
from radweave.evaluation.validation import best_constant
from radweave.labels import LABELER_OF, get_labeler

THUMBNAIL = 32
SCAN_THUMBNAIL = (8, 16, 16)
CANDIDATES = 200
VALIDATION_STUDIES = 100


def floor_reports(dataset: Dataset, cache: PixelCache, examples: Sequence[Example]) -> dict[str, dict[str, str]]:
    """Floor reports per study id; empty where the data set has no training reports."""
    train = [study for study in dataset.studies("train") if study.report]
    if not train:
        return {}
    constants = {"constant": _constant(dataset, train)}
    known = {study.study_id for study in train}
    if not any(example.study_id in known for example in examples):
        # Training studies would be scored by a report that was chosen on them.
        labeler = get_labeler(LABELER_OF[dataset.card.modality])
        constants |= best_constants(training_reports(train), get_protocol("full"), labeler)
    with_image = [study for study in train if any(ref.path in cache.rows for ref in study.images)]
    nearest = _nearest(with_image, cache, examples) if with_image else {}
    return {
        example.study_id: constants
        | ({"nearest_neighbour": nearest[example.study_id]} if example.study_id in nearest else {})
        for example in examples
    }


def _constant(dataset: Dataset, train: Sequence[Study]) -> str:
    order = np.random.default_rng(0).permutation(len(train))[:CANDIDATES]
    candidates = list(dict.fromkeys((train[index].report or "").strip() for index in order))
    references = [study.report.strip() for study in dataset.studies("val") if study.report]
    return best_constant(candidates, references[:VALIDATION_STUDIES]) if references else candidates[0]


def _nearest(train: Sequence[Study], cache: PixelCache, examples: Sequence[Example]) -> dict[str, str]:
    bank = np.stack([_thumbnail(cache.pixels[_first_row(study, cache)]) for study in train])
    reports = [(study.report or "").strip() for study in train]
    patients = np.array([study.patient_id for study in train])
    norms = (bank**2).sum(axis=1)
    nearest = {}
    for example in examples:
        query = _thumbnail(example.source[example.rows[0]])
        distance = norms - 2 * bank @ query
        distance[patients == example.patient_id] = np.inf
        nearest[example.study_id] = reports[int(distance.argmin())]
    return nearest


def _first_row(study: Study, cache: PixelCache) -> int:
    readable = [ref for ref in study.images if ref.path in cache.rows]
    return cache.rows[ordered_views(readable, 1)[0].path]


def _thumbnail(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A square or a scan as a few grey values in one row."""
    if picture.ndim == 2:
        small = Image.fromarray(np.asarray(picture)).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
        return np.asarray(small, dtype=np.float32).ravel() / 255.0
    means = picture.astype(np.float32)
    for axis, count in enumerate(SCAN_THUMBNAIL):
        parts = np.array_split(means, min(count, means.shape[axis]), axis=axis)
        means = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return means.ravel() / np.float32(255.0)
