"""A dataset folder as a torch data set, for custom training loops: ``radweave.Dataset("iu", split="train")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict, get_args

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from radweave.core.errors import InputError
from radweave.core.ontology import CLASSES
from radweave.core.study import SPLITS, Modality, Split
from radweave.data.cache.images import build_cache
from radweave.data.ct import NO_SCANS, CtPreprocessing
from radweave.data.dataset import Dataset
from radweave.data.examples import prepare_split
from radweave.labels import LABELER_OF, get_labeler
from radweave.labels.labeler import states


class Item(TypedDict):
    """A study: ``images`` (V, 1, H, W) of a radiograph's views or (1, D, H, W) of a scan, float32 from 0 to 1.

    ``view_ids`` (V) has 0 for unknown, 1 for frontal, 2 for lateral. ``labels`` (K) has a number for each of the data
    set's ``classes``: 0 not mentioned, 1 positive, 2 negative, 3 uncertain, and -1 where nothing is known. ``report``
    is empty where there is none.
    """

    study_id: str
    patient_id: str
    images: Tensor
    view_ids: Tensor
    labels: Tensor
    report: str


class Collated(TypedDict):
    """Studies of a batch: ``images`` (B, V, 1, H, W) or (B, 1, D, H, W); ``view_mask`` (B, V) is False where padded."""

    study_id: list[str]
    patient_id: list[str]
    images: Tensor
    view_ids: Tensor
    view_mask: Tensor
    labels: Tensor
    report: list[str]


class StudyDataset(TorchDataset[Item]):
    """The studies of a dataset folder, or of one split, as a torch data set: ``len``, indexing, ``DataLoader``.

    Images are read once and kept in the folder's cache; ``collate`` pads a batch's views. ``left_out`` has the studies
    that cannot be used with the reason, ``reports`` all reports in order.
    """

    def __init__(
        self,
        folder: Path | str,
        split: Split | None = None,
        *,
        image_size: int = 224,
        max_views: int = 2,
        ct_size: tuple[int, int, int] = (64, 128, 128),
        limit: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Open the folder and read its images.

        Args:
            folder: a dataset folder, as ``radweave data import`` makes it.
            split: "train", "val" or "test"; None for all studies.
            image_size: edge of the squares that radiographs are fitted into, in pixels.
            max_views: views of a study that are read, frontal ones first.
            ct_size: voxels (D, H, W) that scans are resized to.
            limit: as if each split had so many studies.
            progress: told of the images read, and how many there are.

        Raises:
            InputError: if it is no dataset folder, there is no such split, or no study of it can be used.
        """
        if split is not None and split not in SPLITS:
            raise InputError("no such split", field="split", got=split, expected=", ".join(SPLITS))
        for name, number in (("image_size", image_size), ("max_views", max_views), ("limit", limit)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise InputError("not a number of them", field=name, got=number, expected="1 or more")
        if not isinstance(folder, (str, Path)):
            raise InputError("not a path", field="folder", got=type(folder).__name__, expected="a dataset folder")
        dataset = Dataset.open(Path(folder), limit=limit)
        modality: Modality = dataset.card.modality
        assert modality in get_args(Modality)
        self.classes = CLASSES[LABELER_OF[modality]]
        labeler = get_labeler(LABELER_OF[modality])
        ct = CtPreprocessing(size=ct_size, fit="resize") if modality == "ct" else NO_SCANS
        cache = build_cache(dataset, size=image_size, ct=ct, progress=progress)
        prepared = prepare_split(
            dataset.studies(split),
            cache,
            encode=lambda texts: [()] * len(texts),
            end_id=0,
            max_views=max_views if modality == "xray" else 1,
            max_tokens=1,
            label_set=LABELER_OF[modality],
            classes=self.classes,
            need_text=False,
            label=partial(states, labeler),
        )
        if not prepared.examples:
            raise InputError(f"the data set has no usable study in split '{split or 'any'}'", file=dataset.path)
        self.left_out = dict(prepared.left_out)
        self._examples = prepared.examples

    @property
    def reports(self) -> list[str]:
        """The reports in the order of the studies; empty where there is none."""
        return [example.report or "" for example in self._examples]

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Item:
        example = self._examples[index]
        pixels = torch.from_numpy(example.pixels).float() / 255.0
        states = example.class_states or (-1,) * len(self.classes)
        return {
            "study_id": example.study_id,
            "patient_id": example.patient_id,
            "images": pixels if pixels.dim() == 4 else pixels.unsqueeze(1),
            "view_ids": torch.tensor(example.view_ids),
            "labels": torch.tensor(states),
            "report": example.report or "",
        }

    @staticmethod
    def collate(items: Sequence[Item]) -> Collated:
        """A batch, for ``DataLoader(collate_fn=...)``; views that a study lacks are black and masked."""
        return {
            "study_id": [item["study_id"] for item in items],
            "patient_id": [item["patient_id"] for item in items],
            "images": _padded([item["images"] for item in items]),
            "view_ids": _padded([item["view_ids"] for item in items]),
            "view_mask": _padded([torch.ones_like(item["view_ids"], dtype=torch.bool) for item in items]),
            "labels": torch.stack([item["labels"] for item in items]),
            "report": [item["report"] for item in items],
        }


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True)
