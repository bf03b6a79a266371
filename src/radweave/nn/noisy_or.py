"""Noisy-OR: a class is there if any token says so. In logarithms, so that thousands of sure tokens are no zero.

Source: Tian et al., "DiffVP", arXiv:2603.17718, appendix D.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.nn.views import ViewTokens

FAR, SERIES = -15.0, 1e-4
Prior = Annotated[float, Field(gt=0, lt=1)]
FIRST_PRIOR = 0.1
"""About how frequent a finding is; every class starts there."""


def log_softplus(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(log(1 + exp(x))), exact where softplus itself is no number any more: far below 0 it is x - exp(x) / 2."""
    far = x < FAR
    # Each branch sees harmless values where the other one counts: an infinite gradient times zero is no number.
    near = torch.where(far, torch.zeros_like(x), x)
    below = torch.where(far, x, torch.full_like(x, FAR))
    return torch.where(far, below - below.exp() / 2, F.softplus(near).log())


def noisy_or_logits(
    voxel_logits: Float[Tensor, "batch voxels classes"], mask: Bool[Tensor, "batch voxels"]
) -> Float[Tensor, "batch classes"]:
    """The logit of P = 1 - prod_v (1 - p_v), p_v = sigmoid(x_v), over the voxels that are there.

    With s = -log(1 - P) = sum_v softplus(x_v) it is log(exp(s) - 1): for small s log s + log((exp(s) - 1) / s), and
    log s = logsumexp_v log softplus(x_v). So neither products of thousands of factors nor a sum that is too small for
    its type leave the logarithm, and however sure of absence all voxels are, each has its share of the gradient.
    """
    absent = ~mask[:, :, None]
    log_s = log_softplus(voxel_logits).masked_fill(absent, -torch.inf).logsumexp(1)
    s = F.softplus(voxel_logits).masked_fill(absent, 0.0).sum(1)
    small = s < 1
    low, high = torch.where(small, s, torch.ones_like(s)), torch.where(small, torch.ones_like(s), s)
    # log((exp(s) - 1) / s) is s / 2 + s^2 / 24 but for terms of s^4, which no float holds below SERIES.
    tiny = low < SERIES
    ratio = torch.where(tiny, torch.ones_like(low), low)
    rest = torch.where(tiny, low / 2 + low.square() / 24, (torch.expm1(ratio) / ratio).log())
    return torch.where(small, log_s + rest, high + torch.log1p(-torch.exp(-high)))


def first_logit(prior: float, num_voxels: int) -> float:
    """What every voxel must say for all of them together to give P = ``prior``: log((1 - prior)^(-1/n) - 1)."""
    return math.log(math.expm1(-math.log1p(-prior) / num_voxels))


class NoisyOrHead(nn.Module):
    """A 1 x 1 (x 1) convolution over the grid, that is a linear map of every token, and Noisy-OR over all of them.

    A fresh head gives every class the probability ``prior``, whatever the number of voxels; with voxels that start at 0
    thousands of them would be certain of everything.
    """

    def __init__(self, dim: int, num_classes: int, prior: float, num_voxels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes)
        nn.init.constant_(self.linear.bias, first_logit(prior, num_voxels))

    def forward(self, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        tokens, mask = views.flat()
        return noisy_or_logits(self.linear(tokens), mask)
