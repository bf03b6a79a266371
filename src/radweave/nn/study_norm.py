"""Normalisation over studies: a token keeps what tells its study from the others.

Tokens of learned queries and of memories are made of a large part that all studies share and a small one that differs.
A LayerNorm keeps the first, and a decoder learns to read a constant.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from radweave.nn.global_batch import count_over_batch

OverStudies = Literal["none", "studies"]
"""Nothing, or ``StudyNorm``."""
MARKS = 0.5
"""Usual deviation of the marks, where tokens that are not told apart by their place are normalised to 1."""


class StudyNorm(nn.Module):
    """Batch normalisation of every channel of every token over studies; the mean over studies is taken out.

        y_bkd = w_kd (x_bkd - mean_b x_bkd) / sqrt(var_b x_bkd + eps) + m_kd

    The mean of a token also told which token it is. ``marks`` is the standard deviation at the start of the learned m,
    which says it in its place. A training batch of one study has no spread: running statistics normalise it.

    Source: Ioffe and Szegedy, "Batch normalization", ICML 2015, Algorithm 1.
    """

    def __init__(self, num_tokens: int, width: int, marks: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(num_tokens * width)
        if marks:
            nn.init.normal_(self.norm.bias, std=marks)

    def forward(self, tokens: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        norm, flat = self.norm, tokens.flatten(1)
        if norm.training and count_over_batch(len(flat)) == 1:
            alone = F.batch_norm(flat, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
            return alone.view_as(tokens)
        out: Tensor = norm(flat)
        return out.view_as(tokens)


def over_studies(kind: OverStudies, num_tokens: int, width: int, marks: float = 0.0) -> nn.Module:
    """The normalisation of this kind of (B, ``num_tokens``, ``width``); none where there are no tokens."""
    return StudyNorm(num_tokens, width, marks) if kind == "studies" and num_tokens else nn.Identity()
