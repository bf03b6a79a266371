"""Label states of a batch as targets of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from radweave.base.ontology import NO_FINDING
from radweave.nn.global_batch import mean_over_batch

BLANK, POSITIVE, NEGATIVE, UNCERTAIN, UNLABELED = 0, 1, 2, 3, -1
"""The integers of ``Batch.class_labels``."""

UncertainPolicy = Literal["positive", "negative", "ignore"]


def binary_targets(
    class_labels: Int[Tensor, "batch classes"], uncertain: UncertainPolicy = "positive"
) -> tuple[Float[Tensor, "batch classes"], Bool[Tensor, "batch classes"]]:
    """Targets in {0, 1} and where they are known. A class that is not mentioned counts as absent."""
    targets = class_labels == POSITIVE
    known = class_labels != UNLABELED
    if uncertain == "positive":
        targets = targets | (class_labels == UNCERTAIN)
    elif uncertain == "ignore":
        known = known & (class_labels != UNCERTAIN)
    return targets.float(), known


def binary_loss(
    logits: Float[Tensor, "batch classes"],
    class_labels: Int[Tensor, "batch classes"],
    uncertain: UncertainPolicy = "positive",
) -> Float[Tensor, ""]:
    """Binary cross-entropy averaged over what is known; 0 (with a gradient of 0) where nothing is."""
    targets, known = binary_targets(class_labels, uncertain)
    losses = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return mean_over_batch(torch.where(known, losses, torch.zeros_like(losses)).sum(), known.sum())


def are_normal(class_states: Int[Tensor, "studies classes"], classes: Sequence[str]) -> Bool[Tensor, " studies"]:
    """Which studies state no abnormality: no class is positive or uncertain, "No Finding" aside.

    A report that suspects something does not say that there is nothing (appendix B), whatever an uncertain label counts
    as for a classifier. A class that is not mentioned counts as absent. Devices count as findings: they change the
    picture. A study without labels is not normal.
    """
    counted = [place for place, name in enumerate(classes) if name != NO_FINDING]
    states = class_states[:, counted]
    stated = (states == POSITIVE) | (states == UNCERTAIN)
    return ~stated.any(1) & (states != UNLABELED).all(1)
