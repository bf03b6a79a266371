"""How far apart the features of different images are: collapse and its cure in two numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def mean_pairwise_cosine(features: Float[Tensor, "images dim"]) -> float:
    """Mean cosine over all pairs of different rows; 1 when all images look the same, near 0 when they are spread.

    Raises:
        ValueError: for fewer than two rows.
    """
    if len(features) < 2:
        raise ValueError(f"a pair needs two rows, got {len(features)}")
    unit = F.normalize(features.double(), dim=1)
    total = unit.sum(0).square().sum() - unit.square().sum()
    return float(total / (len(unit) * (len(unit) - 1)))


def effective_rank(features: Float[Tensor, "images dim"]) -> float:
    """Exponential of the entropy of the normalised singular values of the features, centred.

    Between 1 and min(images, dim); 0 where all rows are equal.
    Source: Roy & Vetterli, "The effective rank", EUSIPCO 2007, Eq. 3. Deviations: the mean over images is taken out
    first, so that what all images share does not count as a direction.
    """
    centred = features.double() - features.double().mean(0)
    values = torch.linalg.svdvals(centred)
    if float(values.sum()) <= 1e-12 * len(features):
        return 0.0
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())
