"""Members: encoders of one shape, each trained without one fold of the training patients.

Of a study that a member was not trained on, what it says is evidence as of a new one. So every training study has a
witness that never saw it: the member of its own fold. A new study is looked at by all of them. A member with a number
that no fold has is trained on every patient, and is asked of new ones alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from radweave.core.batch import Batch, VisionFeatures
from radweave.nn.connector import ViewTokens
from radweave.nn.global_batch import count_over_batch
from radweave.nn.memory.bank import patient_code
from radweave.nn.vision import VisionPart


class Folds(nn.Module):
    """Fold of a patient: a hash of the run's seed and the patient's code, so the same in every process."""

    seed: Tensor

    def __init__(self, number: int, seed: int) -> None:
        super().__init__()
        self.number = number
        self.register_buffer("seed", torch.tensor(seed))

    def of(self, patient_ids: Iterable[str]) -> Int[Tensor, " studies"]:
        """The fold of each patient, 0 to ``number`` - 1."""
        seed = int(self.seed)
        digests = (hashlib.sha256(f"fold {seed} {patient_code(name)}".encode()).digest() for name in patient_ids)
        return torch.tensor([int.from_bytes(digest[:8]) % self.number for digest in digests], dtype=torch.long)


class Members(nn.Module):
    """K encoders as one: the channels of their tokens stand beside each other."""

    def __init__(self, encoders: Sequence[VisionPart]) -> None:
        super().__init__()
        self.each = nn.ModuleList(encoders)
        self.width = encoders[0].dim
        self.dim, self.channels = self.width * len(encoders), encoders[0].channels

    def __len__(self) -> int:
        return len(self.each)

    @property
    def architecture(self) -> Any:
        """The shape that all of them have."""
        return getattr(self.each[0], "architecture", None)

    def forward(self, pixel_values: Float[Tensor, "n c *space"]) -> VisionFeatures:
        """Tokens (N, S, K D) of images or volumes."""
        features = [encoder(pixel_values) for encoder in self.each]
        return VisionFeatures(torch.cat([one.tokens for one in features], dim=-1), features[0].grid)

    def alone(self, number: int, batch: Batch) -> Batch:
        """The batch with the tokens of one member alone, where tokens were computed before. Nothing is copied."""
        tokens = batch.vision_tokens
        return batch if tokens is None else replace(batch, vision_tokens=self._share(number, tokens))

    def of(self, number: int, views: ViewTokens) -> ViewTokens:
        """One member's share of the tokens of all."""
        return replace(views, tokens=self._share(number, views.tokens))

    def _share(self, number: int, tokens: Tensor) -> Tensor:
        return tokens[..., number * self.width : (number + 1) * self.width]


LossOf = Callable[[int, Batch], Tensor]
"""The loss of one member over some studies."""
Alone = Callable[[int, Batch], Batch]
"""One member's share of a batch. It is taken before the rows are, so that no row of another member is copied."""


def cross_fitted(
    batch: Batch,
    folds: Int[Tensor, " batch"] | None,
    parts: Sequence[nn.Module],
    of: LossOf,
    alone: Alone = lambda number, batch: batch,
) -> Tensor:
    """Sum over the members of their losses, each over the studies that are not of its fold; mean over all studies and
    members where there are no folds, as in validation.

    A member that sees none of the batch adds nothing: a zero that its parameters have a gradient by.
    """
    if folds is None:
        return torch.stack([of(number, alone(number, batch)) for number in range(len(parts))]).mean()
    total: list[Tensor] = []
    for number, part in enumerate(parts):
        rows = (folds != number).nonzero().flatten().tolist()
        if count_over_batch(len(rows)):
            total.append(of(number, alone(number, batch).only(rows)))
        else:
            total.append(torch.stack([0.0 * parameter.sum() for parameter in part.parameters()]).sum())
    return torch.stack(total).sum()


def votes_of(members: Bool[Tensor, "batch members"], folds: int) -> Float[Tensor, "batch members"]:
    """Votes of the members for a study: those of the folds once each, a full one as much as all of
    them together, since it has seen what they have together.
    """
    counts = members.double()
    counts[:, folds:] *= counts[:, :folds].sum(1, keepdim=True)
    return counts


def mean_of_members(
    logits: Float[Tensor, "members batch classes"], votes: Float[Tensor, "batch members"]
) -> Float[Tensor, "batch classes"]:
    """Mean log-odds of the members, each as often as it counts."""
    weight = votes.T[:, :, None].to(logits)
    return (logits * weight).sum(0) / weight.sum(0)


def unbiased_members(barred: np.ndarray[Any, np.dtype[np.bool_]], folds: Int[Tensor, " rows"], number: int) -> Tensor:
    """Members (B, K) that may score each study: all of a new one, of a training patient's study the one
    that was trained without. ``barred`` (B, J) are the study's own rows of the bank, ``folds`` (J,) those rows' folds.
    """
    members = torch.ones(len(barred), number, dtype=torch.bool)
    for row, own in enumerate(torch.from_numpy(barred)):
        if own.any():
            members[row] = torch.isin(torch.arange(number), folds[own])
    return members
