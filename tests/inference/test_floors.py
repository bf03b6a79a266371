"""Floors know the training split only, and never the query's own patient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from radweave.core.study import ImageRef, Study
from radweave.data.cache.images import PixelCache, build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.inference import floors


def test_the_nearest_is_of_another_patient() -> None:
    pixels = np.zeros((2, 32, 32), np.uint8)
    pixels[1] = 255
    cache = PixelCache(pixels, {"images/0.png": 0, "images/1.png": 1}, {}, "digest")
    train = [
        Study(study_id=f"s{n}", patient_id=f"p{n}", images=(ImageRef(path=f"images/{n}.png"),), report=f"Report {n}.")
        for n in range(2)
    ]
    query = Example("q", "p0", pixels, (0,), (1,))
    assert floors._nearest(train, cache, [query]) == {"q": "Report 1."}
    assert floors._nearest(train, cache, [replace(query, patient_id="p9")]) == {"q": "Report 0."}


def test_no_study_of_another_split_is_a_floor(toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    splits_read: list[list[Study]] = []
    monkeypatch.setattr(floors, "_constant", lambda dataset, train: splits_read.append(list(train)) or "Clear.")
    monkeypatch.setattr(floors, "_nearest", lambda train, cache, examples: splits_read.append(list(train)) or {})
    floors.floor_reports(toy_dataset, build_cache(toy_dataset, size=16), [])
    assert len(splits_read) == 2
    assert {study.split for studies in splits_read for study in studies} == {"train"}


@pytest.mark.parametrize("width", [1024, 2048])
def test_the_nearest_row_is_exact_for_any_batch(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "AT_ONCE", 7)
    drawn = np.random.default_rng(0)
    # Large values, whose sums single precision does not hold at 2,048 of them.
    bank = drawn.integers(-128, -120, (40, width), dtype=np.int16)
    # Ties, and neighbours whose distances differ by 1 in some 10 million.
    bank[20:30] = bank[10:20]
    bank[30:] = bank[10:20]
    bank[30:, 0] += np.where(bank[30:, 0] < 127, 1, -1).astype(np.int16)
    queries = np.concatenate([bank[25:35], drawn.integers(-128, -120, (5, width), dtype=np.int16)])
    allowed = drawn.random((15, 40)) < 0.8
    distance = ((bank[None].astype(np.int64) - queries[:, None]) ** 2).sum(axis=2)
    expected = np.where(allowed, distance, np.iinfo(np.int64).max).argmin(axis=1)
    np.testing.assert_array_equal(floors.nearest_rows(bank, queries, allowed), expected)
    alone = [floors.nearest_rows(bank, queries[n : n + 1], allowed[n : n + 1])[0] for n in range(15)]
    np.testing.assert_array_equal(alone, expected)
