"""A classifier on tokens: of the encoder that starts from nothing, and of the latent tokens (Eq. 11)."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.base.config import Config
from radweave.nn.noisy_or import FIRST_PRIOR, Prior, first_logit, noisy_or_logits

Pooling = Literal["mean", "noisy_or"]


class ClassHead(nn.Module):
    """One logit per class: of the mean token, or by Noisy-OR of the logits of all tokens.

    Noisy-OR lets one token speak for a class, which suits findings that are small; a mean drowns them. It starts as
    ``nn.noisy_or.NoisyOrHead`` does.
    """

    def __init__(self, dim: int, num_classes: int, pooling: Pooling, *, prior: float, num_tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes)
        self.pooling = pooling
        if pooling == "noisy_or":
            nn.init.constant_(self.linear.bias, first_logit(prior, num_tokens))

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        there = tokens.new_ones(tokens.shape[:2]).bool() if mask is None else mask
        if self.pooling == "noisy_or":
            return noisy_or_logits(self.linear(tokens), there)
        weight = there.to(tokens.dtype)
        logits: Tensor = self.linear((tokens * weight[:, :, None]).sum(1) / weight.sum(1, keepdim=True))
        return logits


class ClassHeadConfig(Config):
    """How a class's logit comes from the tokens; ``prior`` is where a fresh Noisy-OR starts."""

    pooling: Pooling = "mean"
    prior: Prior = FIRST_PRIOR

    def build(self, dim: int, num_classes: int, num_tokens: int) -> ClassHead:
        return ClassHead(dim, num_classes, self.pooling, prior=self.prior, num_tokens=num_tokens)
