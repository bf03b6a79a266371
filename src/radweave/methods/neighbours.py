"""Evidence of similar training studies: smoothers over classical descriptors, in closed form, kept as a bank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.drafting.smoothers import FINDINGS, Evidence, Floats, Mask, Smoothers
from radweave.methods.descriptors import (
    DIM,
    NUM_VIEWS,
    Described,
    DescriptorExtractor,
    Distances,
    Placed,
    among,
    distances,
    placed,
)
from radweave.nn.heads import POSITIVE
from radweave.nn.memory.bank import ROWS, Bank, Column, report_rows

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView

# Similarity of two contexts: bags of their tokens, and their share of the distance between two studies.


Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

COLUMN: Final = "told"
"""The tensor of a bank whose studies were told something."""
BAGS: Final = 512
"""Tokens share places in a bag by their number; two rarely meet in texts that are a line long."""
SHARE: Final = 0.25
"""Weight of the clinical context beside the image distance. It was not tuned."""


def bags_of(batch: Batch) -> Singles | None:
    """Bags (B, BAGS) of length 1, 0 of a study that is told nothing; None where none ever is."""
    if batch.context_ids is None or batch.context_mask is None:
        return None
    bags = np.zeros((len(batch), BAGS), dtype=np.float32)
    for row, (ids, mask) in enumerate(zip(batch.context_ids.tolist(), batch.context_mask.tolist(), strict=True)):
        for token in {number for number, present in zip(ids, mask, strict=True) if present}:
            bags[row, token % BAGS] = 1
    return np.asarray(bags / np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1))


def kept_bags(bank: Bank) -> Singles | None:
    """The bags (J, BAGS) of a bank; None where its studies were told nothing.

    Raises:
        InputError: if they are none.
    """
    tensor = bank.tensors.get(COLUMN)
    if tensor is None:
        return None
    if tensor.shape != (len(bank), BAGS) or not bool(tensor.isfinite().all()):
        got, expected = list(tensor.shape), [len(bank), BAGS]
        raise InputError("the bank does not fit this model", field=COLUMN, got=got, expected=expected)
    return tensor.float().numpy()


def with_bags(image: Doubles, left: Singles | None, right: Singles) -> Doubles:
    """Squared distances (N, J) with what was told of each, about 1 where two are told other things."""
    if left is None:
        left = np.zeros((len(image), BAGS), dtype=np.float32)
    # One study at a time: alone and in any batch the same.
    apart = np.stack([((row[None].astype(np.float64) - right) ** 2).sum(axis=1) for row in left]) / 2
    return (image + SHARE * apart) / (1 + SHARE)


FOR_MEANS = 1000
"""Studies that the mean images are made from."""


def neighbour_columns(num_classes: int, num_views: int = NUM_VIEWS) -> Mapping[str, Column]:
    """Columns of a bank for each study: its descriptors, its findings, and its row of the smoothers' inverses."""
    return {
        "descriptors": Column("float", (num_views, DIM)),
        "present": Column("flag", (num_views,)),
        "labels": Column("flag", (num_classes,)),
        "inverses": Column("float", (len(FINDINGS) + 1, ROWS)),
    }


@dataclass(slots=True)
class DescribedStudies:
    """The J training studies in use: how they look, what was fitted to them, and what was told of them, if anything."""

    described: Described
    smoothers: Smoothers
    bags: NDArray[np.float32] | None = None
    _placed: Placed | None = None

    @classmethod
    def of(cls, bank: Bank) -> DescribedStudies:
        """From the bank of a run.

        Raises:
            InputError: if what was told of them is not what a run keeps of it.
        """
        tensors = bank.tensors
        described = Described(tensors["descriptors"].float().numpy(), tensors["present"].numpy().astype(bool))
        inverses = tensors["inverses"].double().numpy()
        labels = tensors["labels"].double().numpy()
        smoothers = Smoothers(labels, tuple(inverses[:, number] for number in range(len(FINDINGS) + 1)))
        return cls(described, smoothers, kept_bags(bank))

    def evidence_for(self, extractor: DescriptorExtractor, batch: Batch, barred: Mask) -> list[Evidence]:
        """Evidence for each study of a batch; those that are ``barred`` (B, J) say nothing."""
        if self._placed is None:
            self._placed = placed(extractor, self.described)
        apart = _with_context(distances(extractor, extractor.describe(batch), self._placed), bags_of(batch), self.bags)
        return [
            self.smoothers.evidence_for(findings, wording, own)
            for findings, wording, own in zip(apart.findings, apart.wording, barred, strict=True)
        ]


def _with_context(apart: Distances, left: NDArray[np.float32] | None, right: NDArray[np.float32] | None) -> Distances:
    """The distances with what was told of both sides; as they are where the training studies were told nothing."""
    if right is None:
        return apart
    return Distances(with_bags(apart.findings, left, right), with_bags(apart.wording, left, right))


@dataclass(frozen=True, slots=True)
class FittedNeighbours:
    """Fresh columns and rows of a bank, and what the others say of each of its studies, without its patient's."""

    tensors: dict[str, Tensor]
    rows: tuple[dict[str, Any], ...]
    left_out: list[Evidence]


def fit_neighbours(extractor: DescriptorExtractor, training: TrainingView) -> FittedNeighbours:
    """Describe the training studies, whose scales ``extractor`` takes, and fit the smoothers to them."""
    extractor.fit_means(training.spread(FOR_MEANS).batches(pixels=True))
    described = Described.empty(len(training), extractor.num_views)
    rows: list[dict[str, Any]] = []
    bags_of_batches: list[NDArray[np.float32]] = []
    for batch in training.batches(pixels=True):
        extractor.read(batch, described, len(rows))
        rows += report_rows(batch)
        if (bags := bags_of(batch)) is not None:
            bags_of_batches.append(bags)
    extractor.fit_scales(described)
    every = np.concatenate(bags_of_batches) if bags_of_batches else None
    apart = _with_context(among(extractor, described), every, every)
    labels: Floats = (training.class_states == POSITIVE).double().numpy()
    smoothers = Smoothers.fit(apart.findings, apart.wording, labels)
    patients = np.array([row["patient"] for row in rows])
    left_out = [
        smoothers.evidence_for(apart.findings[row], apart.wording[row], patients == patients[row])
        for row in range(len(rows))
    ]
    tensors = {
        "descriptors": torch.from_numpy(described.vectors).half(),
        "present": torch.from_numpy(described.present.astype(np.uint8)),
        "labels": torch.from_numpy(smoothers.labels.astype(np.uint8)),
        "inverses": torch.from_numpy(np.stack(smoothers.inverses, axis=1)).float(),
        **({COLUMN: torch.from_numpy(every)} if every is not None else {}),
    }
    return FittedNeighbours(tensors, tuple(rows), left_out)
