"""``radweave.Dataset``: a dataset folder as a torch data set, read in one call."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

import radweave
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset


def test_a_split_is_read_in_one_call_and_goes_through_torch_s_loader(toy_dataset: Dataset) -> None:
    data = radweave.Dataset(toy_dataset.path, split="test", image_size=32)
    assert isinstance(data, TorchDataset)
    studies = list(toy_dataset.studies("test"))
    assert len(data) == len(studies) == 6
    assert data.reports == [study.report for study in studies]
    item = data[0]
    assert item["images"].shape == (len(studies[0].images), 1, 32, 32)
    assert 0 <= item["images"].min() < item["images"].max() <= 1
    place = data.classes.index("Lung Opacity")
    assert {int(one["labels"][place]) for one in data} == {1}
    batches: list[Any] = list(DataLoader(data, batch_size=4, collate_fn=data.collate))
    assert [len(batch["report"]) for batch in batches] == [4, 2]
    whole = batches[0]
    assert whole["images"].shape == (4, 2, 1, 32, 32)
    assert whole["view_mask"].sum(1).tolist() == [len(study.images) for study in studies[:4]]
    single = int((whole["view_mask"].sum(1) == 1).nonzero()[0])
    assert whole["images"][single, 1].max() == 0
    assert torch.equal(whole["images"][0, : len(studies[0].images)], item["images"])
    assert len(radweave.Dataset(str(toy_dataset.path), image_size=32)) == 22


def test_the_data_set_goes_to_the_workers_of_a_loader(toy_dataset: Dataset) -> None:
    data = radweave.Dataset(toy_dataset.path, split="val", image_size=32)
    copy = pickle.loads(pickle.dumps(data))  # what a worker that is started anew gets
    assert torch.equal(copy[1]["images"], data[1]["images"])


def test_scans_are_read_too(toy_ct_dataset: Dataset) -> None:
    data = radweave.Dataset(toy_ct_dataset.path, split="val", ct_size=(8, 16, 16))
    batch = data.collate([data[0], data[1]])
    assert batch["images"].shape == (2, 1, 8, 16, 16)
    assert batch["labels"].shape == (2, 18)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"split": "tset"}, "no such split .got tset, expected train, val, test"),
        ({"image_size": 0}, "'image_size'"),
        ({"max_views": 1.5}, "'max_views'"),
        ({"limit": -1}, "'limit'"),
    ],
)
def test_invalid_arguments_are_named(toy_dataset: Dataset, tmp_path: Path, named: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        radweave.Dataset(toy_dataset.path, **named)
    with pytest.raises(InputError, match="no such dataset folder"):
        radweave.Dataset(tmp_path / "nowhere")
    with pytest.raises(InputError, match="not a path"):
        radweave.Dataset(3)  # type: ignore[arg-type]
