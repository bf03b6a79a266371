"""Floors know the training split only, and never the query's own patient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radweave.core.study import ImageRef, Split, Study
from radweave.data.cache.images import PixelCache, build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.engine.expected_utility import training_reports_of
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
    texts: list[str] = []
    splits_read: list[Study] = []
    monkeypatch.setattr(floors, "_constant", lambda dataset, train: texts.extend(train) or "Clear.")
    monkeypatch.setattr(floors, "_nearest", lambda train, cache, examples: splits_read.extend(train) or {})
    floors.floor_reports(toy_dataset, build_cache(toy_dataset, size=16), [])
    assert texts == [study.report for study in toy_dataset.studies("train")]
    assert {study.split for study in splits_read} == {"train"}


def test_without_training_studies_constants_are_of_the_run_s_reports(toy_dataset: Dataset, toy_run: Path) -> None:
    """The reports that the run keeps are its training reports; a data set's own take precedence."""

    class TestOnly(Dataset):
        def studies(self, split: Split | None = None) -> Iterator[Study]:
            return iter(()) if split != "test" else super().studies(split)

    query = Example("q", "p0", np.zeros((1, 32, 32), np.uint8), (0,), (1,))
    cache = build_cache(toy_dataset, size=16)
    outside = TestOnly(toy_dataset.path, toy_dataset.card)
    own = {study.report for study in toy_dataset.studies("train")}
    made = floors.floor_reports(outside, cache, [query], lambda: training_reports_of(toy_run))["q"]
    assert set(made) == {"constant", "constant_findings", "constant_wording"}
    assert set(made.values()) <= own
    assert floors.floor_reports(outside, cache, [query]) == {}
    other = floors.floor_reports(toy_dataset, cache, [query], lambda: ["Another report."])["q"]
    assert "Another report." not in other.values()


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
