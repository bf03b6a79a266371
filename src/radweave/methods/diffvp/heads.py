"""A plain classifier on tokens: of the encoder that starts from nothing, and of the latent tokens (Eq. 11)."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.config import Config

Pooling = Literal["mean", "mean_max"]


class ClassHead(nn.Module):
    """One logit per class of the pooled tokens: their mean, or the sum of mean and maximum."""

    def __init__(self, dim: int, num_classes: int, pooling: Pooling) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes)
        self.pooling = pooling

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        there = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)
        pooled = (tokens * there[:, :, None]).sum(1) / there.sum(1, keepdim=True)
        if self.pooling == "mean_max":
            pooled = pooled + tokens.masked_fill(there[:, :, None] == 0, float("-inf")).amax(1)
        logits: Tensor = self.linear(pooled)
        return logits


class ClassHeadConfig(Config):
    """How tokens are pooled before the linear map."""

    pooling: Pooling = "mean"

    def build(self, dim: int, num_classes: int) -> ClassHead:
        return ClassHead(dim, num_classes, self.pooling)
