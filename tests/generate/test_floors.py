"""Floors know the training split only, and never the query's own patient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from radweave.base.study import ImageRef, Study
from radweave.data.cache.images import PixelCache, build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.generate import floors


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
    seen: list[list[Study]] = []
    monkeypatch.setattr(floors, "_constant", lambda dataset, train: seen.append(list(train)) or "Clear.")
    monkeypatch.setattr(floors, "_nearest", lambda train, cache, examples: seen.append(list(train)) or {})
    floors.floor_reports(toy_dataset, build_cache(toy_dataset, size=16), [])
    assert len(seen) == 2
    assert {study.split for studies in seen for study in studies} == {"train"}
