"""What a method may see of the data when it builds a memory: the training split and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from radweave.base.batch import Batch
from radweave.base.study import Split, Study
from radweave.data.loader import Example, Features, StudyLoader


@dataclass(frozen=True, slots=True)
class TrainingView:
    """The training studies that are used, in the order of the manifest.

    ``studies`` and ``examples`` run in parallel. There is no way from here to another split. ``open_other`` opens the
    same split of another data set, given its folder; its studies carry that data set's name in ``origin``. Training
    never makes a view of another ``split``: experiments at test time may, and say so (``radweave.runs.at_test``).
    """

    studies: tuple[Study, ...]
    examples: tuple[Example, ...]
    classes: tuple[str, ...]
    pad_id: int
    seed: int
    features: Features | None = None
    origin: str | None = None
    open_other: Callable[[Path], TrainingView] | None = None
    split: Split = "train"

    def __post_init__(self) -> None:
        assert all(study.split == self.split for study in self.studies), "a training view holds training studies only"
        assert [study.study_id for study in self.studies] == [example.study_id for example in self.examples]

    def __len__(self) -> int:
        return len(self.examples)

    def spread(self, most: int) -> TrainingView:
        """At most so many of the studies, evenly spread over the split."""
        if len(self) <= most:
            return self
        rows = [number * len(self) // most for number in range(most)]
        return replace(
            self, studies=tuple(self.studies[row] for row in rows), examples=tuple(self.examples[row] for row in rows)
        )

    def row_id(self, study_id: str) -> str:
        """What a bank's row calls a study: its id, after the data set's name where that is another one."""
        return study_id if self.origin is None else f"{self.origin}:{study_id}"

    @property
    def reports(self) -> list[str]:
        """The target text of every study."""
        return [example.report or "" for example in self.examples]

    @property
    def class_states(self) -> Int[Tensor, "studies classes"]:
        """Label states as in ``Batch.class_labels``; -1 for a study without labels."""
        absent = (-1,) * len(self.classes)
        return torch.tensor([example.class_states or absent for example in self.examples])

    def batches(self, batch_size: int = 32, *, pixels: bool = False) -> Iterator[Batch]:
        """Every study once, unshuffled and unaugmented; features in place of pixels where they are there.

        ``pixels`` asks for the images even then.
        """
        features = None if pixels else self.features
        return StudyLoader(self.examples, batch_size, self.pad_id, features=features).epoch()


Look = Callable[[str | None, Split], TrainingView]
"""Opens a split of a data set by its folder; None is the data set that is reported on."""
