"""What training studies that look alike say: smoothers over classical descriptors, in closed form, kept as a bank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from radweave.base.batch import Batch
from radweave.drafting.smoothers import FINDINGS, Evidence, Floats, Mask, Smoothers
from radweave.memory.bank import ROWS, Bank, Column, report_rows
from radweave.nn.supervision import POSITIVE
from radweave.sources.looks import DIM, NUM_VIEWS, Described, Looks, among, distances

if TYPE_CHECKING:
    from radweave.contract.view import TrainingView

FOR_MEANS = 1000
"""Studies that the mean images are made from."""


def alike_columns(num_classes: int) -> Mapping[str, Column]:
    """What a bank must have of each study: its descriptors, its findings, and its row of the smoothers' inverses."""
    return {
        "descriptors": Column("float", (NUM_VIEWS, DIM)),
        "present": Column("flag", (NUM_VIEWS,)),
        "labels": Column("flag", (num_classes,)),
        "inverses": Column("float", (len(FINDINGS) + 1, ROWS)),
    }


@dataclass(frozen=True, slots=True)
class AlikeStudies:
    """The J training studies in use: how they look, and what was fitted to them."""

    described: Described
    smoothers: Smoothers

    @classmethod
    def of(cls, bank: Bank) -> AlikeStudies:
        """From the bank of a run."""
        tensors = bank.tensors
        described = Described(tensors["descriptors"].float().numpy(), tensors["present"].numpy().astype(bool))
        inverses = tensors["inverses"].double().numpy()
        labels = tensors["labels"].double().numpy()
        return cls(described, Smoothers(labels, tuple(inverses[:, number] for number in range(len(FINDINGS) + 1))))

    def testify(self, looks: Looks, batch: Batch, barred: Mask) -> list[Evidence]:
        """What they say of each study of a batch; those that are ``barred`` (B, J) say nothing."""
        apart = distances(looks, looks.describe(batch), self.described)
        return [
            self.smoothers.testify(findings, wording, own)
            for findings, wording, own in zip(apart.findings, apart.wording, barred, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class FittedAlike:
    """Fresh columns and rows of a bank, and what the others say of each of its studies, without its patient's."""

    tensors: dict[str, Tensor]
    rows: tuple[dict[str, Any], ...]
    left_out: list[Evidence]


def fit_alike(looks: Looks, training: TrainingView) -> FittedAlike:
    """Describe the training studies, whose scales ``looks`` takes, and fit the smoothers to them."""
    looks.fit_means(training.spread(FOR_MEANS).batches(pixels=True))
    seen = Described.empty(len(training))
    rows: list[dict[str, Any]] = []
    for batch in training.batches(pixels=True):
        looks.read(batch, seen, len(rows))
        rows += report_rows(batch)
    looks.fit_scales(seen)
    apart = among(looks, seen)
    labels: Floats = (training.class_states == POSITIVE).double().numpy()
    smoothers = Smoothers.fit(apart.findings, apart.wording, labels)
    patients = np.array([row["patient"] for row in rows])
    left_out = [
        smoothers.testify(apart.findings[row], apart.wording[row], patients == patients[row])
        for row in range(len(rows))
    ]
    tensors = {
        "descriptors": torch.from_numpy(seen.vectors).half(),
        "present": torch.from_numpy(seen.present.astype(np.uint8)),
        "labels": torch.from_numpy(smoothers.labels.astype(np.uint8)),
        "inverses": torch.from_numpy(np.stack(smoothers.inverses, axis=1)).float(),
    }
    return FittedAlike(tensors, tuple(rows), left_out)
