"""Floors: what a system would score that looks at nothing, or at raw pixels only. Training reports only.

``constant``: one training report for every study, chosen for its score on the validation split.
``constant_findings``, ``constant_wording``: the same, chosen for one score alone on the training split
(``evaluation.constants``).
``nearest_neighbour``: the report of the training study whose frontal image is nearest in 32 x 32 grey values, or whose
scan is nearest in 8 x 16 x 16 of them.

A data set without a training split has the constants of the run's own training reports, as far as the run keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from radweave.core.study import Study
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, ordered_views
from radweave.labels import LABELER_OF, get_labeler
from radweave.metrics.evaluate import best_constant
from radweave.metrics.floors import best_constants, training_reports
from radweave.metrics.protocols import get_protocol

THUMBNAIL = 32
SCAN_THUMBNAIL = (8, 16, 16)
TOGETHER = 64
"""Studies whose nearest is looked for in one pass over the bank."""
AT_ONCE = 16_384
"""Rows of the bank that are floating point at once."""
CANDIDATES = 200
VALIDATION_STUDIES = 100


def floor_reports(
    dataset: Dataset, cache: PixelCache, examples: Sequence[Example], run_reports: Callable[[], Sequence[str]] = tuple
) -> dict[str, dict[str, str]]:
    """Floor reports per study id; empty where neither the data set nor the run has training reports.

    ``run_reports`` reads those of the run, where the data set has none.
    """
    train = [study for study in dataset.studies("train") if study.report]
    texts = training_reports(train) or tuple(text.strip() for text in run_reports() if text.strip())
    if not texts:
        return {}
    constants = {"constant": _constant(dataset, texts)}
    known = {study.study_id for study in train}
    if not any(example.study_id in known for example in examples):
        # Training studies would be scored by a report that was chosen on them.
        labeler = get_labeler(LABELER_OF[dataset.card.modality])
        constants |= best_constants(texts, get_protocol("full"), labeler)
    with_image = [study for study in train if any(ref.path in cache.rows for ref in study.images)]
    nearest = _nearest(with_image, cache, examples) if with_image else {}
    return {
        example.study_id: constants
        | ({"nearest_neighbour": nearest[example.study_id]} if example.study_id in nearest else {})
        for example in examples
    }


def _constant(dataset: Dataset, texts: Sequence[str]) -> str:
    order = np.random.default_rng(0).permutation(len(texts))[:CANDIDATES]
    candidates = list(dict.fromkeys(texts[index] for index in order))
    references = [study.report.strip() for study in dataset.studies("val") if study.report]
    return best_constant(candidates, references[:VALIDATION_STUDIES]) if references else candidates[0]


def _nearest(train: Sequence[Study], cache: PixelCache, examples: Sequence[Example]) -> dict[str, str]:
    """Study id -> the report of the nearest training study of another patient; the first of equally near ones."""
    bank = np.stack([_thumbnail(cache.pixels[_first_row(study, cache)]) for study in train])
    patients = np.array([study.patient_id for study in train])
    nearest: dict[str, str] = {}
    for start in range(0, len(examples), TOGETHER):
        group = examples[start : start + TOGETHER]
        queries = np.stack([_thumbnail(example.source[example.rows[0]]) for example in group])
        others = patients[None] != np.array([example.patient_id for example in group])[:, None]
        rows = nearest_rows(bank, queries, others)
        nearest |= {
            example.study_id: (train[row].report or "").strip() for example, row in zip(group, rows, strict=True)
        }
    return nearest


def nearest_rows(bank: NDArray[np.int16], queries: NDArray[np.int16], allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each query (Q, D) the first of the rows of ``bank`` (N, D) that are nearest of those ``allowed`` (Q, N).

    Whole numbers, so that a query finds the same row in any company: their products are exact in floating point.
    """
    # Values below 2**7 in absolute value: 1,024 products sum up to 2**24 at most, which single precision holds.
    kind = np.dtype(np.float32 if bank.shape[1] <= 1 << 10 else np.float64)
    wanted: NDArray[np.floating] = queries.astype(kind).T
    best = np.full(len(queries), np.inf)
    nearest = np.zeros(len(queries), dtype=np.int64)
    for start in range(0, len(bank), AT_ONCE):
        rows: NDArray[np.floating] = bank[start : start + AT_ONCE].astype(kind)
        squares = (rows**2).sum(axis=1, dtype=np.float64)
        distance = squares[:, None] - 2.0 * (rows @ wanted)
        distance[~allowed[:, start : start + AT_ONCE].T] = np.inf
        row = distance.argmin(axis=0)
        least = distance[row, np.arange(len(queries))]
        closer = least < best
        best[closer], nearest[closer] = least[closer], start + row[closer]
    return nearest


def _first_row(study: Study, cache: PixelCache) -> int:
    readable = [ref for ref in study.images if ref.path in cache.rows]
    return cache.rows[ordered_views(readable, 1)[0].path]


def _thumbnail(picture: NDArray[np.uint8]) -> NDArray[np.int16]:
    """A square or a scan as a few grey values in one row, -128 to 127."""
    if picture.ndim == 2:
        small = Image.fromarray(np.asarray(picture)).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
        return np.asarray(small, dtype=np.int16).ravel() - np.int16(128)
    means = picture.astype(np.float32)
    for axis, count in enumerate(SCAN_THUMBNAIL):
        parts = np.array_split(means, min(count, means.shape[axis]), axis=axis)
        means = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return np.asarray(np.rint(means).ravel(), dtype=np.int16) - np.int16(128)
